//! The replica set loop. Watches replica sets and pods; creates and deletes pods, writes the status of replica sets.
//!
//! Invariant: as many active pods match a replica set as it asks for. The mechanism is in [`crate::replicas`].

use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetStatus};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use runtime::{Context, Descriptor, Loop};

use crate::replicas::{Condition, Replicas, Replicated, Status};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "replicaset-controller",
    resource: "replicasets.apps",
    identity: "system:serviceaccount:kube-system:replicaset-controller",
    workers: 5,
};

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    Box::new(Replicas::<ReplicaSet>::new(ctx))
}

impl Replicated for ReplicaSet {
    const COUNTS_TERMINATING: bool = true;

    fn replicas(&self) -> i32 {
        self.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
    }

    fn min_ready_seconds(&self) -> i32 {
        self.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0)
    }

    fn selector(&self) -> LabelSelector {
        self.spec.as_ref().map(|spec| spec.selector.clone()).unwrap_or_default()
    }

    fn template(&self) -> Option<&PodTemplateSpec> {
        self.spec.as_ref()?.template.as_ref()
    }

    fn status(&self) -> Status {
        let status = self.status.clone().unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default().into_iter().map(|condition| Condition {
            kind: condition.type_,
            status: condition.status,
            reason: condition.reason.unwrap_or_default(),
            message: condition.message.unwrap_or_default(),
            since: condition.last_transition_time,
        });
        Status {
            replicas: status.replicas,
            fully_labeled: status.fully_labeled_replicas.unwrap_or(0),
            ready: status.ready_replicas.unwrap_or(0),
            available: status.available_replicas.unwrap_or(0),
            terminating: status.terminating_replicas,
            observed_generation: status.observed_generation.unwrap_or(0),
            conditions: conditions.collect(),
        }
    }

    fn set_status(&mut self, status: Status) {
        let conditions: Vec<ReplicaSetCondition> = status
            .conditions
            .into_iter()
            .map(|condition| ReplicaSetCondition {
                type_: condition.kind,
                status: condition.status,
                reason: Some(condition.reason),
                message: Some(condition.message),
                last_transition_time: condition.since,
            })
            .collect();
        self.status = Some(ReplicaSetStatus {
            replicas: status.replicas,
            fully_labeled_replicas: Some(status.fully_labeled),
            ready_replicas: Some(status.ready),
            available_replicas: Some(status.available),
            terminating_replicas: status.terminating,
            observed_generation: Some(status.observed_generation),
            conditions: Some(conditions).filter(|conditions| !conditions.is_empty()),
        });
    }
}
