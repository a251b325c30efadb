//! Writes to the resource claims of a pod: allocation and reservation before its binding, and their reversal.

use std::sync::Arc;
use std::time::{Duration, Instant};

use client::{Client, ClientError, Patch, delete_options};
use objects::core::v1::{Pod, PodExtendedResourceClaimStatus};
use objects::meta::v1::Time;
use objects::resource::v1::{ResourceClaim, ResourceClaimConsumerReference};
use runtime::{EventType, Occurrence, reference};
use serde_json::json;

use super::inbox::Input;
use super::tasks::{Preparation, Writer};
use super::wait::WaitEnd;
use crate::devices::claims::{is_allocated, is_reserved_for};
use crate::devices::conditions::{Readiness, has_binding_conditions, has_timed_out, readiness};
use crate::devices::results;
use crate::framework::ClaimBinding;
use crate::plugins::{add_finalizer, remove_finalizer};
use crate::state::PodInfo;

/// Attempts of a write that conflicts with others, and the pause between two.
const ATTEMPTS: u32 = 5;
const RETRY_PAUSE: Duration = Duration::from_millis(10);
/// Interval at which binding conditions are checked without a change.
const CONDITION_CHECK: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
enum BindError {
    #[error("{action} claim {key}: {source}")]
    Write { action: &'static str, key: String, source: ClientError },
    #[error("claim {0} got {1} in the meantime")]
    Changed(String, &'static str),
}

/// Reason why the wait for binding conditions ended.
#[derive(Debug, thiserror::Error)]
enum WaitError {
    #[error("device binding timeout: {0}")]
    Timeout(String),
    #[error("{0}")]
    Failed(String),
    #[error("pod was deleted")]
    PodDeleted,
}

impl BindError {
    fn is_conflict(&self) -> bool {
        matches!(self, Self::Write { source, .. } if source.is_conflict())
    }
}

/// Binds the claims of one pod.
pub struct DeviceBinder<'a> {
    writer: &'a Writer,
    client: &'a Client,
    info: &'a PodInfo,
    preparation: Preparation<'a>,
    /// Latest versions of the claims.
    claims: Vec<Arc<ResourceClaim>>,
    /// Claim for extended resources, once it was created.
    created: Option<ResourceClaim>,
}

fn key(claim: &ResourceClaim) -> String {
    let metadata = &claim.metadata;
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    format!("{namespace}/{}", metadata.name.as_deref().unwrap_or_default())
}

fn uid(claim: &ResourceClaim) -> &str {
    claim.metadata.uid.as_deref().unwrap_or_default()
}

impl<'a> DeviceBinder<'a> {
    pub fn new(
        writer: &'a Writer,
        client: &'a Client,
        info: &'a PodInfo,
        preparation: Preparation<'a>,
    ) -> Self {
        Self { writer, client, info, preparation, claims: Vec::new(), created: None }
    }

    /// Writes allocations and reservations, and waits until the devices can be used.
    pub async fn prepare(&mut self, node: &str) -> Result<(), String> {
        for binding in &self.preparation.before.devices {
            let claim = if is_reserved_for(&binding.claim, &self.info.uid) {
                Arc::new(binding.claim.clone())
            } else {
                self.bind(binding).await.map_err(|error| error.to_string())?
            };
            self.claims.push(claim);
        }
        if self.claims.iter().any(|claim| has_binding_conditions(claim)) {
            self.await_conditions(node).await?;
        }
        Ok(())
    }

    async fn bind(&mut self, binding: &ClaimBinding) -> Result<Arc<ResourceClaim>, BindError> {
        let mut claim = binding.claim.clone();
        if binding.extended.is_some() {
            claim = self.create(claim).await?;
            self.created = Some(claim.clone());
        }
        let former = uid(&claim).to_owned();
        let mut attempt = 1;
        let claim = loop {
            match self.try_bind(claim.clone(), binding).await {
                Ok(claim) => break Arc::new(claim),
                Err(error) if error.is_conflict() && attempt < ATTEMPTS => {
                    attempt += 1;
                    tokio::time::sleep(RETRY_PAUSE).await;
                    let (namespace, name) = (&self.info.namespace, claim.metadata.name.as_deref());
                    let latest = self.client.get(namespace, name.unwrap_or_default()).await;
                    claim = latest.map_err(|source| BindError::Write {
                        action: "get updated",
                        key: key(&claim),
                        source,
                    })?;
                    if uid(&claim) != former {
                        return Err(BindError::Changed(key(&claim), "deleted"));
                    }
                }
                Err(error) => return Err(error),
            }
        };
        if binding.allocation.is_some() {
            self.preparation.inbox.put(Input::ClaimWritten(former, Arc::clone(&claim)));
        }
        if let Some(mappings) = &binding.extended {
            let status = PodExtendedResourceClaimStatus {
                request_mappings: mappings.clone(),
                resource_claim_name: claim.metadata.name.clone().unwrap_or_default(),
            };
            let patch = Patch::Strategic(json!({
                "metadata": {"uid": &*self.info.uid}, "status": {"extendedResourceClaimStatus": status},
            }));
            let (namespace, name) = (&self.info.namespace, &self.info.name);
            let patched = self.client.patch::<Pod>(namespace, name, Some("status"), &patch).await;
            patched.map_err(|source| BindError::Write {
                action: "update pod ExtendedResourceClaimStatus for",
                key: key(&claim),
                source,
            })?;
        }
        Ok(claim)
    }

    /// Creates the claim for extended resources.
    async fn create(&self, mut claim: ResourceClaim) -> Result<ResourceClaim, BindError> {
        let temporary = claim.metadata.uid.take().unwrap_or_default();
        let created = self.client.create(&self.info.namespace, &claim).await;
        if let Some(metrics) = &self.writer.metrics {
            metrics.claim_created(created.is_ok());
        }
        let created = created.map_err(|source| BindError::Write {
            action: "create extended resources",
            key: key(&claim),
            source,
        })?;
        self.preparation.inbox.put(Input::ClaimWritten(temporary, Arc::new(created.clone())));
        Ok(created)
    }

    async fn try_bind(
        &self,
        mut claim: ResourceClaim,
        binding: &ClaimBinding,
    ) -> Result<ResourceClaim, BindError> {
        if claim.metadata.deletion_timestamp.is_some() {
            return Err(BindError::Changed(key(&claim), "deleted"));
        }
        if let Some(allocation) = &binding.allocation {
            if is_allocated(&claim) {
                return Err(BindError::Changed(key(&claim), "allocated elsewhere"));
            }
            if add_finalizer(&mut claim) {
                let updated = self.client.update(&claim).await;
                claim = updated.map_err(|source| BindError::Write {
                    action: "add finalizer to",
                    key: key(&claim),
                    source,
                })?;
            }
            claim.status.get_or_insert_default().allocation = Some(allocation.clone());
        }
        let key = key(&claim);
        let status = claim.status.get_or_insert_default();
        let Some(allocation) = &mut status.allocation else {
            return Err(BindError::Changed(key, "deallocated elsewhere"));
        };
        allocation.allocation_timestamp.get_or_insert_with(|| Time(self.writer.clock.now()));
        status.reserved_for.get_or_insert_default().push(ResourceClaimConsumerReference {
            api_group: None,
            resource: "pods".to_owned(),
            name: self.info.name.to_string(),
            uid: self.info.uid.to_string(),
        });
        let action = match binding.allocation {
            Some(_) => "add allocation and reservation to",
            None => "add reservation to",
        };
        let updated = self.client.update_status(&claim).await;
        updated.map_err(|source| BindError::Write { action, key, source })
    }

    /// Waits for the binding conditions of the devices.
    async fn await_conditions(&mut self, node: &str) -> Result<(), String> {
        self.preparation.recorder.record(Occurrence {
            regarding: reference(&*self.info.pod),
            related: None,
            kind: EventType::Normal,
            reason: "BindingConditionsPending".to_owned(),
            action: "Scheduling".to_owned(),
            note: format!("waiting for binding conditions for device on node {node}"),
        });
        let limit = self.preparation.before.device_timeout;
        let mut changed = self.writer.resource_claim_changed.clone();
        let ready = async {
            loop {
                changed.borrow_and_update();
                if self.are_ready(limit)? {
                    return Ok(());
                }
                // A change, or the time of the next check.
                let _ = tokio::time::timeout(CONDITION_CHECK, changed.changed()).await;
            }
        };
        let begin = Instant::now();
        let deleted = self.writer.deleted(self.info);
        let outcome = match self.preparation.permit.wait(ready, limit, deleted).await {
            Ok(outcome) => outcome,
            Err(WaitEnd::TimedOut) => Err(WaitError::Timeout("context deadline exceeded".to_owned())),
            Err(WaitEnd::PodDeleted) => Err(WaitError::PodDeleted),
        };
        self.record_wait(&outcome, begin.elapsed());
        outcome.map_err(|error| error.to_string())
    }

    fn record_wait(&self, outcome: &Result<(), WaitError>, took: Duration) {
        let Some(metrics) = &self.writer.metrics else { return };
        let status = match outcome {
            Ok(()) => "success",
            Err(WaitError::Timeout(_)) => "timeout",
            Err(WaitError::Failed(_)) => "failure",
            Err(WaitError::PodDeleted) => "error",
        };
        for result in self.claims.iter().flat_map(|claim| results(claim)) {
            let has_conditions = result.binding_conditions.as_ref().is_some_and(|list| !list.is_empty());
            let profile = self.info.scheduler_name();
            metrics.conditions_awaited(profile, &result.driver, status, has_conditions, took);
        }
    }

    fn are_ready(&self, limit: Duration) -> Result<bool, WaitError> {
        for known in &self.claims {
            let name = known.metadata.name.as_deref().unwrap_or_default();
            let cached = self.writer.resource_claims.get(&self.info.namespace, name);
            // The cache may not have the claim's allocation yet.
            let cached = cached.filter(|cached| uid(cached) == uid(known) && is_allocated(cached));
            let claim = cached.as_ref().unwrap_or(known);
            match readiness(claim) {
                Readiness::Ready => {}
                Readiness::Failed(why) => return Err(WaitError::Failed(why)),
                Readiness::Pending if has_timed_out(claim, limit, self.writer.clock.now()) => {
                    return Err(WaitError::Timeout(format!("claim={name}")));
                }
                Readiness::Pending => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Removes the reservations of the pod, and the claim for its extended resources. Allocations stay.
    pub async fn unreserve(&self) {
        for binding in self.preparation.before.devices.iter().filter(|binding| binding.extended.is_none()) {
            let written = self.claims.iter().find(|claim| uid(claim) == uid(&binding.claim));
            let claim = written.map_or(&binding.claim, |claim| &**claim);
            if !is_reserved_for(claim, &self.info.uid) {
                continue;
            }
            let patch = Patch::Strategic(json!({
                "metadata": {"uid": claim.metadata.uid},
                "status": {"reservedFor": [{"$patch": "delete", "uid": &*self.info.uid}]},
            }));
            let name = claim.metadata.name.as_deref().unwrap_or_default();
            let namespace = &self.info.namespace;
            let patched = self.client.patch::<ResourceClaim>(namespace, name, Some("status"), &patch).await;
            if let Err(error) = patched {
                tracing::warn!(claim = key(claim), pod = self.info.key(), %error, "failed to unreserve claim");
            }
        }
        if let Some(claim) = &self.created
            && let Err(error) = delete_claim(self.client, claim).await
        {
            tracing::warn!(claim = key(claim), pod = self.info.key(), %error, "failed to delete claim");
        }
    }
}

/// Deletes a claim for extended resources, without its finalizer.
async fn delete_claim(client: &Client, claim: &ResourceClaim) -> Result<(), ClientError> {
    let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    let mut attempt = 1;
    let is_gone = |error: &ClientError| error.is_not_found();
    loop {
        let mut latest = match client.get::<ResourceClaim>(namespace, name).await {
            Ok(latest) if uid(&latest) == uid(claim) => latest,
            Ok(_) => return Ok(()),
            Err(error) if is_gone(&error) => return Ok(()),
            Err(error) => return Err(error),
        };
        if !remove_finalizer(&mut latest) {
            break;
        }
        match client.update(&latest).await {
            Ok(_) => break,
            Err(error) if error.is_conflict() && attempt < ATTEMPTS => {
                attempt += 1;
                tokio::time::sleep(RETRY_PAUSE).await;
            }
            Err(error) if is_gone(&error) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    match client.delete::<ResourceClaim>(namespace, name, &delete_options(Some(uid(claim)), None)).await {
        Err(error) if !is_gone(&error) => Err(error),
        _ => Ok(()),
    }
}

impl Writer {
    /// Removes the allocation of a claim that keeps a pod from every node; deletes a claim for extended resources.
    /// Calls `failed` if that fails.
    pub fn deallocate(
        self: &Arc<Self>,
        info: &Arc<PodInfo>,
        claim: Arc<ResourceClaim>,
        failed: impl FnOnce() + Send + 'static,
    ) {
        let (writer, info) = (Arc::clone(self), Arc::clone(info));
        self.spawn(async move {
            let client = writer.client_for(&info);
            let annotations = claim.metadata.annotations.as_ref();
            let is_extended = annotations.is_some_and(|all| all.contains_key(crate::devices::EXTENDED_CLAIM));
            let outcome = if is_extended {
                delete_claim(&client, &claim).await
            } else {
                let mut claim = ResourceClaim::clone(&claim);
                claim.status = None;
                client.update_status(&claim).await.map(drop)
            };
            if let Err(error) = outcome {
                tracing::warn!(claim = key(&claim), pod = info.key(), %error, "failed to deallocate claim");
                failed();
            }
        });
    }
}
