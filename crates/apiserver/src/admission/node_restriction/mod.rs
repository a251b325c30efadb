//! NodeRestriction: limits the writes of a kubelet to its own node, objects that belong to it, and the status of its
//! own pods.
//!
//! The Node authorizer decides which verbs a kubelet has; this plugin checks the content of its writes.

mod api_references;
mod nodes;
mod pod_certificates;
mod pods;
mod tokens;

use super::{Attributes, Operation, Plugin, signers};
use crate::authorize::node::node_name;
use crate::registry::Registry;
use api::value::Fields;
use async_trait::async_trait;
use base::pki::user_of_subject;
use machinery::status::{Result, Status};
use machinery::{Value, meta};

const NODE_LEASES: &str = "kube-node-lease";
const KUBELET_SIGNERS: [&str; 2] =
    ["kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client-kubelet"];

pub struct NodeRestriction;

/// A write of a kubelet.
struct Write<'a> {
    registry: &'a Registry,
    attributes: &'a Attributes<'a>,
    /// Node of the kubelet.
    node: &'a str,
    object: &'a Value,
    old: &'a Value,
}

impl Write<'_> {
    fn refuse(&self, why: impl std::fmt::Display) -> Result<()> {
        Err(self.attributes.forbidden(why))
    }

    fn operation(&self) -> Operation {
        self.attributes.operation
    }

    /// Object name, also during creation.
    fn name(&self) -> &str {
        match self.operation() {
            Operation::Create if self.attributes.subresource().is_empty() => meta::name(self.object),
            _ => self.attributes.name,
        }
    }

    async fn pod(&self, name: &str) -> Result<Value> {
        self.found("pods", self.attributes.context.namespace, name).await
    }

    /// An object of the core group; 404 if it does not exist.
    async fn found(&self, resource: &str, namespace: &str, name: &str) -> Result<Value> {
        let found = self.registry.find(("", "v1", resource), namespace, name).await?;
        found.ok_or_else(|| Status::not_found("", resource, name))
    }

    async fn check(&self) -> Result<()> {
        if self.node.is_empty() {
            let who = &self.attributes.context.user.name;
            return self.refuse(format_args!("could not determine node from user {who:?}"));
        }
        let kind = &self.attributes.served.kind;
        match (kind.group(), kind.resource()) {
            ("", "pods") => pods::check(self).await,
            ("", "nodes") => nodes::check(self),
            ("", "persistentvolumeclaims") => match self.attributes.subresource() {
                "status" => claim_status(self),
                _ => self.refuse("may only update PVC status"),
            },
            ("", "serviceaccounts") => tokens::check(self).await,
            ("certificates.k8s.io", "podcertificaterequests") => pod_certificates::check(self).await,
            ("certificates.k8s.io", "certificatesigningrequests") => signing_request(self),
            ("coordination.k8s.io", "leases") => lease(self),
            ("storage.k8s.io", "csinodes") if self.name() != self.node => {
                self.refuse("can only access CSINode with the same name as the requesting node")
            }
            ("resource.k8s.io", "resourceslices") => resource_slice(self),
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl Plugin for NodeRestriction {
    fn name(&self) -> &'static str {
        "NodeRestriction"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        node_name(attributes.context.user).is_some()
    }

    async fn mutate(
        &self,
        registry: &Registry,
        attributes: &Attributes<'_>,
        object: Option<&mut Value>,
        old: Option<&Value>,
    ) -> Result<()> {
        // The object of a deletion is available only in the validating step.
        if attributes.operation == Operation::Delete {
            return Ok(());
        }
        check(registry, attributes, object.as_deref(), old).await
    }

    async fn validate(
        &self,
        registry: &Registry,
        attributes: &Attributes<'_>,
        _object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<()> {
        if attributes.operation != Operation::Delete {
            return Ok(());
        }
        check(registry, attributes, None, old).await
    }
}

async fn check(
    registry: &Registry,
    attributes: &Attributes<'_>,
    object: Option<&Value>,
    old: Option<&Value>,
) -> Result<()> {
    let Some(node) = node_name(attributes.context.user) else { return Ok(()) };
    let (object, old) = (object.unwrap_or(&Value::Null), old.unwrap_or(&Value::Null));
    Write { registry, attributes, node, object, old }.check().await
}

/// In a claim's status a kubelet reports the resize state only.
fn claim_status(write: &Write<'_>) -> Result<()> {
    if write.operation() != Operation::Update {
        return write.refuse(format_args!("unexpected operation {:?}", write.operation().to_string()));
    }
    let rest = |claim: &Value| {
        let mut claim = claim.clone();
        for field in ["resourceVersion", "managedFields"] {
            meta::metadata_mut(&mut claim).remove(field);
        }
        for field in ["capacity", "conditions", "allocatedResourceStatuses", "allocatedResources"] {
            claim.child_mut("status").unset(field);
        }
        claim
    };
    let (new, old) = (rest(write.object), rest(write.old));
    if new == old {
        return Ok(());
    }
    let differing: Vec<&str> = ["metadata", "spec", "status"]
        .into_iter()
        .filter(|part| new.field(part) != old.field(part))
        .collect();
    write.refuse(format_args!(
        "node {:?} is not allowed to update fields other than status.quantity and status.conditions: {}",
        write.node,
        differing.join(", ")
    ))
}

fn lease(write: &Write<'_>) -> Result<()> {
    if write.attributes.context.namespace != NODE_LEASES {
        return write.refuse(format_args!("can only access leases in the {NODE_LEASES:?} system namespace"));
    }
    if write.name() != write.node {
        return write.refuse("can only access node lease with the same name as the requesting node");
    }
    Ok(())
}

fn resource_slice(write: &Write<'_>) -> Result<()> {
    let (slice, verb) = match write.operation() {
        Operation::Create => (write.object, "create"),
        Operation::Delete => (write.old, "delete"),
        Operation::Update | Operation::Connect => return Ok(()),
    };
    if slice.field("spec").text("nodeName") != write.node {
        return write.refuse(format_args!(
            "can only {verb} ResourceSlice with the same NodeName as the requesting node"
        ));
    }
    Ok(())
}

/// A kubelet requests certificates for its own name only.
fn signing_request(write: &Write<'_>) -> Result<()> {
    let spec = write.object.field("spec");
    if write.operation() != Operation::Create || !KUBELET_SIGNERS.contains(&spec.text("signerName")) {
        return Ok(());
    }
    let Some(user) = signers::subject(spec.text("request"), user_of_subject) else {
        return write.refuse("unable to parse csr: PEM block type must be CERTIFICATE REQUEST");
    };
    let is_own = user.is_ok_and(|user| user.name.strip_prefix("system:node:") == Some(write.node));
    if !is_own {
        return write.refuse(format_args!("can only create a node CSR with CN=system:node:{}", write.node));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
