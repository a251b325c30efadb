//! The replica set loop. Watches replica sets and pods; creates and deletes pods, writes the status of replica sets.
//!
//! Invariant: a replica set has as many active pods as its `replicas`. The mechanism is in [`crate::replicas`].

use objects::apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetSpec, ReplicaSetStatus};
use runtime::{Context, Descriptor, Loop};

use crate::replicas::{Replicas, replicated};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "replicaset-controller",
    resource: "replicasets.apps",
    identity: "system:serviceaccount:kube-system:replicaset-controller",
    workers: 5,
};

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    Box::new(Replicas::<ReplicaSet>::new(ctx))
}

replicated! {
    ReplicaSet, ReplicaSetStatus, ReplicaSetCondition,
    selector: |spec: &ReplicaSetSpec| spec.selector.clone(),
    terminating: terminating_replicas,
}
