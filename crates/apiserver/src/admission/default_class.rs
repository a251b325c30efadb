//! DefaultStorageClass and DefaultIngressClass: an object that names no class gets the default one.

use super::{Attributes, Operation, Plugin};
use crate::registry::Registry;
use api::value::Fields;
use futures_util::future::BoxFuture;
use machinery::status::Result;
use machinery::{Value, meta};

/// What the annotations of all default classes contain.
const HINT: &str = "is-default-class";

/// What is classified, and how.
pub struct DefaultClass {
    name: &'static str,
    /// Group and resource of the objects that name a class.
    objects: (&'static str, &'static str),
    /// The field of their spec that does, and the annotation that did before there was a field.
    field: &'static str,
    old: &'static str,
    /// Group, version and resource of the classes.
    classes: (&'static str, &'static str, &'static str),
    /// The annotations of a default class.
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

impl Plugin for DefaultClass {
    fn name(&self) -> &'static str {
        self.name
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation == Operation::Create && attributes.is(self.objects.0, self.objects.1)
    }

    fn mutate<'a>(
        &'a self,
        registry: &'a Registry,
        _attributes: &'a Attributes<'a>,
        object: Option<&'a mut Value>,
        _old: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let Some(object) = object else { return Ok(()) };
            if object.field("spec").has(self.field) || meta::annotation(object, self.old).is_some() {
                return Ok(());
            }
            let classes = registry.find_all(self.classes, "", HINT).await?;
            if let Some(name) = choose(&classes, self.defaults) {
                object.child_mut("spec").set(self.field, name);
            }
            Ok(())
        })
    }
}

/// The newest of the classes that carry one of the annotations with the value `true`; among equals the first name.
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
    fn the_newest_default_wins() {
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
