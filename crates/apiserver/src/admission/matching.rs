//! Which writes hooks and policies want to see, and in which version: rules about resources, selectors of labels.

use super::Attributes;
use crate::registry::Version;
use api::value::{Fields, texts};
use machinery::selector::label::LabelSelector;
use machinery::{Map, Value, meta};

/// The group of what decides about writes.
pub const GROUP: &str = "admissionregistration.k8s.io";
/// Policies do not decide about policies: whoever may call them off can.
pub const POLICIES: [&str; 4] = [
    "mutatingadmissionpolicies",
    "mutatingadmissionpolicybindings",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
];
/// Nor do hooks decide about hooks.
pub const HOOKS: [&str; 2] = ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"];

/// Whether a write is a matter of rules that users make, these resources of their own group aside.
pub fn is_concerned(attributes: &Attributes<'_>, exempt: &[&[&str]]) -> bool {
    let kind = &attributes.served.kind;
    let is_exempt =
        kind.group() == GROUP && exempt.iter().any(|resources| resources.contains(&kind.resource()));
    // What the server itself writes keeps the cluster alive; a rule that is wrong, or a hook that is down, must not stop
    // it.
    !is_exempt && !attributes.context.is_server
}

/// What a hook, a policy or a binding wants to see.
pub struct Matcher {
    rules: Vec<Value>,
    excluded: Vec<Value>,
    /// Without rules everything is wanted, or nothing.
    wants_all: bool,
    /// Rules are about all versions of the resources they name.
    is_equivalent: bool,
    selectors: Selectors,
}

impl Matcher {
    /// The rules and selectors of a hook.
    pub fn of_hook(hook: &Value) -> Self {
        Self { wants_all: false, ..Self::new(hook, "rules") }
    }

    /// Match constraints of a policy, or match resources of a binding.
    pub fn of_policy(resources: &Value) -> Self {
        Self { wants_all: true, ..Self::new(resources, "resourceRules") }
    }

    fn new(owner: &Value, rules: &str) -> Self {
        Self {
            rules: owner.items(rules).to_vec(),
            excluded: owner.items("excludeResourceRules").to_vec(),
            wants_all: false,
            is_equivalent: owner.text("matchPolicy") == "Equivalent",
            selectors: Selectors::new(owner),
        }
    }

    /// The cheap half: the version in which the write is wanted, if the rules are about it.
    ///
    /// That is the client's own if a rule names it; else, unless versions must match exactly, another version of the same
    /// resource that a rule names. Objects must be converted for that: [`Attributes::in_version`].
    pub fn wanted<'a>(&self, attributes: &Attributes<'a>) -> Option<Attributes<'a>> {
        let excluded = |served| has_rule_for(&self.excluded, served, attributes);
        let others = || {
            let others = attributes.requested.equivalents();
            others.filter(|other| self.is_equivalent && other.has_subresource(attributes.subresource()))
        };
        if excluded(attributes.served) || (!self.excluded.is_empty() && others().any(excluded)) {
            return None;
        }
        let named = |served| has_rule_for(&self.rules, served, attributes);
        if (self.rules.is_empty() && self.wants_all) || named(attributes.served) {
            return Some(*attributes);
        }
        others().find(|other| named(other)).map(|other| Attributes { served: other, ..*attributes })
    }

    /// Whether the selectors want the write; `namespace` are the namespace's labels, if it has one.
    pub fn selects(&self, namespace: Option<&Value>, object: Option<&Value>, old: Option<&Value>) -> bool {
        self.selectors.select(namespace, object, old)
    }
}

/// Whether one of these rules is about the write in this version.
fn has_rule_for(rules: &[Value], served: &Version, attributes: &Attributes<'_>) -> bool {
    let kind = &served.kind;
    let place = match attributes.subresource() {
        "" => kind.resource().to_owned(),
        subresource => format!("{}/{subresource}", kind.resource()),
    };
    let is_namespace = kind.group().is_empty() && kind.resource() == "namespaces";
    let namespaced = served.namespaced() && !is_namespace;
    let operation = attributes.operation.to_string();
    rules.iter().any(|rule| {
        let lists = |field: &str, value: &str| texts(rule.items(field)).any(|one| one == "*" || one == value);
        let scope = match rule.text("scope") {
            "Cluster" => !namespaced,
            "Namespaced" => namespaced,
            _ => true,
        };
        let names = rule.items("resourceNames");
        scope
            && lists("operations", &operation)
            && lists("apiGroups", kind.group())
            && lists("apiVersions", kind.version())
            && texts(rule.items("resources")).any(|pattern| names_resource(pattern, &place))
            && (names.is_empty() || texts(names).any(|name| name == attributes.name))
    })
}

/// `pods`, `pods/status`, `pods/*`, `*/status`, `*` (no subresources) or `*/*`.
fn names_resource(pattern: &str, place: &str) -> bool {
    let (resource, subresource) = place.split_once('/').unwrap_or((place, ""));
    let (wanted, below) = pattern.split_once('/').unwrap_or((pattern, ""));
    let fits = |pattern: &str, value: &str| pattern == "*" || pattern == value;
    fits(wanted, resource) && (fits(below, subresource) || pattern == "*/*")
}

/// Labels of the namespace and of the object.
struct Selectors {
    namespaces: Option<LabelSelector>,
    objects: Option<LabelSelector>,
}

impl Selectors {
    /// `namespaceSelector` and `objectSelector` of a hook or of match resources.
    fn new(owner: &Value) -> Self {
        let selector = |field: &str| {
            let selector = owner.field(field);
            LabelSelector::from_object(Some(selector).filter(|selector| selector.is_object())).ok()
        };
        Self { namespaces: selector("namespaceSelector"), objects: selector("objectSelector") }
    }

    /// Whether they want this write; `namespace` are the namespace's labels, if it has one.
    fn select(&self, namespace: Option<&Value>, object: Option<&Value>, old: Option<&Value>) -> bool {
        let empty = Map::new();
        if let Some(labels) = namespace {
            let labels = labels.as_object().unwrap_or(&empty);
            if !self.namespaces.as_ref().is_some_and(|selector| selector.matches(labels)) {
                return false;
            }
        }
        let Some(selector) = &self.objects else { return false };
        [object, old]
            .into_iter()
            .flatten()
            .any(|object| selector.matches(meta::labels(object).unwrap_or(&empty)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::Operation;
    use crate::admission::test_cluster::Cluster;
    use crate::registry::{Warnings, WriteContext};
    use crate::user::UserInfo;

    #[tokio::test]
    async fn client_named_like_the_server_is_concerned() {
        let cluster = Cluster::empty();
        let served = cluster.registry.builtin("", "v1", "configmaps").expect("served");
        let warnings = Warnings::default();
        let concerned = |user: &UserInfo| {
            let context = WriteContext::server(user, &warnings, "n");
            is_concerned(&Attributes::new(served, &context, Operation::Create), &[])
        };
        assert!(!concerned(&UserInfo::server()), "the server's own writes are exempt");
        let named = UserInfo { name: UserInfo::server().name, ..UserInfo::default() };
        assert!(concerned(&named));
        // No request counts as the server's own.
        let server = UserInfo::server();
        let context = WriteContext { is_server: false, ..WriteContext::server(&server, &warnings, "n") };
        assert!(is_concerned(&Attributes::new(served, &context, Operation::Create), &[]));
    }

    #[test]
    fn patterns_of_resources() {
        for (pattern, place, want) in [
            ("pods", "pods", true),
            ("pods", "pods/status", false),
            ("pods/status", "pods/status", true),
            ("pods/*", "pods/status", true),
            ("pods/*", "pods", true),
            ("*/status", "pods/status", true),
            ("*/status", "pods", false),
            ("*", "pods", true),
            ("*", "pods/status", false),
            ("*/*", "pods", true),
            ("*/*", "pods/status", true),
            ("services", "pods", false),
        ] {
            assert_eq!(names_resource(pattern, place), want, "{pattern} {place}");
        }
    }
}
