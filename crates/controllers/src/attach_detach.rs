//! The attach-detach loop. Watches nodes, pods, claims, volumes and attachments; keeps a VolumeAttachment for every
//! CSI volume that a pod on a node needs, and lists attached volumes in the node's status.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use client::{Patch, delete_options};
use objects::core::v1::{AttachedVolume, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use objects::csi_migration::csi_source;
use objects::meta::v1::ObjectMeta;
use objects::storage::v1::{CSIDriver, VolumeAttachment, VolumeAttachmentSource, VolumeAttachmentSpec};
use runtime::{Action, Cache, Context, Descriptor, Key, Loop, LoopError};
use serde_json::json;

use crate::node_lifecycle::{BY_NODE, index_by_node};
use crate::shared::pod_facts::claims_of;
use crate::shared::{metrics, pod_facts};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "persistentvolume-attach-detach-controller",
    resource: "nodes",
    identity: "system:serviceaccount:kube-system:attachdetach-controller",
    workers: 4,
};

/// Time for which an unresponsive node keeps its volumes after its pods are deleted: it may still write.
const FORCE_DETACH: std::time::Duration = std::time::Duration::from_secs(6 * 60);

#[derive(Clone)]
struct AttachDetach {
    nodes: Cache<Node>,
    pods: Cache<Pod>,
    claims: Cache<PersistentVolumeClaim>,
    volumes: Cache<PersistentVolume>,
    drivers: Cache<CSIDriver>,
    attachments: Cache<VolumeAttachment>,
}

/// A volume to attach: its unique name as used by kubelets.
#[derive(Clone, Debug, PartialEq, Eq)]
struct AttachableVolume {
    volume: String,
    driver: String,
    handle: String,
}

impl AttachableVolume {
    fn unique_name(&self) -> String {
        format!("kubernetes.io/csi/{}^{}", self.driver, self.handle)
    }

    fn plugin(&self) -> String {
        format!("kubernetes.io/csi:{}", self.driver)
    }

    fn attachment_name(&self, node: &str) -> String {
        let text = format!("{}{}{node}", self.handle, self.driver);
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text.as_bytes());
        let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        format!("csi-{hex}")
    }
}

/// True if this loop created an attachment of this name; other attachments are left to their creators.
fn is_ours(name: &str) -> bool {
    name.strip_prefix("csi-")
        .is_some_and(|hash| hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit()))
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    let nodes = ctx.watch::<Node>(|change| {
        let used = |node: &Node| node.status.as_ref().and_then(|status| status.volumes_in_use.clone());
        match change.old() {
            Some(old) if used(old) == used(change.object()) => Vec::new(),
            _ => vec![Key::of(&**change.object())],
        }
    });
    let pods = ctx.watch::<Pod>(|change| {
        let pod = change.object();
        let node =
            pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).filter(|node| !node.is_empty());
        node.filter(|_| !claims_of(pod).is_empty()).map(|node| Key::new("", node)).into_iter().collect()
    });
    index_by_node(&pods);
    let attachments =
        ctx.watch::<VolumeAttachment>(|change| vec![Key::new("", &change.object().spec.node_name)]);
    let all_pods = pods.clone();
    let claims = ctx.watch::<PersistentVolumeClaim>(move |change| {
        let claim = change.object();
        let volume =
            |claim: &PersistentVolumeClaim| claim.spec.as_ref().and_then(|spec| spec.volume_name.clone());
        if change.old().is_some_and(|old| volume(old) == volume(claim)) {
            return Vec::new();
        }
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        let name = claim.metadata.name.clone().unwrap_or_default();
        let users = all_pods.list(namespace).into_iter().filter(|pod| claims_of(pod).contains(&name));
        let nodes =
            users.filter_map(|pod| pod.spec.as_ref()?.node_name.clone()).filter(|node| !node.is_empty());
        nodes.map(|node| Key::new("", &node)).collect()
    });
    let work = AttachDetach { nodes, pods, claims, volumes: ctx.cache(), drivers: ctx.cache(), attachments };
    if let Some(metrics) = metrics::of(ctx).map(|metrics| &metrics.volumes) {
        let all = work.clone();
        metrics.attachable.compute(&ctx.tasks, move |rows| {
            let row =
                |volume: &AttachableVolume, state| rows.with_label_values(&[&*volume.plugin(), state]).inc();
            for (_, wanted) in all.wanted_by_node() {
                wanted.values().for_each(|volume| row(volume, "desired_state_of_world"));
            }
            let is_attached =
                |known: &&Arc<VolumeAttachment>| known.status.as_ref().is_some_and(|status| status.attached);
            for volume in all.attachments.all().iter().filter(is_attached).filter_map(|a| all.volume_of(a)) {
                row(&volume, "actual_state_of_world");
            }
        });
        let all = work.clone();
        metrics.in_use.compute(&ctx.tasks, move |rows| {
            for (node, wanted) in all.wanted_by_node() {
                for volume in wanted.values() {
                    rows.with_label_values(&[&node, &volume.plugin()]).inc();
                }
            }
        });
    }
    Box::new(work)
}

#[async_trait]
impl Loop for AttachDetach {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let node = self.nodes.get_key(key);
        let wanted = if node.is_some() { self.wanted(&key.name) } else { BTreeMap::new() };
        let attachments: Vec<_> =
            self.attachments.all().into_iter().filter(|known| *known.spec.node_name == *key.name).collect();
        let in_use: BTreeSet<String> = node
            .iter()
            .flat_map(|node| node.status.iter().flat_map(|s| s.volumes_in_use.iter().flatten()))
            .cloned()
            .collect();
        for (name, volume) in &wanted {
            if attachments.iter().any(|known| known.metadata.name.as_ref() == Some(name)) {
                continue;
            }
            let attachment = VolumeAttachment {
                metadata: ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() },
                spec: VolumeAttachmentSpec {
                    attacher: volume.driver.clone(),
                    node_name: key.name.to_string(),
                    source: VolumeAttachmentSource {
                        persistent_volume_name: Some(volume.volume.clone()),
                        inline_volume_spec: None,
                    },
                },
                status: None,
            };
            match ctx.client.create("", &attachment).await {
                Err(error) if !error.is_already_exists() => return Err(error.into()),
                _ => {}
            }
        }
        let mut attached = BTreeSet::new();
        let mut waiting = false;
        for known in &attachments {
            let name = known.metadata.name.clone().unwrap_or_default();
            let volume = self.volume_of(known);
            let is_attached = known.status.as_ref().is_some_and(|status| status.attached);
            if let (Some(volume), true) = (&volume, is_attached) {
                attached.insert(volume.unique_name());
            }
            let is_going = known.metadata.deletion_timestamp.is_some();
            if wanted.contains_key(&name) || is_going || !is_ours(&name) {
                continue;
            }
            // The kubelet still has it mounted.
            if volume.as_ref().is_some_and(|volume| in_use.contains(&volume.unique_name())) {
                waiting = true;
                continue;
            }
            let options = delete_options(known.metadata.uid.as_deref(), None);
            match ctx.client.delete::<VolumeAttachment>("", &name, &options).await {
                Err(error) if !error.is_not_found() => return Err(error.into()),
                _ => {}
            }
        }
        if let Some(node) = node {
            let before: BTreeSet<String> = node
                .status
                .iter()
                .flat_map(|status| status.volumes_attached.iter().flatten())
                .map(|volume| volume.name.clone())
                .collect();
            if before != attached {
                let list: Vec<_> = attached
                    .into_iter()
                    .map(|name| AttachedVolume { name, device_path: String::new() })
                    .collect();
                let patch = Patch::Merge(json!({ "status": { "volumesAttached": list } }));
                ctx.client.patch::<Node>("", &key.name, Some("status"), &patch).await?;
            }
        }
        Ok(if waiting { Action::RequeueAfter(FORCE_DETACH) } else { Action::Done })
    }
}

impl AttachDetach {
    /// Attachments that pods need, by node.
    fn wanted_by_node(&self) -> Vec<(String, BTreeMap<String, AttachableVolume>)> {
        if self.volumes.count() == 0 {
            return Vec::new();
        }
        let names = self.nodes.all().into_iter().filter_map(|node| node.metadata.name.clone());
        names.map(|name| (name.clone(), self.wanted(&name))).collect()
    }

    /// Attachments that the pods of a node need, by name.
    fn wanted(&self, node: &str) -> BTreeMap<String, AttachableVolume> {
        let mut wanted = BTreeMap::new();
        for pod in self.pods.indexed(BY_NODE, node) {
            if pod_facts::is_finished(&pod) {
                continue;
            }
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            for claim in claims_of(&pod) {
                let claim = self.claims.get(namespace, &claim);
                let volume = claim.and_then(|claim| claim.spec.as_ref()?.volume_name.clone());
                let volume = volume.and_then(|name| self.volumes.get("", &name));
                if let Some(volume) = volume.and_then(|volume| self.attachable(&volume)) {
                    wanted.insert(volume.attachment_name(node), volume);
                }
            }
        }
        wanted
    }

    /// CSI volumes, and those of migrated in-tree plugins, are attached unless their driver sets `attachRequired:
    /// false`.
    fn attachable(&self, volume: &PersistentVolume) -> Option<AttachableVolume> {
        let csi = csi_source(volume)?;
        let driver = self.drivers.get("", &csi.driver);
        if driver.is_some_and(|driver| driver.spec.attach_required == Some(false)) {
            return None;
        }
        Some(AttachableVolume {
            volume: volume.metadata.name.clone()?,
            driver: csi.driver.clone(),
            handle: csi.volume_handle.clone(),
        })
    }

    fn volume_of(&self, attachment: &VolumeAttachment) -> Option<AttachableVolume> {
        let name = attachment.spec.source.persistent_volume_name.as_deref()?;
        let volume = self.volumes.get("", name)?;
        let csi = csi_source(&volume)?;
        Some(AttachableVolume {
            volume: name.to_owned(),
            driver: csi.driver.clone(),
            handle: csi.volume_handle.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attachment_names_match_kubernetes() {
        let volume =
            AttachableVolume { volume: "pv".into(), driver: "d.example.com".into(), handle: "h".into() };
        assert_eq!(volume.unique_name(), "kubernetes.io/csi/d.example.com^h");
        let name = volume.attachment_name("n");
        assert!(name.starts_with("csi-") && name.len() == 68, "{name}");
        assert_ne!(name, volume.attachment_name("m"));
        assert!(is_ours(&name) && !is_ours("va-e2e-d86ml") && !is_ours("csi-mine"));
    }
}
