//! Queue of cluster changes and write results for the scheduling task.

use std::sync::Arc;

use client::Object;
use objects::apps::v1::{ReplicaSet, StatefulSet};
use objects::core::v1::{
    Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, ReplicationController, Service,
};
use objects::policy::v1::PodDisruptionBudget;
use objects::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use objects::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment};
use parking_lot::Mutex;
use runtime::{Change, Informers};
use tokio::sync::Notify;

use crate::framework::BeforeBinding;
use crate::queue::QueuedPod;

/// Message to the scheduling task.
pub enum Input {
    Pod(Change<Pod>),
    Node(Change<Node>),
    Claim(Change<PersistentVolumeClaim>),
    Volume(Change<PersistentVolume>),
    Class(Change<StorageClass>),
    CsiNode(Change<CSINode>),
    CsiDriver(Change<CSIDriver>),
    Capacity(Change<CSIStorageCapacity>),
    Attachment(Change<VolumeAttachment>),
    Service(Change<Service>),
    ReplicationController(Change<ReplicationController>),
    ReplicaSet(Change<ReplicaSet>),
    StatefulSet(Change<StatefulSet>),
    Budget(Change<PodDisruptionBudget>),
    Namespace(Change<Namespace>),
    ResourceClaim(Change<ResourceClaim>),
    DeviceClass(Change<DeviceClass>),
    ResourceSlice(Change<ResourceSlice>),
    /// Binding an assumed pod failed.
    NotBound(Box<NotBound>),
    /// A claim was written that had been assumed under this UID.
    ClaimWritten(String, Arc<ResourceClaim>),
    /// Evictions for this pod failed at least in part.
    NotPreempted(Arc<str>),
    /// Deallocating a claim of this pod failed.
    NotDeallocated(Arc<str>),
}

impl Input {
    /// Event of a change as a label of metrics; `None` for results of the scheduler itself.
    pub fn label(&self) -> Option<&'static str> {
        fn of<K>(change: &Change<K>, labels: [&'static str; 3]) -> Option<&'static str> {
            let [added, updated, deleted] = labels;
            Some(match change {
                Change::Added(_) => added,
                Change::Updated { .. } => updated,
                Change::Deleted(_) => deleted,
            })
        }
        macro_rules! labels {
            ($resource:literal) => {
                [concat!($resource, "Add"), concat!($resource, "Update"), concat!($resource, "Delete")]
            };
        }
        match self {
            Self::Pod(change) => {
                let spec = change.object().spec.as_ref();
                let is_assigned =
                    spec.and_then(|spec| spec.node_name.as_ref()).is_some_and(|node| !node.is_empty());
                of(change, if is_assigned { labels!("AssignedPod") } else { labels!("UnschedulablePod") })
            }
            Self::Node(change) => of(change, labels!("Node")),
            Self::Claim(change) => of(change, labels!("PersistentVolumeClaim")),
            Self::Volume(change) => of(change, labels!("PersistentVolume")),
            Self::Class(change) => of(change, labels!("storage.k8s.io/StorageClass")),
            Self::CsiNode(change) => of(change, labels!("storage.k8s.io/CSINode")),
            Self::CsiDriver(change) => of(change, labels!("storage.k8s.io/CSIDriver")),
            Self::Capacity(change) => of(change, labels!("storage.k8s.io/CSIStorageCapacity")),
            Self::Attachment(change) => of(change, labels!("storage.k8s.io/VolumeAttachment")),
            Self::ResourceClaim(change) => of(change, labels!("resource.k8s.io/ResourceClaim")),
            Self::DeviceClass(change) => of(change, labels!("resource.k8s.io/DeviceClass")),
            Self::ResourceSlice(change) => of(change, labels!("resource.k8s.io/ResourceSlice")),
            _ => None,
        }
    }
}

pub struct NotBound {
    pub pod: QueuedPod,
    pub reserved: BeforeBinding,
    pub error: String,
    /// The pod is deleted or already has a node.
    pub settled: bool,
}

#[derive(Default)]
pub struct Inbox {
    inputs: Mutex<Vec<Input>>,
    filled: Notify,
}

impl Inbox {
    pub fn put(&self, input: Input) {
        let mut inputs = self.inputs.lock();
        inputs.push(input);
        if inputs.len() == 1 {
            self.filled.notify_one();
        }
    }

    /// Swaps the pending messages for an empty list, whose allocation is reused.
    pub fn take(&self, into: &mut Vec<Input>) {
        into.clear();
        std::mem::swap(&mut *self.inputs.lock(), into);
    }

    /// Waits for a message.
    pub async fn filled(&self) {
        if self.inputs.lock().is_empty() {
            self.filled.notified().await;
        }
    }
}

/// Sends every change of the watched kinds to the inbox; completes when all caches have synced.
pub fn follow(informers: &Informers, inbox: &Arc<Inbox>) -> impl Future<Output = ()> + use<> {
    let nodes = one(informers, inbox, Input::Node);
    let namespaces = one(informers, inbox, Input::Namespace);
    let claims = one(informers, inbox, Input::Claim);
    let volumes = one(informers, inbox, Input::Volume);
    let classes = one(informers, inbox, Input::Class);
    let csi_nodes = one(informers, inbox, Input::CsiNode);
    let csi_drivers = one(informers, inbox, Input::CsiDriver);
    let capacities = one(informers, inbox, Input::Capacity);
    let attachments = one(informers, inbox, Input::Attachment);
    let services = one(informers, inbox, Input::Service);
    let controllers = one(informers, inbox, Input::ReplicationController);
    let replica_sets = one(informers, inbox, Input::ReplicaSet);
    let stateful_sets = one(informers, inbox, Input::StatefulSet);
    let budgets = one(informers, inbox, Input::Budget);
    let resource_claims = one(informers, inbox, Input::ResourceClaim);
    let device_classes = one(informers, inbox, Input::DeviceClass);
    let resource_slices = one(informers, inbox, Input::ResourceSlice);
    let pods = one(informers, inbox, Input::Pod);
    async move {
        tokio::join!(nodes, namespaces, claims, volumes, classes, csi_nodes, csi_drivers, capacities);
        tokio::join!(attachments, services, controllers, replica_sets, stateful_sets, budgets, pods);
        tokio::join!(resource_claims, device_classes, resource_slices);
    }
}

fn one<K: Object>(
    informers: &Informers,
    inbox: &Arc<Inbox>,
    wrap: fn(Change<K>) -> Input,
) -> impl Future<Output = ()> + use<K> {
    let cache = informers.of::<K>();
    // A restarted scheduler has a new inbox; this one is no longer drained.
    let inbox = Arc::downgrade(inbox);
    cache.on_event(move |change| {
        if let Some(inbox) = inbox.upgrade() {
            inbox.put(wrap(change.clone()));
        }
    });
    async move { cache.synced().await }
}
