//! Kinds that are served in several versions: managers of one version's fields meet those of another's.

use super::conversion_of;
use api::kind::Kind;
use machinery::Value;
use machinery::apply::Converter;
use machinery::gvk::split_api_version;
use machinery::schema::SchemaRef;

/// The versions of one stored kind.
pub struct Versions {
    stored: &'static Kind,
}

impl Versions {
    /// `None` for a kind that has one version only.
    pub fn of(kind: &'static Kind) -> Option<Self> {
        let stored = conversion_of(kind).map_or(kind, |(stored, _)| stored);
        let is_other = |other: &&Kind| conversion_of(other).is_some_and(|(to, _)| std::ptr::eq(to, stored));
        api::kinds::KINDS.iter().any(is_other).then_some(Self { stored })
    }

    fn kind(&self, version: &str) -> Option<&'static Kind> {
        let (group, version) = split_api_version(version);
        let kinds = api::kinds::KINDS.iter().copied();
        kinds.into_iter().find(|kind| {
            (kind.group, kind.version, kind.resource) == (group, version, self.stored.resource)
                && conversion_of(kind).map_or(*kind, |(stored, _)| stored).kind == self.stored.kind
        })
    }
}

impl Converter for Versions {
    fn convert(&self, object: &Value, wanted: &str) -> Option<Value> {
        let given = object.get("apiVersion").and_then(Value::as_str).unwrap_or("");
        let stored = match conversion_of(self.kind(given)?) {
            None => object.clone(),
            Some((_, conversion)) => (conversion.to_stored)(object.clone()),
        };
        let wanted = self.kind(wanted)?;
        Some(match conversion_of(wanted) {
            None => stored,
            Some((_, conversion)) => (conversion.from_stored)(stored),
        })
    }

    fn schema(&self, version: &str) -> Option<SchemaRef<'_>> {
        let kind = self.kind(version)?;
        api::schema::schema().kind(kind.group, kind.version, kind.kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn kind(group: &str, version: &str, resource: &str) -> &'static Kind {
        let is = |kind: &&&Kind| (kind.group, kind.version, kind.resource) == (group, version, resource);
        api::kinds::KINDS.iter().find(is).copied().unwrap()
    }

    #[test]
    fn only_kinds_of_several_versions_convert() {
        assert!(Versions::of(kind("", "v1", "pods")).is_none());
        for version in ["v1", "v2"] {
            assert!(Versions::of(kind("autoscaling", version, "horizontalpodautoscalers")).is_some());
        }
        let events = Versions::of(kind("", "v1", "events")).unwrap();
        let event = json!({"apiVersion": "v1", "kind": "Event", "message": "m"});
        let shown = events.convert(&event, "events.k8s.io/v1").unwrap();
        assert_eq!(shown["note"], "m");
        assert_eq!(events.convert(&shown, "v1").unwrap()["message"], "m");
        assert!(events.convert(&event, "apps/v1").is_none());
    }
}
