//! The replication controller loop. Watches replication controllers and pods; creates and deletes pods, writes the
//! status of replication controllers.
//!
//! Invariant: a replication controller has as many active pods as its `replicas`. The mechanism is in
//! [`crate::replicas`].

use objects::core::v1::{
    ReplicationController, ReplicationControllerCondition, ReplicationControllerSpec,
    ReplicationControllerStatus,
};
use objects::meta::v1::LabelSelector;
use runtime::{Context, Descriptor, Loop};

use crate::replicas::{Replicas, replicated};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "replicationcontroller-controller",
    resource: "replicationcontrollers",
    identity: "system:serviceaccount:kube-system:replication-controller",
    workers: 5,
};

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    Box::new(Replicas::<ReplicationController>::new(ctx))
}

replicated! {
    ReplicationController, ReplicationControllerStatus, ReplicationControllerCondition,
    selector: |spec: &ReplicationControllerSpec| LabelSelector {
        match_labels: spec.selector.clone(),
        match_expressions: None,
    },
}
