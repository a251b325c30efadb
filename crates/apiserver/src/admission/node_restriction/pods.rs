//! Pods: a kubelet creates mirror pods, and updates the status of and deletes pods on its node.

use super::{Write, api_references};
use crate::admission::Operation;
use api::value::Fields;
use machinery::status::Result;
use machinery::{Value, meta};

const MIRROR: &str = "kubernetes.io/config.mirror";

pub async fn check(write: &Write<'_>) -> Result<()> {
    match write.attributes.subresource() {
        "" => whole(write).await,
        "status" => status(write),
        "eviction" => eviction(write).await,
        other => write.refuse(format_args!(
            "unexpected pod subresource {other:?}, only 'status' and 'eviction' are allowed"
        )),
    }
}

fn runs_on(pod: &Value, node: &str) -> bool {
    pod.field("spec").text("nodeName") == node
}

async fn whole(write: &Write<'_>) -> Result<()> {
    let node = write.node;
    match write.operation() {
        Operation::Create => create(write).await,
        Operation::Delete if runs_on(write.old, node) => Ok(()),
        Operation::Delete => {
            write.refuse(format_args!("node {node:?} can only delete pods with spec.nodeName set to itself"))
        }
        other @ (Operation::Update | Operation::Connect) => write.refuse(format_args!(
            "unexpected operation \"{other}\", node {node:?} can only create and delete mirror pods"
        )),
    }
}

async fn create(write: &Write<'_>) -> Result<()> {
    let (node, pod) = (write.node, write.object);
    if meta::annotation(pod, MIRROR).is_none() {
        return write.refuse(format_args!(
            "pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods"
        ));
    }
    if !runs_on(pod, node) {
        return write
            .refuse(format_args!("node {node:?} can only create pods with spec.nodeName set to itself"));
    }
    let only = |what: &str| {
        write.refuse(format_args!("node {node:?} can only create pods with {what} set to itself"))
    };
    let owner = match pod.field("metadata").items("ownerReferences") {
        [] => return only("an owner reference"),
        [owner] => owner,
        _ => return only("a single owner reference"),
    };
    if (owner.text("apiVersion"), owner.text("kind"), owner.text("name")) != ("v1", "Node", node) {
        return only("an owner reference");
    }
    if !owner.flag("controller") {
        return only("a controller owner reference");
    }
    if owner.flag("blockOwnerDeletion") {
        return write
            .refuse(format_args!("node {node:?} must not set blockOwnerDeletion on an owner reference"));
    }
    let itself = write.found("nodes", "", node).await?;
    let (submitted, real) = (owner.text("uid"), meta::uid(&itself));
    if submitted != real {
        return write.refuse(format_args!("node {node} UID mismatch: expected {submitted} got {real}"));
    }
    match api_references::first(pod) {
        Ok(None) => Ok(()),
        Ok(Some(what)) => {
            write.refuse(format_args!("node {node:?} can not create pods that reference {what}"))
        }
        Err(why) => write.refuse(format_args!("error checking mirror pod for API references: {why}")),
    }
}

fn status(write: &Write<'_>) -> Result<()> {
    let (node, new, old) = (write.node, write.object, write.old);
    if write.operation() != Operation::Update {
        return write.refuse(format_args!("unexpected operation {:?}", write.operation().to_string()));
    }
    if !runs_on(old, node) {
        return write.refuse(format_args!(
            "node {node:?} can only update pod status for pods with spec.nodeName set to itself"
        ));
    }
    let no_labels = machinery::Map::new();
    let labels = |pod| meta::labels(pod).unwrap_or(&no_labels);
    if labels(new) != labels(old) {
        return write.refuse(format_args!("node {node:?} cannot update labels through pod status"));
    }
    let claims = |pod: &Value| pod.field("status").items("resourceClaimStatuses").to_vec();
    if claims(new) != claims(old) {
        return write.refuse(format_args!("node {node:?} cannot update resource claim statues"));
    }
    let extended = |pod: &Value| pod.field("status").field("extendedResourceClaimStatus").clone();
    if extended(new) != extended(old) {
        return write.refuse(format_args!("node {node:?} cannot update extended resource claim status"));
    }
    Ok(())
}

async fn eviction(write: &Write<'_>) -> Result<()> {
    if write.operation() != Operation::Create {
        return write.refuse(format_args!("unexpected operation {}", write.operation()));
    }
    let pod = write.pod(write.name()).await?;
    if !runs_on(&pod, write.node) {
        let node = write.node;
        return write
            .refuse(format_args!("node {node} can only evict pods with spec.nodeName set to itself"));
    }
    Ok(())
}
