//! DefaultStorageClass and DefaultIngressClass: set the default class on objects without a class.

use super::{Attributes, Operation, Plugin};
use crate::registry::Registry;
use api::value::Fields;
use async_trait::async_trait;
use machinery::status::Result;
use machinery::{Value, meta};

/// Common part of all default-class annotations.
const HINT: &str = "is-default-class";

/// A resource with a class and the resource of its classes.
pub struct DefaultClass {
    name: &'static str,
    /// Group and resource of the objects that reference a class.
    objects: (&'static str, &'static str),
    /// Their spec field for the class, and the annotation that preceded it.
    field: &'static str,
    old: &'static str,
    /// Group, version and resource of the classes.
    classes: (&'static str, &'static str, &'static str),
    /// Annotations of a default class.
    defaults: &'static [&'static str],
}

pub static STORAGE: DefaultClass = DefaultClass {
    name: "DefaultStorageClass",
    objects: ("", "persistentvolumeclaims"),
    field: "storageClassName",
    old: "volume.beta.kubernetes.io/storage-class",
    classes: ("storage.k8s.io", "v1", "storageclasses"),
    defaults: &[
        "storageclass.kubernetes.io/is-default-class",
        "storageclass.beta.kubernetes.io/is-default-class",
    ],
};

pub static INGRESS: DefaultClass = DefaultClass {
    name: "DefaultIngressClass",
    objects: ("networking.k8s.io", "ingresses"),
    field: "ingressClassName",
    old: "kubernetes.io/ingress.class",
    classes: ("networking.k8s.io", "v1", "ingressclasses"),
    defaults: &["ingressclass.kubernetes.io/is-default-class"],
};

#[async_trait]
impl Plugin for DefaultClass {
    fn name(&self) -> &'static str {
        self.name
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation == Operation::Create && attributes.is(self.objects.0, self.objects.1)
    }

    async fn mutate(
        &self,
        registry: &Registry,
        _attributes: &Attributes<'_>,
        object: Option<&mut Value>,
        _old: Option<&Value>,
    ) -> Result<()> {
        let Some(object) = object else { return Ok(()) };
        if object.field("spec").has(self.field) || meta::annotation(object, self.old).is_some() {
            return Ok(());
        }
        let classes = registry.find_all(self.classes, "", HINT).await?;
        if let Some(name) = choose(&classes, self.defaults) {
            object.child_mut("spec").set(self.field, name);
        }
        Ok(())
    }
}

/// Newest class with one of the annotations set to `true`; ties are broken by name.
fn choose<'a>(classes: &'a [Value], annotations: &[&str]) -> Option<&'a str> {
    let marked = |class: &&Value| annotations.iter().any(|key| meta::annotation(class, key) == Some("true"));
    let created = |class: &Value| meta::text(class, "creationTimestamp").to_owned();
    classes
        .iter()
        .filter(marked)
        .max_by(|a, b| created(a).cmp(&created(b)).then_with(|| meta::name(b).cmp(meta::name(a))))
        .map(meta::name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn newest_default_class_wins() {
        let class = |name: &str, created: &str, default: &str| json!({"metadata": {"name": name, "creationTimestamp": created, "annotations": {"d": default}}});
        let classes = [
            class("old", "2026-01-01T00:00:00Z", "true"),
            class("b", "2026-01-02T00:00:00Z", "true"),
            class("a", "2026-01-02T00:00:00Z", "true"),
            class("no", "2026-01-03T00:00:00Z", "false"),
        ];
        assert_eq!(choose(&classes, &["x", "d"]), Some("a"));
        assert_eq!(choose(&classes[3..], &["d"]), None);
    }
}
