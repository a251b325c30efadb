//! NodeRestriction: a kubelet writes its own node, what belongs to it, and the status of its own pods; nothing else.
//!
//! Which verbs a kubelet has at all is the Node authorizer's business; here its writes are looked into.

mod api_references;
mod nodes;
mod pod_certificates;
mod pods;
mod tokens;

use super::{Attributes, Operation, Plugin, signers};
use crate::authorize::node::node_name;
use crate::registry::Registry;
use api::value::Fields;
use base::pki::user_of_subject;
use futures_util::future::BoxFuture;
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
    /// The node that writes.
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

    /// The object's name, also while it is being created.
    fn name(&self) -> &str {
        match self.operation() {
            Operation::Create if self.attributes.subresource().is_empty() => meta::name(self.object),
            _ => self.attributes.name,
        }
    }

    async fn pod(&self, name: &str) -> Result<Value> {
        self.found("pods", self.attributes.context.namespace, name).await
    }

    /// An object of the core group; 404 if it is not there.
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

impl Plugin for NodeRestriction {
    fn name(&self) -> &'static str {
        "NodeRestriction"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        node_name(attributes.context.user).is_some()
    }

    fn mutate<'a>(
        &'a self,
        registry: &'a Registry,
        attributes: &'a Attributes<'a>,
        object: Option<&'a mut Value>,
        old: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            // What is to be deleted is known only in the second step.
            if attributes.operation == Operation::Delete {
                return Ok(());
            }
            check(registry, attributes, object.as_deref(), old).await
        })
    }

    fn validate<'a>(
        &'a self,
        registry: &'a Registry,
        attributes: &'a Attributes<'a>,
        _object: Option<&'a Value>,
        old: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            if attributes.operation != Operation::Delete {
                return Ok(());
            }
            check(registry, attributes, None, old).await
        })
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

/// Of a claim's status a kubelet reports how far resizing has come.
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

/// A kubelet asks for certificates in its own name only.
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
