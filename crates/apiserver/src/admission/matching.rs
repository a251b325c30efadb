//! Which writes hooks and policies want to see: rules about resources, selectors of labels.

use super::Attributes;
use api::value::{Fields, texts};
use machinery::selector::label::LabelSelector;
use machinery::{Map, Value, meta};

/// Whether one of these rules is about the write.
pub fn has_rule_for<'r>(rules: impl IntoIterator<Item = &'r Value>, attributes: &Attributes<'_>) -> bool {
    let kind = attributes.served.kind;
    let place = match attributes.subresource() {
        "" => kind.resource.to_owned(),
        subresource => format!("{}/{subresource}", kind.resource),
    };
    let is_namespace = kind.group.is_empty() && kind.resource == "namespaces";
    let namespaced = attributes.served.namespaced() && !is_namespace;
    let operation = attributes.operation.to_string();
    rules.into_iter().any(|rule| {
        let lists = |field: &str, value: &str| texts(rule.items(field)).any(|one| one == "*" || one == value);
        let scope = match rule.text("scope") {
            "Cluster" => !namespaced,
            "Namespaced" => namespaced,
            _ => true,
        };
        let names = rule.items("resourceNames");
        scope
            && lists("operations", &operation)
            && lists("apiGroups", kind.group)
            && lists("apiVersions", kind.version)
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
pub struct Selectors {
    namespaces: Option<LabelSelector>,
    objects: Option<LabelSelector>,
}

impl Selectors {
    /// `namespaceSelector` and `objectSelector` of a hook or of match resources.
    pub fn new(owner: &Value) -> Self {
        let selector = |field: &str| {
            let selector = owner.field(field);
            LabelSelector::from_object(Some(selector).filter(|selector| selector.is_object())).ok()
        };
        Self { namespaces: selector("namespaceSelector"), objects: selector("objectSelector") }
    }

    /// Whether they want this write; `namespace` are the namespace's labels, if it has one.
    pub fn select(&self, namespace: Option<&Value>, object: Option<&Value>, old: Option<&Value>) -> bool {
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
