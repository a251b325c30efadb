//! The volume binder. Watches claims, volumes and storage classes; binds each claim to a volume and each volume to
//! its claim, requests provisioning, and sets the phase of volumes whose claim is deleted.
//!
//! Invariant: a volume is reserved (its reference names the claim by uid) before a claim names it, so two claims
//! never share one. A single worker prevents races of claims for one volume.

mod counted;
pub mod plan;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use async_trait::async_trait;
use client::ClientError;
use objects::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use objects::storage::v1::StorageClass;
use runtime::{Action, Cache, Change, Context, Descriptor, Key, Loop, LoopError};

pub use self::plan::claim_class;
use self::plan::{
    BIND_COMPLETED, BOUND_BY_CONTROLLER, PROVISIONED_BY, PROVISIONER, SELECTED_NODE, annotation, name,
};
use crate::shared::metrics;
use crate::shared::pod_facts::claims_of;

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "persistentvolume-binder-controller",
    resource: "persistentvolumeclaims",
    identity: "system:serviceaccount:kube-system:persistent-volume-binder",
    workers: 1,
};

#[derive(Debug, thiserror::Error)]
#[error("claim {claim} is bound to volume {volume}, which belongs to another claim")]
struct Misbound {
    claim: String,
    volume: String,
}

struct Binder {
    claims: Cache<PersistentVolumeClaim>,
    volumes: Cache<PersistentVolume>,
    classes: Cache<StorageClass>,
    pods: Cache<Pod>,
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    let claims = ctx.watch::<PersistentVolumeClaim>(|change| {
        let claim = change.object();
        let mut keys = vec![Key::of(&**claim)];
        let volume =
            claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).filter(|name| !name.is_empty());
        keys.extend(volume.map(|volume| Key::new("", volume)));
        keys
    });
    let all = claims.clone();
    let volumes = ctx.watch::<PersistentVolume>(move |change| {
        let volume = change.object();
        let mut keys = vec![Key::of(&**volume)];
        let references = [Some(volume), change.old()].into_iter().flatten();
        for reference in references.filter_map(|volume| volume.spec.as_ref()?.claim_ref.as_ref()) {
            let (namespace, name) = (reference.namespace.as_deref(), reference.name.as_deref());
            keys.push(Key::new(namespace.unwrap_or_default(), name.unwrap_or_default()));
        }
        // A pending claim may use the released volume.
        let free = |volume: &PersistentVolume| {
            volume.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Available")
        };
        if !matches!(change, Change::Deleted(_)) && free(volume) && !change.old().is_some_and(|old| free(old))
        {
            keys.extend(all.all().iter().filter(|claim| is_unbound(claim)).map(|claim| Key::of(&**claim)));
        }
        keys
    });
    let all = claims.clone();
    let classes = ctx.watch::<StorageClass>(move |_| {
        all.all().iter().filter(|claim| is_unbound(claim)).map(|claim| Key::of(&**claim)).collect()
    });
    if let Some(metrics) = metrics::of(ctx) {
        counted::show(ctx, &metrics.volumes, &volumes, &claims);
    }
    Box::new(Binder { claims, volumes, classes, pods: ctx.cache() })
}

fn is_unbound(claim: &PersistentVolumeClaim) -> bool {
    claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).unwrap_or_default().is_empty()
}

#[async_trait]
impl Loop for Binder {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        if key.namespace.is_empty() {
            if let Some(volume) = self.volumes.get("", &key.name) {
                self.sync_volume(&volume, ctx).await?;
            }
            return Ok(Action::Done);
        }
        let Some(claim) = self.claims.get_key(key) else { return Ok(Action::Done) };
        if annotation(&claim.metadata, BIND_COMPLETED).is_some() {
            self.sync_bound(&claim, ctx).await?;
        } else {
            self.sync_unbound(&claim, ctx).await?;
        }
        Ok(Action::Done)
    }
}

impl Binder {
    async fn sync_unbound(&self, claim: &PersistentVolumeClaim, ctx: &Context) -> Result<(), LoopError> {
        let named = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).unwrap_or_default();
        if named.is_empty() {
            return self.find(claim, ctx).await;
        }
        let Some(volume) = self.volumes.get("", &named) else {
            return Ok(set_phase(claim, "Pending", None, ctx).await?);
        };
        let free = volume.spec.as_ref().is_none_or(|spec| spec.claim_ref.is_none());
        if let Some(why) = plan::check(&volume, claim).err().filter(|_| free) {
            let note = format!("Cannot bind to requested volume {named:?}: {why}");
            ctx.recorder.warning(claim, "VolumeMismatch", note);
            return Ok(set_phase(claim, "Pending", None, ctx).await?);
        }
        if free || plan::is_meant_for(&volume, claim) {
            return Ok(bind(&volume, claim, ctx).await?);
        }
        let note = format!("volume {named:?} already bound to a different claim.");
        ctx.recorder.warning(claim, "FailedBinding", note);
        if annotation(&claim.metadata, BOUND_BY_CONTROLLER).is_some() {
            return Err(Misbound { claim: name(&claim.metadata).to_owned(), volume: named }.into());
        }
        Ok(set_phase(claim, "Pending", None, ctx).await?)
    }

    /// Finds a volume for a claim that names none, or requests one.
    async fn find(&self, claim: &PersistentVolumeClaim, ctx: &Context) -> Result<(), LoopError> {
        let class_name = claim_class(claim);
        let class = self.classes.get("", &class_name);
        let waits = class.as_ref().and_then(|class| class.volume_binding_mode.as_deref())
            == Some("WaitForFirstConsumer");
        let volumes = self.volumes.all();
        if let Some(volume) = plan::best(claim, &volumes, waits) {
            return Ok(bind(volume, claim, ctx).await?);
        }
        let has_no_class = claim.spec.as_ref().is_some_and(|spec| spec.storage_class_name.is_none())
            && claim_class(claim).is_empty();
        if let Some(default) = plan::default_class(&self.classes.all()).filter(|_| has_no_class) {
            let mut updated = claim.clone();
            updated.spec.get_or_insert_default().storage_class_name.clone_from(&default.metadata.name);
            let updated = ctx.client.update(&updated).await;
            if let Some(metrics) = metrics::of(ctx).map(|metrics| &metrics.volumes) {
                metrics.retroactive.inc();
                metrics.retroactive_errors.inc_by(u64::from(updated.is_err()));
            }
            updated?;
            return Ok(());
        }
        let chosen = annotation(&claim.metadata, SELECTED_NODE).is_some();
        if waits && !chosen {
            let (reason, note) = self.pending_reason(claim);
            ctx.recorder.normal(claim, reason, note);
        } else if !class_name.is_empty() {
            self.provision(claim, &class_name, class, ctx).await?;
        } else {
            let note = "no persistent volumes available for this claim and no storage class is set";
            ctx.recorder.normal(claim, "FailedBinding", note);
        }
        // Provisioning may have changed the claim; the phase is that of an unbound claim in any case.
        match set_phase(claim, "Pending", None, ctx).await {
            Err(error) if error.is_conflict() => Ok(()),
            other => Ok(other?),
        }
    }

    fn pending_reason(&self, claim: &PersistentVolumeClaim) -> (&'static str, String) {
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        let wanted = name(&claim.metadata).to_owned();
        let waiting = |pod: &Pod| {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default();
            node.is_empty() && claims_of(pod).contains(&wanted)
        };
        let pods = self.pods.list(namespace);
        let names: Vec<_> = pods.iter().filter(|pod| waiting(pod)).map(|pod| name(&pod.metadata)).collect();
        match names[..] {
            [] => {
                ("WaitForFirstConsumer", "waiting for first consumer to be created before binding".to_owned())
            }
            [one] => ("WaitForPodScheduled", format!("waiting for pod {one} to be scheduled")),
            _ => ("WaitForPodScheduled", format!("waiting for pods {} to be scheduled", names.join(","))),
        }
    }

    /// Requests a volume from the provisioner of the class.
    async fn provision(
        &self,
        claim: &PersistentVolumeClaim,
        class_name: &str,
        class: Option<Arc<StorageClass>>,
        ctx: &Context,
    ) -> Result<(), ClientError> {
        let Some(class) = class else {
            let note = format!("storageclass.storage.k8s.io {class_name:?} not found");
            ctx.recorder.warning(claim, "ProvisioningFailed", note);
            return Ok(());
        };
        let provisioner = &class.provisioner;
        if provisioner == "kubernetes.io/no-provisioner" {
            let note = format!("no volume plugin matched name: {provisioner}");
            ctx.recorder.warning(claim, "ProvisioningFailed", note);
            return Ok(());
        }
        if PROVISIONER.iter().any(|key| annotation(&claim.metadata, key) != Some(provisioner)) {
            let mut updated = claim.clone();
            let annotations = updated.metadata.annotations.get_or_insert_default();
            for key in PROVISIONER {
                annotations.insert(key.to_owned(), provisioner.clone());
            }
            ctx.client.update(&updated).await?;
        }
        let note = format!(
            "Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by the system administrator. If volume creation is delayed, please verify that the provisioner is running and correctly registered."
        );
        ctx.recorder.normal(claim, "ExternalProvisioning", note);
        Ok(())
    }

    async fn sync_bound(&self, claim: &PersistentVolumeClaim, ctx: &Context) -> Result<(), ClientError> {
        let named = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).unwrap_or_default();
        let lost = |reason: &'static str, note: &'static str| async move {
            let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
            if phase != Some("Lost") {
                ctx.recorder.warning(claim, reason, note);
            }
            set_phase(claim, "Lost", None, ctx).await
        };
        if named.is_empty() {
            let note = "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!";
            return lost("ClaimLost", note).await;
        }
        let Some(volume) = self.volumes.get("", &named) else {
            return lost(
                "ClaimLost",
                "Bound claim has lost its PersistentVolume. Data on the volume is lost!",
            )
            .await;
        };
        let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        if reference.is_none_or(|reference| reference.uid == claim.metadata.uid)
            || plan::is_meant_for(&volume, claim)
        {
            return bind(&volume, claim, ctx).await;
        }
        lost("ClaimMisbound", "Two claims are bound to the same volume, this one is bound incorrectly").await
    }

    async fn sync_volume(&self, volume: &PersistentVolume, ctx: &Context) -> Result<(), LoopError> {
        let now = ctx.clock.now();
        let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.clone());
        let Some(uid) =
            reference.as_ref().and_then(|reference| reference.uid.clone()).filter(|uid| !uid.is_empty())
        else {
            write_phase(plan::in_phase(volume, "Available", "", now), ctx).await?;
            return Ok(());
        };
        let reference = reference.unwrap_or_default();
        let (namespace, claim_name) =
            (reference.namespace.unwrap_or_default(), reference.name.unwrap_or_default());
        let mut claim = self.claims.get(&namespace, &claim_name).map(|claim| claim.as_ref().clone());
        if claim.as_ref().is_none_or(|claim| claim.metadata.uid.as_ref() != Some(&uid)) {
            // The cache of claims may be older than that of volumes.
            claim = match ctx.client.get::<PersistentVolumeClaim>(&namespace, &claim_name).await {
                Ok(live) => Some(live).filter(|live| live.metadata.uid.as_ref() == Some(&uid)),
                Err(error) if error.is_not_found() => None,
                Err(error) => return Err(error.into()),
            };
        }
        let Some(claim) = claim else { return Ok(self.release(volume, ctx).await?) };
        let named = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).unwrap_or_default();
        if named.is_empty() {
            if !plan::modes_match(volume, &claim) {
                let note = format!(
                    "Cannot bind PersistentVolume to requested PersistentVolumeClaim {claim_name:?} due to incompatible volumeMode."
                );
                ctx.recorder.warning(volume, "VolumeMismatch", note);
            }
            ctx.queue.add(Key::of(&claim));
        } else if named == name(&volume.metadata) {
            write_phase(plan::in_phase(volume, "Bound", "", now), ctx).await?;
        } else if annotation(&volume.metadata, PROVISIONED_BY).is_some() && reclaim_policy(volume) == "Delete"
        {
            self.release(volume, ctx).await?;
        } else {
            let freed = ctx.client.update(&plan::unbound(volume)).await?;
            write_phase(plan::in_phase(&freed, "Available", "", now), ctx).await?;
        }
        Ok(())
    }

    /// Applies the reclaim policy: the claim is deleted.
    async fn release(&self, volume: &PersistentVolume, ctx: &Context) -> Result<(), ClientError> {
        let now = ctx.clock.now();
        let phase = volume.status.as_ref().and_then(|status| status.phase.clone());
        let mut volume = volume.clone();
        let released = plan::in_phase(&volume, "Released", "", now);
        let released = released.filter(|_| !matches!(phase.as_deref(), Some("Released" | "Failed")));
        if let Some(released) = write_phase(released, ctx).await? {
            volume = released;
        }
        // The external provisioner deletes it.
        let provisioned = annotation(&volume.metadata, PROVISIONED_BY).is_some();
        let (reason, message) = match reclaim_policy(&volume) {
            "Delete" if !provisioned => {
                let volume = name(&volume.metadata);
                let why = format!(
                    "error getting deleter volume plugin for volume {volume:?}: no volume plugin matched"
                );
                ("VolumeFailedDelete", why)
            }
            "Recycle" => ("VolumeFailedRecycle", "No recycler plugin found for the volume!".to_owned()),
            _ => return Ok(()),
        };
        if let Some(failed) = write_phase(plan::in_phase(&volume, "Failed", &message, now), ctx).await? {
            ctx.recorder.warning(&failed, reason, message);
        }
        Ok(())
    }
}

fn reclaim_policy(volume: &PersistentVolume) -> &str {
    let spec = volume.spec.as_ref();
    spec.and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref()).unwrap_or("Retain")
}

/// Reserves the volume, then binds the claim; completed steps are skipped.
async fn bind(
    volume: &PersistentVolume,
    claim: &PersistentVolumeClaim,
    ctx: &Context,
) -> Result<(), ClientError> {
    let mut volume = volume.clone();
    if let Some(reserved) = plan::reserve(&volume, claim) {
        volume = ctx.client.update(&reserved).await?;
    }
    if let Some(bound) = write_phase(plan::in_phase(&volume, "Bound", "", ctx.clock.now()), ctx).await? {
        volume = bound;
    }
    let mut claim = claim.clone();
    if let Some(taken) = plan::take(&claim, &volume) {
        claim = ctx.client.update(&taken).await?;
    }
    set_phase(&claim, "Bound", Some(&volume), ctx).await
}

async fn set_phase(
    claim: &PersistentVolumeClaim,
    phase: &str,
    volume: Option<&PersistentVolume>,
    ctx: &Context,
) -> Result<(), ClientError> {
    let Some(status) = plan::claim_status(claim, phase, volume) else { return Ok(()) };
    let updated = PersistentVolumeClaim { status: Some(status), ..claim.clone() };
    ctx.client.update_status(&updated).await.map(|_| ())
}

async fn write_phase(
    changed: Option<PersistentVolume>,
    ctx: &Context,
) -> Result<Option<PersistentVolume>, ClientError> {
    match changed {
        None => Ok(None),
        Some(changed) => ctx.client.update_status(&changed).await.map(Some),
    }
}
