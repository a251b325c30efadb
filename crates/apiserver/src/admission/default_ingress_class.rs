//! DefaultIngressClass: an ingress that names no class gets the default one.

use super::{Attributes, Operation, Plugin, default_class};
use crate::registry::Registry;
use api::value::Fields;
use futures_util::future::BoxFuture;
use machinery::status::Result;
use machinery::{Value, meta};

const DEFAULT: &str = "ingressclass.kubernetes.io/is-default-class";
/// How ingresses named their class before there was a field.
const OLD_CLASS: &str = "kubernetes.io/ingress.class";

pub struct DefaultIngressClass;

impl Plugin for DefaultIngressClass {
    fn name(&self) -> &'static str {
        "DefaultIngressClass"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation == Operation::Create && attributes.is("networking.k8s.io", "ingresses")
    }

    fn mutate<'a>(
        &'a self,
        registry: &'a Registry,
        _attributes: &'a Attributes<'a>,
        object: Option<&'a mut Value>,
        _old: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let Some(ingress) = object else { return Ok(()) };
            if ingress.field("spec").has("ingressClassName") || meta::annotation(ingress, OLD_CLASS).is_some()
            {
                return Ok(());
            }
            let resource = ("networking.k8s.io", "v1", "ingressclasses");
            let classes = registry.find_all(resource, "", DEFAULT).await?;
            if let Some(name) = default_class::choose(&classes, &[DEFAULT]) {
                ingress.child_mut("spec").set("ingressClassName", name);
            }
            Ok(())
        })
    }
}
