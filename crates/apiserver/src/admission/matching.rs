//! Matching of writes for webhooks and policies: resource rules, match policy and label selectors.

use super::Attributes;
use crate::registry::Version;
use api::value::{Fields, texts};
use machinery::selector::label::LabelSelector;
use machinery::{Map, Value, meta};

/// API group of webhook and policy configurations.
pub const GROUP: &str = "admissionregistration.k8s.io";
/// Policies do not apply to policies, so that an administrator can always remove them.
pub const POLICIES: [&str; 4] = [
    "mutatingadmissionpolicies",
    "mutatingadmissionpolicybindings",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
];
/// Webhooks do not apply to webhook configurations.
pub const HOOKS: [&str; 2] = ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"];

/// Reports whether user-defined rules apply to a write; the `exempt` resources of their own group are excluded.
pub fn is_subject_to_rules(attributes: &Attributes<'_>, exempt: &[&[&str]]) -> bool {
    let kind = &attributes.served.kind;
    let is_exempt =
        kind.group() == GROUP && exempt.iter().any(|resources| resources.contains(&kind.resource()));
    // The server's own writes keep the cluster alive; a wrong rule or an unavailable webhook must not block them.
    !is_exempt && !attributes.context.is_server
}

/// Rules and selectors of a webhook, a policy or a binding.
pub struct Matcher {
    rules: Vec<Value>,
    excluded: Vec<Value>,
    /// Result without rules: match everything, or nothing.
    matches_all: bool,
    /// `matchPolicy: Equivalent`: rules match all versions of their resources.
    is_equivalent: bool,
    selectors: Selectors,
}

impl Matcher {
    /// Rules and selectors of a webhook.
    pub fn of_hook(hook: &Value) -> Self {
        Self { matches_all: false, ..Self::new(hook, "rules") }
    }

    /// Match constraints of a policy, or match resources of a binding.
    pub fn of_policy(resources: &Value) -> Self {
        Self { matches_all: true, ..Self::new(resources, "resourceRules") }
    }

    fn new(owner: &Value, rules: &str) -> Self {
        Self {
            rules: owner.items(rules).to_vec(),
            excluded: owner.items("excludeResourceRules").to_vec(),
            matches_all: false,
            is_equivalent: owner.text("matchPolicy") == "Equivalent",
            selectors: Selectors::new(owner),
        }
    }

    /// Cheap first test: the version in which the rules match the write, if they do.
    ///
    /// That is the client's own version if a rule has it; else, unless versions must match exactly, another version
    /// of the same resource that a rule has. Objects must be converted to it: [`Attributes::in_version`].
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
        if (self.rules.is_empty() && self.matches_all) || named(attributes.served) {
            return Some(*attributes);
        }
        others().find(|other| named(other)).map(|other| Attributes { served: other, ..*attributes })
    }

    /// Reports whether the selectors match the write; `namespace` holds the labels of its namespace, if any.
    pub fn selects(&self, namespace: Option<&Value>, object: Option<&Value>, old: Option<&Value>) -> bool {
        self.selectors.select(namespace, object, old)
    }
}

/// Reports whether one of these rules matches the write in this version.
fn has_rule_for(rules: &[Value], served: &Version, attributes: &Attributes<'_>) -> bool {
    let kind = &served.kind;
    let path = match attributes.subresource() {
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
            && texts(rule.items("resources")).any(|pattern| names_resource(pattern, &path))
            && (names.is_empty() || texts(names).any(|name| name == attributes.name))
    })
}

/// `pods`, `pods/status`, `pods/*`, `*/status`, `*` (no subresources) or `*/*`.
fn names_resource(pattern: &str, path: &str) -> bool {
    let (resource, subresource) = path.split_once('/').unwrap_or((path, ""));
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

    /// Reports whether both match this write; `namespace` holds the labels of its namespace, if any.
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
    use crate::registry::{WriteContext, WriteRecord};
    use crate::user::UserInfo;

    #[tokio::test]
    async fn user_named_like_the_server_is_subject_to_rules() {
        let cluster = Cluster::empty();
        let served = cluster.registry.builtin("", "v1", "configmaps").expect("served");
        let record = WriteRecord::default();
        let is_subject = |user: &UserInfo| {
            let context = WriteContext::server(user, &record, "n");
            is_subject_to_rules(&Attributes::new(served, &context, Operation::Create), &[])
        };
        assert!(!is_subject(&UserInfo::server()), "the server's own writes are exempt");
        let named = UserInfo { name: UserInfo::server().name, ..UserInfo::default() };
        assert!(is_subject(&named));
        // No request counts as the server's own.
        let server = UserInfo::server();
        let context = WriteContext { is_server: false, ..WriteContext::server(&server, &record, "n") };
        assert!(is_subject_to_rules(&Attributes::new(served, &context, Operation::Create), &[]));
    }

    #[test]
    fn resource_patterns_match_subresources() {
        for (pattern, path, want) in [
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
            assert_eq!(names_resource(pattern, path), want, "{pattern} {path}");
        }
    }
}
