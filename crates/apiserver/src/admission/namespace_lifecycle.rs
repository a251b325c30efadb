//! NamespaceLifecycle: rejects creations in missing or terminating namespaces, and the deletion of system namespaces.

use super::reading::mentions;
use super::{Attributes, Operation, Plugin};
use crate::registry::Registry;
use async_trait::async_trait;
use machinery::Value;
use machinery::status::{Cause, Result, Status};

/// Namespaces that cannot be deleted.
const UNDELETABLE: [&str; 3] = ["default", "kube-system", "kube-public"];

pub struct NamespaceLifecycle;

#[async_trait]
impl Plugin for NamespaceLifecycle {
    fn name(&self) -> &'static str {
        "NamespaceLifecycle"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        let kind = &attributes.served.kind;
        match attributes.operation {
            Operation::Create => attributes.served.namespaced(),
            Operation::Delete => (kind.group(), kind.resource()) == ("", "namespaces"),
            Operation::Update | Operation::Connect => false,
        }
    }

    async fn mutate(
        &self,
        registry: &Registry,
        attributes: &Attributes<'_>,
        _object: Option<&mut Value>,
        _old: Option<&Value>,
    ) -> Result<()> {
        let kind = &attributes.served.kind;
        if attributes.operation == Operation::Delete {
            if UNDELETABLE.contains(&attributes.name) {
                let why = "this namespace may not be deleted";
                return Err(Status::forbidden(kind.group(), kind.resource(), attributes.name, why));
            }
            return Ok(());
        }
        let namespace = attributes.context.namespace;
        let namespaces = registry.builtin("", "v1", "namespaces")?;
        let entry = registry.get(namespaces, "", namespace, "").await?;
        // Cheap test first: few namespaces contain the word at all.
        if !mentions(&entry.bytes, "\"Terminating\"") {
            return Ok(());
        }
        if entry.value()["status"]["phase"] != "Terminating" {
            return Ok(());
        }
        let why =
            format!("unable to create new content in namespace {namespace} because it is being terminated");
        let mut status = Status::forbidden(kind.group(), kind.resource(), attributes.name, why);
        if let Some(details) = &mut status.details {
            details.causes.push(Cause {
                reason: "NamespaceTerminating".to_owned(),
                message: format!("namespace {namespace} is being terminated"),
                field: "metadata.namespace".to_owned(),
            });
        }
        Err(status)
    }
}
