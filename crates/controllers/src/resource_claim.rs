//! The resource claim loop. Watches pods and resource claims; creates the claims of pods' templates, and releases
//! claims that their pods no longer need.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use base::metrics::GaugeVec;
use client::{ClientError, Patch, delete_options};
use objects::core::v1::{Pod, PodResourceClaim};
use objects::meta::v1::ObjectMeta;
use objects::resource::v1::{ResourceClaim, ResourceClaimTemplate};
use runtime::{Action, Cache, Context, Descriptor, Key, Loop, LoopError};
use serde_json::json;

use crate::shared::adoption::controller_reference;
use crate::shared::{metrics, pod_facts};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "resourceclaim-controller",
    resource: "pods",
    identity: "system:serviceaccount:kube-system:resource-claim-controller",
    workers: 10,
};

/// Annotation of a generated claim: its entry in the pod.
const POD_CLAIM: &str = "resource.kubernetes.io/pod-claim-name";
/// Annotation of a claim for extended resources.
const EXTENDED_CLAIM: &str = "resource.kubernetes.io/extended-resource-claim";
const FINALIZER: &str = "resource.kubernetes.io/delete-protection";
/// Prefix of claim keys: both kinds share one queue.
const CLAIM: &str = "claim:";

#[derive(Debug, thiserror::Error)]
#[error("resource claim template {0:?} does not exist")]
struct NoTemplate(String);

struct Claims {
    pods: Cache<Pod>,
    claims: Cache<ResourceClaim>,
    templates: Cache<ResourceClaimTemplate>,
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    let claims = ctx.cache::<ResourceClaim>();
    let all = claims.clone();
    let pods = ctx.watch::<Pod>(move |change| {
        let pod = change.object();
        if entries(pod).next().is_none() {
            return Vec::new();
        }
        let mut keys = vec![Key::of(&**pod)];
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let reserved =
            all.list(namespace).into_iter().filter(|claim| consumers(claim).any(|user| user.uid == uid));
        keys.extend(reserved.map(|claim| claim_key(&claim)));
        keys
    });
    ctx.watch::<ResourceClaim>(|change| vec![claim_key(change.object())]);
    let all = pods.clone();
    let templates = ctx.watch::<ResourceClaimTemplate>(move |change| {
        let meta = &change.object().metadata;
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        let waits = |pod: &Pod| entries(pod).any(|entry| entry.resource_claim_template_name == meta.name);
        all.list(namespace).iter().filter(|pod| waits(pod)).map(|pod| Key::of(&**pod)).collect()
    });
    if let Some(metrics) = metrics::of(ctx) {
        let all = claims.clone();
        metrics.others.claims.compute(&ctx.tasks, move |rows| count_claims(&all.all(), rows));
    }
    Box::new(Claims { pods, claims, templates })
}

fn claim_key(claim: &ResourceClaim) -> Key {
    let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
    Key::new(namespace, &format!("{CLAIM}{}", claim.metadata.name.as_deref().unwrap_or_default()))
}

fn entries(pod: &Pod) -> impl Iterator<Item = &PodResourceClaim> {
    pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten())
}

fn consumers(
    claim: &ResourceClaim,
) -> impl Iterator<Item = &objects::resource::v1::ResourceClaimConsumerReference> {
    claim.status.iter().flat_map(|status| status.reserved_for.iter().flatten())
}

#[async_trait]
impl Loop for Claims {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        if let Some(name) = key.name.strip_prefix(CLAIM) {
            if let Some(claim) = self.claims.get(&key.namespace, name) {
                self.sync_claim(&claim, ctx).await?;
            }
            return Ok(Action::Done);
        }
        let Some(pod) = self.pods.get_key(key) else { return Ok(Action::Done) };
        if pod_facts::is_deleting(&pod) || pod_facts::is_finished(&pod) {
            return Ok(Action::Done);
        }
        self.make_claims(&pod, ctx).await?;
        Ok(Action::Done)
    }
}

impl Claims {
    /// Creates claims from templates, and writes their names to the pod's status.
    async fn make_claims(&self, pod: &Pod, ctx: &Context) -> Result<(), LoopError> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let mut names: BTreeMap<String, String> = BTreeMap::new();
        for entry in entries(pod) {
            let Some(template) = &entry.resource_claim_template_name else { continue };
            if claim_status(pod, &entry.name).is_some() {
                continue;
            }
            let uid = pod.metadata.uid.as_deref().unwrap_or_default();
            let made = self.claims.owned_by(uid).into_iter().find(|claim| {
                let annotations = claim.metadata.annotations.as_ref();
                annotations.and_then(|all| all.get(POD_CLAIM)) == Some(&entry.name)
            });
            let name = match made {
                Some(claim) => claim.metadata.name.clone().unwrap_or_default(),
                None => {
                    let Some(template) = self.templates.get(namespace, template) else {
                        let note = format!(
                            "PodResourceClaim {}: resource claim template {template:?}: not found",
                            entry.name
                        );
                        ctx.recorder.warning(pod, "FailedResourceClaimCreation", note);
                        return Err(NoTemplate(template.clone()).into());
                    };
                    let claim = from_template(pod, &entry.name, &template);
                    let created = ctx.client.create(namespace, &claim).await;
                    if let Some(metrics) = metrics::of(ctx) {
                        let labels =
                            [if created.is_ok() { "success" } else { "failure" }, admin_access(&claim)];
                        metrics.others.claim_creations.with_label_values(&labels).inc();
                    }
                    let created = created?;
                    created.metadata.name.unwrap_or_default()
                }
            };
            names.insert(entry.name.clone(), name);
        }
        if names.is_empty() {
            return Ok(());
        }
        let statuses: Vec<_> =
            names.iter().map(|(entry, claim)| json!({ "name": entry, "resourceClaimName": claim })).collect();
        let patch = Patch::Strategic(json!({
            "metadata": { "uid": pod.metadata.uid },
            "status": { "resourceClaimStatuses": statuses },
        }));
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        ctx.client.patch::<Pod>(namespace, name, Some("status"), &patch).await?;
        Ok(())
    }

    /// Removes reservations of finished pods, then the allocation, then the claim if it was generated for its pod.
    async fn sync_claim(&self, claim: &ResourceClaim, ctx: &Context) -> Result<(), ClientError> {
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        let mut updated = claim.clone();
        let mut remaining = Vec::new();
        for consumer in consumers(claim) {
            if consumer.resource != "pods"
                || consumer.api_group.as_deref().is_some_and(|group| !group.is_empty())
            {
                remaining.push(consumer.clone());
                continue;
            }
            let known = self.pods.get(namespace, &consumer.name).map(|pod| pod.as_ref().clone());
            let pod = match known {
                Some(pod) => Some(pod),
                None => match ctx.client.get::<Pod>(namespace, &consumer.name).await {
                    Ok(pod) => Some(pod),
                    Err(error) if error.is_not_found() => None,
                    Err(error) => return Err(error),
                },
            };
            let needs = |pod: &Pod| {
                let same = pod.metadata.uid.as_ref() == Some(&consumer.uid);
                let never_ran = pod_facts::is_deleting(pod)
                    && pod
                        .spec
                        .as_ref()
                        .and_then(|spec| spec.node_name.as_deref())
                        .unwrap_or_default()
                        .is_empty();
                same && !pod_facts::is_finished(pod) && !never_ran
            };
            if pod.as_ref().is_some_and(needs) {
                remaining.push(consumer.clone());
            }
        }
        let before = consumers(claim).count();
        let free = remaining.is_empty();
        let allocated = claim.status.as_ref().is_some_and(|status| status.allocation.is_some());
        if remaining.len() < before || (free && allocated && claim.metadata.deletion_timestamp.is_some()) {
            let status = updated.status.get_or_insert_default();
            status.reserved_for = Some(remaining).filter(|list| !list.is_empty());
            if free {
                status.allocation = None;
                status.devices = None;
            }
            updated = ctx.client.update_status(&updated).await?;
        }
        let still_allocated = updated.status.as_ref().is_some_and(|status| status.allocation.is_some());
        let held = updated.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER);
        if free && !still_allocated && held {
            updated.metadata.finalizers.get_or_insert_default().retain(|finalizer| finalizer != FINALIZER);
            updated = ctx.client.update(&updated).await?;
        }
        let generated = pod_facts::controller_of(&claim.metadata).filter(|owner| owner.kind == "Pod");
        let done = generated.is_some_and(|owner| {
            let pod = self.pods.get(namespace, &owner.name);
            pod.is_some_and(|pod| {
                pod.metadata.uid.as_ref() == Some(&owner.uid) && pod_facts::is_finished(&pod)
            })
        });
        if done && free && updated.metadata.deletion_timestamp.is_none() {
            let options = delete_options(claim.metadata.uid.as_deref(), None);
            let name = claim.metadata.name.as_deref().unwrap_or_default();
            match ctx.client.delete::<ResourceClaim>(namespace, name, &options).await {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Label of claims with administrative access.
fn admin_access(claim: &ResourceClaim) -> &'static str {
    let mut requests = claim.spec.devices.iter().flat_map(|devices| devices.requests.iter().flatten());
    let is_admin =
        requests.any(|request| request.exactly.as_ref().is_some_and(|one| one.admin_access == Some(true)));
    if is_admin { "true" } else { "false" }
}

/// Counts claims by allocation, administrative access and source.
fn count_claims(claims: &[Arc<ResourceClaim>], rows: &GaugeVec) {
    for claim in claims {
        let annotation = |key: &str| claim.metadata.annotations.as_ref().and_then(|all| all.get(key));
        let is_allocated = claim.status.as_ref().is_some_and(|status| status.allocation.is_some());
        let source = if annotation(EXTENDED_CLAIM).is_some_and(|value| value == "true") {
            "extended_resource"
        } else if annotation(POD_CLAIM).is_some_and(|value| !value.is_empty()) {
            "resource_claim_template"
        } else {
            ""
        };
        let allocated = if is_allocated { "true" } else { "false" };
        rows.with_label_values(&[allocated, admin_access(claim), source]).inc();
    }
}

fn claim_status<'a>(pod: &'a Pod, entry: &str) -> Option<&'a str> {
    let statuses = pod.status.as_ref()?.resource_claim_statuses.as_ref()?;
    statuses.iter().find(|status| status.name == entry).map(|status| status.name.as_str())
}

fn from_template(pod: &Pod, entry: &str, template: &ResourceClaimTemplate) -> ResourceClaim {
    let meta = template.spec.metadata.clone().unwrap_or_default();
    let mut annotations = meta.annotations.unwrap_or_default();
    annotations.insert(POD_CLAIM.to_owned(), entry.to_owned());
    let pod_name = pod.metadata.name.as_deref().unwrap_or_default();
    // Leaves space for the entry's name and the server's suffix.
    let prefix: String = pod_name.chars().take(55_usize.saturating_sub(entry.len())).collect();
    ResourceClaim {
        metadata: ObjectMeta {
            generate_name: Some(format!("{prefix}-{entry}-")),
            namespace: pod.metadata.namespace.clone(),
            labels: meta.labels,
            annotations: Some(annotations),
            owner_references: Some(vec![controller_reference(pod)]),
            ..ObjectMeta::default()
        },
        spec: template.spec.spec.clone(),
        status: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::fixture::{meta, pod};

    #[test]
    fn generated_claim_is_owned_by_its_pod() {
        let template = ResourceClaimTemplate { metadata: meta("t"), ..ResourceClaimTemplate::default() };
        let claim = from_template(&pod("p", "Pending"), "gpu", &template);
        assert_eq!(claim.metadata.generate_name.as_deref(), Some("p-gpu-"));
        assert_eq!(claim.metadata.annotations.as_ref().map(|all| all[POD_CLAIM].as_str()), Some("gpu"));
        assert_eq!(claim.metadata.owner_references.map(|all| all[0].name.clone()).as_deref(), Some("p"));
    }
}
