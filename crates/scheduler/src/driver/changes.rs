//! Applies changes to the scheduler's state and moves the pods that they can help.

use std::sync::Arc;
use std::time::Instant;

use client::Object;
use objects::core::v1::{Node, Pod};
use objects::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use runtime::Change;

use super::Scheduler;
use super::inbox::{Input, NotBound};
use crate::devices::claims::is_allocated;
use crate::framework::{Actions, Changed};
use crate::plugins::{PluginId, PluginSet};
use crate::state::{NodeInfo, PodInfo, Table};

impl Scheduler {
    /// Applies all pending changes.
    pub(super) fn take_changes(&mut self) {
        let mut inputs = Vec::new();
        self.inbox.take(&mut inputs);
        for input in inputs {
            let (event, begin) = (input.label(), Instant::now());
            self.apply(input);
            if let (Some(metrics), Some(event)) = (&self.metrics, event) {
                metrics.handled(event, begin.elapsed());
            }
        }
    }

    fn apply(&mut self, input: Input) {
        match input {
            Input::Pod(change) => self.pod_changed(&change),
            Input::Node(change) => self.node_changed(&change),
            Input::Claim(change) => {
                keep(&mut self.cluster.objects.claims, &change);
                let (new, action) =
                    (change.object(), add_or(&change, Actions::CLAIM_ADD, Actions::CLAIM_UPDATE));
                self.wake_unless_gone(&change, action, Changed::Claim(new));
            }
            Input::Volume(change) => {
                keep(&mut self.cluster.objects.volumes, &change);
                let action = add_or(&change, Actions::VOLUME_ADD, Actions::VOLUME_UPDATE);
                let changed = Changed::Volume { old: change.old().map(|old| &**old), new: change.object() };
                self.wake_unless_gone(&change, action, changed);
            }
            Input::Class(change) => {
                keep(&mut self.cluster.objects.storage_classes, &change);
                let action = add_or(&change, Actions::CLASS_ADD, Actions::CLASS_UPDATE);
                self.wake_unless_gone(&change, action, Changed::Class(change.object()));
            }
            Input::CsiNode(change) => {
                keep(&mut self.cluster.objects.csi_nodes, &change);
                let action = add_or(&change, Actions::CSI_NODE_ADD, Actions::CSI_NODE_UPDATE);
                let changed = Changed::CsiNode { old: change.old().map(|old| &**old), new: change.object() };
                self.wake_unless_gone(&change, action, changed);
            }
            Input::CsiDriver(change) => {
                keep(&mut self.cluster.objects.csi_drivers, &change);
                self.wake(Actions::CSI_DRIVER, Changed::Other);
            }
            Input::Capacity(change) => {
                keep(&mut self.cluster.objects.csi_capacities, &change);
                self.wake_unless_gone(&change, Actions::CAPACITY, Changed::Other);
            }
            Input::Attachment(change) => {
                keep(&mut self.cluster.objects.attachments, &change);
                if matches!(change, Change::Deleted(_)) {
                    self.wake(Actions::ATTACHMENT_DELETE, Changed::Other);
                }
            }
            Input::Service(change) => keep(&mut self.cluster.objects.services, &change),
            Input::ReplicationController(change) => {
                keep(&mut self.cluster.objects.replication_controllers, &change);
            }
            Input::ReplicaSet(change) => keep(&mut self.cluster.objects.replica_sets, &change),
            Input::StatefulSet(change) => keep(&mut self.cluster.objects.stateful_sets, &change),
            Input::Budget(change) => keep(&mut self.cluster.objects.budgets, &change),
            Input::Namespace(Change::Deleted(namespace)) => {
                self.cluster.remove_namespace(namespace.metadata.name.as_deref().unwrap_or_default());
            }
            Input::Namespace(change) => self.cluster.set_namespace(change.object()),
            Input::ResourceClaim(change) => self.resource_claim_changed(&change),
            Input::DeviceClass(change) => self.device_class_changed(&change),
            Input::ResourceSlice(change) => self.resource_slice_changed(&change),
            Input::ClaimWritten(former, claim) => self.cluster.devices.written(&former, &claim),
            Input::NotBound(failure) => self.not_bound(*failure),
            Input::NotPreempted(uid) => self.queue.activate(&uid),
            Input::NotDeallocated(uid) => self.queue.retry(&uid, self.ctx.clock.now()),
        }
    }

    fn resource_claim_changed(&mut self, change: &Change<ResourceClaim>) {
        let new = change.object();
        if let Change::Deleted(claim) = change {
            self.cluster.devices.remove_claim(claim);
            if is_allocated(claim) {
                // Its devices are free. Claims for extended resources are deleted without being deallocated.
                let deallocated = ResourceClaim { status: None, ..ResourceClaim::clone(claim) };
                let changed = Changed::ResourceClaim { old: Some(claim), new: &deallocated };
                self.wake(Actions::RESOURCE_CLAIM_UPDATE, changed);
            }
            return;
        }
        self.cluster.devices.set_claim(new);
        let action = add_or(change, Actions::RESOURCE_CLAIM_ADD, Actions::RESOURCE_CLAIM_UPDATE);
        self.wake(action, Changed::ResourceClaim { old: change.old().map(|old| &**old), new });
    }

    fn device_class_changed(&mut self, change: &Change<DeviceClass>) {
        let new = change.object();
        if let Change::Deleted(class) = change {
            return self.cluster.devices.remove_class(class);
        }
        self.cluster.devices.set_class(new);
        let action = add_or(change, Actions::DEVICE_CLASS_ADD, Actions::DEVICE_CLASS_UPDATE);
        self.wake(action, Changed::DeviceClass { old: change.old().map(|old| &**old), new });
    }

    fn resource_slice_changed(&mut self, change: &Change<ResourceSlice>) {
        if let Change::Deleted(slice) = change {
            return self.cluster.devices.slices.remove(slice);
        }
        self.cluster.devices.set_slice(change.old().map(|old| &**old), change.object());
        let action = add_or(change, Actions::RESOURCE_SLICE_ADD, Actions::RESOURCE_SLICE_UPDATE);
        self.wake(action, Changed::Other);
    }

    /// Moves the pods that a change can help out of the unschedulable queue.
    pub(super) fn wake(&mut self, action: Actions, changed: Changed<'_>) {
        let mut interested = PluginSet::default();
        // The inputs of extenders are unknown.
        interested.insert(PluginId::EXTENDER);
        for served in self.profiles.values() {
            interested = interested.union(served.profile.interested(action));
        }
        if !self.queue.waits_for(interested) {
            return;
        }
        let (profiles, cluster) = (&self.profiles, &self.cluster);
        let now = self.ctx.clock.now();
        self.queue.recheck_gates(now, action.name(), interested, |info| {
            let served = profiles.get(info.scheduler_name())?;
            served.profile.gated(cluster, info).map(|(plugin, _)| plugin)
        });
        self.queue.wake(now, action.name(), |waiting| {
            waiting.rejecting.contains(PluginId::EXTENDER)
                || profiles.get(waiting.info.scheduler_name()).is_some_and(|served| {
                    served.profile.helps(waiting.rejecting, cluster, &waiting.info, action, changed)
                })
        });
    }

    fn wake_unless_gone<K>(&mut self, change: &Change<K>, action: Actions, changed: Changed<'_>) {
        if !matches!(change, Change::Deleted(_)) {
            self.wake(action, changed);
        }
    }

    fn pod_changed(&mut self, change: &Change<Pod>) {
        let info = Arc::new(PodInfo::new(Arc::clone(change.object())));
        let gone = matches!(change, Change::Deleted(_)) || info.is_finished();
        let was_placed = self.cluster.is_placed(&info.uid);
        if gone {
            self.pod_gone(&info, was_placed);
        } else if info.node_name().is_some() {
            self.queue.remove(&info.uid);
            let old = self.cluster.bound(&info.uid).cloned();
            self.cluster.set_pod(Arc::clone(&info));
            match old {
                None => self.wake(Actions::POD_ADD, Changed::Pod { old: None, new: Some(&info) }),
                Some(old) => {
                    for action in differences(&old, &info) {
                        self.wake(action, Changed::Pod { old: Some(&old), new: Some(&info) });
                    }
                }
            }
        } else if self.profiles.contains_key(info.scheduler_name()) {
            self.pod_waits(change, &info);
        }
    }

    fn pod_gone(&mut self, info: &Arc<PodInfo>, was_placed: bool) {
        let nominated = self.cluster.nomination(&info.uid).is_some();
        self.queue.remove(&info.uid);
        self.cluster.withdraw_nomination(&info.uid);
        let gone = self.cluster.remove_pod(&info.uid);
        if was_placed || nominated {
            self.wake(
                Actions::POD_DELETE,
                Changed::Pod { old: Some(gone.as_ref().unwrap_or(info)), new: None },
            );
        }
    }

    /// Handles a new or changed pod without a node.
    fn pod_waits(&mut self, change: &Change<Pod>, info: &Arc<PodInfo>) {
        if self.cluster.is_assumed(&info.uid) {
            // Its binding is in progress; if the pod is being deleted, the binding will fail, and the resources are
            // free.
            if info.terminating
                && let Some(gone) = self.cluster.forget(&info.uid)
            {
                self.wake(Actions::POD_DELETE, Changed::Pod { old: Some(&gone), new: None });
            }
            return;
        }
        let now = self.ctx.clock.now();
        let Some(served) = self.profiles.get(info.scheduler_name()) else { return };
        let gate = served.profile.gated(&self.cluster, info).map(|(plugin, _)| plugin);
        let helped = self.queue.get(&info.uid).is_some_and(|waiting| {
            let changed = Changed::Pod { old: Some(&waiting.info), new: Some(info) };
            differences(&waiting.info, info)
                .into_iter()
                .any(|action| served.profile.helps(waiting.rejecting, &self.cluster, info, action, changed))
        });
        self.queue.update(Arc::clone(info), gate, helped, now);
        let before = self.cluster.nomination(&info.uid).map(str::to_owned);
        match info.nominated_node() {
            Some(node) => self.cluster.nominate(Arc::clone(info), node),
            // The API server may not have this decision yet.
            None if change.old().is_some_and(|old| nominated(old)) => {
                self.cluster.withdraw_nomination(&info.uid);
            }
            None => {}
        }
        if before.is_some() && before.as_deref() != self.cluster.nomination(&info.uid) {
            self.wake(Actions::POD_DELETE, Changed::Pod { old: Some(info), new: None });
        }
    }

    fn node_changed(&mut self, change: &Change<Node>) {
        match change {
            Change::Added(node) => {
                self.cluster.set_node(Arc::clone(node));
                let new = detached(node);
                self.wake(Actions::NODE_ADD, Changed::Node { old: None, new: Some(&new) });
            }
            Change::Updated { old, new } => {
                self.cluster.set_node(Arc::clone(new));
                if !self.queue.has_unschedulable() {
                    return;
                }
                let (old, new) = (detached(old), detached(new));
                let changed = Changed::Node { old: Some(&old), new: Some(&new) };
                if old.allocatable != new.allocatable || old.max_pods != new.max_pods {
                    self.wake(Actions::NODE_ALLOCATABLE, changed);
                }
                if old.labels != new.labels {
                    self.wake(Actions::NODE_LABEL, changed);
                }
                if old.taints != new.taints || old.unschedulable && !new.unschedulable {
                    self.wake(Actions::NODE_TAINT, changed);
                }
            }
            Change::Deleted(node) => {
                let old = detached(node);
                self.cluster.remove_node(&old.name);
                self.wake(Actions::NODE_DELETE, Changed::Node { old: Some(&old), new: None });
            }
        }
    }

    fn not_bound(&mut self, failure: NotBound) {
        let NotBound { mut pod, reserved, error, settled } = failure;
        if let Some(served) = self.profiles.get(pod.info.scheduler_name()) {
            for enabled in &served.profile.reserves {
                enabled.plugin.unreserve(&mut self.cluster, &reserved);
            }
        }
        if let Some(gone) = self.cluster.forget(&pod.info.uid) {
            self.wake(Actions::POD_DELETE, Changed::Pod { old: Some(&gone), new: None });
        }
        if reserved.devices.iter().any(|binding| binding.allocation.is_some()) {
            self.wake(Actions::RESOURCE_CLAIM_UPDATE, Changed::Other);
        }
        // The pod may have changed or been deleted while its binding was in progress.
        let latest = self.pods.get(&pod.info.namespace, &pod.info.name);
        let latest = latest.filter(|latest| latest.metadata.uid.as_deref() == Some(&*pod.info.uid));
        let Some(latest) = latest.filter(|_| !settled) else { return };
        let info = PodInfo::new(latest);
        if info.node_name().is_none() && !info.is_finished() {
            pod.info = Arc::new(info);
            self.give_up(pod, &error, false);
        }
    }
}

fn nominated(pod: &Pod) -> bool {
    let node = pod.status.as_ref().and_then(|status| status.nominated_node_name.as_deref());
    node.is_some_and(|node| !node.is_empty())
}

fn detached(node: &Arc<Node>) -> NodeInfo {
    let mut info = NodeInfo::new(usize::MAX, node.metadata.name.as_deref().unwrap_or_default());
    info.set_node(Arc::clone(node));
    info
}

fn keep<K: Object>(table: &mut Table<K>, change: &Change<K>) {
    match change {
        Change::Deleted(object) => table.remove(object),
        _ => table.set(Arc::clone(change.object())),
    }
}

fn add_or<K>(change: &Change<K>, added: Actions, updated: Actions) -> Actions {
    if matches!(change, Change::Added(_)) { added } else { updated }
}

/// Changes of a pod that are relevant to scheduling.
fn differences(old: &PodInfo, new: &PodInfo) -> Vec<Actions> {
    let gates = |pod: &PodInfo| {
        pod.spec().and_then(|spec| spec.scheduling_gates.as_ref()).is_some_and(|gates| !gates.is_empty())
    };
    let mut actions = Vec::new();
    if old.labels != new.labels {
        actions.push(Actions::POD_LABEL);
    }
    if old.requests.exact.shrinks_to(&new.requests.exact) {
        actions.push(Actions::POD_SCALE_DOWN);
    }
    if gates(old) && !gates(new) {
        actions.push(Actions::POD_GATES);
    }
    if claim_statuses(&old.pod) != claim_statuses(&new.pod) {
        actions.push(Actions::POD_GENERATED_CLAIM);
    }
    if old.tolerations.len() != new.tolerations.len() {
        actions.push(Actions::POD_TOLERATION);
    }
    actions
}

/// Names of the claims that were made for a pod.
fn claim_statuses(pod: &Pod) -> impl PartialEq + '_ {
    let status = pod.status.as_ref();
    status.map(|status| (&status.resource_claim_statuses, &status.extended_resource_claim_status))
}
