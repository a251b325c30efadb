//! The namespace loop. Watches namespaces and pods; deletes the content of a terminating namespace, pods first, then
//! removes the namespace's finalizer.
//!
//! Invariant: a namespace is deleted only after all its content, custom resources too.

mod conditions;

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use client::{Client, ClientError, ListOptions, Propagation, ResourceInfo, ResourceKey, delete_options};
use objects::core::v1::{Namespace, Pod};
use runtime::{Action, Cache, Change, Context, Descriptor, Key, Loop, LoopError};

use self::conditions::Findings;
use crate::shared::namespaces;

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "namespace-controller",
    resource: "namespaces",
    identity: "system:serviceaccount:kube-system:namespace-controller",
    workers: 10,
};

const FINALIZER: &str = "kubernetes";
/// Requeue time while finalizers of other controllers are pending.
const FINALIZERS: Duration = Duration::from_secs(8);
/// Requeue time while pods terminate without events.
const PODS: Duration = Duration::from_secs(5);

struct Namespaces {
    namespaces: Cache<Namespace>,
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    let namespaces = ctx.watch::<Namespace>(|change| match change {
        Change::Deleted(_) => Vec::new(),
        change if namespaces::is_active(change.object()) => Vec::new(),
        change => vec![Key::of(&**change.object())],
    });
    let known = namespaces.clone();
    ctx.watch::<Pod>(move |change| match change {
        Change::Deleted(pod) => {
            let name = pod.metadata.namespace.as_deref().unwrap_or_default();
            let going = known.get("", name).is_some_and(|namespace| !namespaces::is_active(&namespace));
            if going { vec![Key::new("", name)] } else { Vec::new() }
        }
        _ => Vec::new(),
    });
    Box::new(Namespaces { namespaces })
}

#[async_trait]
impl Loop for Namespaces {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let Some(namespace) = self.namespaces.get_key(key) else { return Ok(Action::Done) };
        if namespace.metadata.deletion_timestamp.is_none() || !has_finalizer(&namespace) {
            return Ok(Action::Done);
        }
        let (findings, wait) = empty(&key.name, ctx).await;
        if let Some(changed) = conditions::apply(&namespace, &findings, ctx.clock.now()) {
            match ctx.client.update_status(&changed).await {
                Ok(_) => {}
                Err(error) if error.is_not_found() => return Ok(Action::Done),
                // The next reconciliation uses the newer version and repeats the findings.
                Err(error) => {
                    tracing::debug!(namespace = %key, %error, "failed to update namespace conditions")
                }
            }
        }
        if let Some(failure) = findings.failures.into_iter().next() {
            return Err(failure.into());
        }
        match wait {
            Some(wait) => Ok(Action::RequeueAfter(wait)),
            None => finalize(&key.name, ctx).await,
        }
    }
}

fn has_finalizer(namespace: &Namespace) -> bool {
    let finalizers = namespace.spec.as_ref().and_then(|spec| spec.finalizers.as_deref()).unwrap_or_default();
    finalizers.iter().any(|finalizer| finalizer == FINALIZER)
}

/// Deletes the content of the namespace; returns the remaining objects and the time to wait for them.
async fn empty(name: &str, ctx: &Context) -> (Findings, Option<Duration>) {
    let mut findings = Findings::default();
    let mut wait = None;
    let discovery = match ctx.client.discover().await {
        Ok(discovery) => discovery,
        Err(error) => {
            findings.discovery = Some(error.to_string());
            findings.failures.push(error);
            return (findings, wait);
        }
    };
    if !discovery.stale.is_empty() {
        findings.discovery = Some(format!(
            "Discovery failed for some groups, {} failing: {}",
            discovery.stale.len(),
            discovery.stale.join(", ")
        ));
        wait = Some(FINALIZERS);
    }
    let (pods, others) = order(&discovery.preferred);
    for resource in pods {
        delete_all(name, resource, &ctx.client, &mut findings).await;
    }
    if !findings.remaining.is_empty() || !findings.failures.is_empty() {
        return (findings, Some(PODS));
    }
    for resource in others {
        delete_all(name, resource, &ctx.client, &mut findings).await;
    }
    if !findings.remaining.is_empty() {
        wait = Some(if findings.finalizers.is_empty() { Duration::from_secs(1) } else { FINALIZERS });
    }
    (findings, wait)
}

/// All deletable resources of a namespace: pods, which may need the rest to terminate properly, and the rest.
fn order(served: &[ResourceInfo]) -> (Vec<&ResourceInfo>, Vec<&ResourceInfo>) {
    let deletable =
        served.iter().filter(|info| info.key.namespaced && info.can("delete") && info.can("list"));
    deletable.partition(|info| info.key.group.is_empty() && info.key.resource == "pods")
}

async fn delete_all(namespace: &str, info: &ResourceInfo, client: &Client, findings: &mut Findings) {
    if let Err(error) = try_delete_all(namespace, info, client, findings).await
        && !error.is_not_found()
        && error.code() != Some(405)
    {
        findings.failures.push(error);
    }
}

async fn try_delete_all(
    namespace: &str,
    info: &ResourceInfo,
    client: &Client,
    findings: &mut Findings,
) -> Result<(), ClientError> {
    let objects = client.dynamic(&info.key);
    let all = ListOptions::default();
    let before = objects.list_metadata(namespace, &all).await?.items;
    if before.is_empty() {
        return Ok(());
    }
    let options = delete_options(None, Some(Propagation::Background));
    if info.can("deletecollection") {
        objects.delete_collection(namespace, &options).await?;
    } else {
        for object in &before {
            let name = object.metadata.name.as_deref().unwrap_or_default();
            match objects.delete(namespace, name, &options).await {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            }
        }
    }
    let left = objects.list_metadata(namespace, &all).await?.items;
    if !left.is_empty() {
        *findings.remaining.entry(qualified(&info.key)).or_insert(0) += left.len();
        for finalizer in left.iter().flat_map(|object| object.metadata.finalizers.iter().flatten()) {
            *findings.finalizers.entry(finalizer.clone()).or_insert(0) += 1;
        }
    }
    Ok(())
}

/// `pods.`, `jobs.batch`: format of resources in the conditions.
fn qualified(key: &ResourceKey) -> String {
    format!("{}.{}", key.resource, key.group)
}

type Counts = BTreeMap<String, usize>;

/// Removes the `kubernetes` finalizer from the current version of the namespace.
async fn finalize(name: &str, ctx: &Context) -> Result<Action, LoopError> {
    let mut namespace: Namespace = match ctx.client.get("", name).await {
        Err(error) if error.is_not_found() => return Ok(Action::Done),
        namespace => namespace?,
    };
    if namespace.metadata.deletion_timestamp.is_none() {
        return Ok(Action::Done);
    }
    if let Some(finalizers) = namespace.spec.as_mut().and_then(|spec| spec.finalizers.as_mut()) {
        finalizers.retain(|finalizer| finalizer != FINALIZER);
    }
    match ctx.client.update_subresource(&namespace, "finalize").await {
        Err(error) if !error.is_not_found() => Err(error.into()),
        _ => Ok(Action::Done),
    }
}
