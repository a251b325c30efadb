//! The replication controller loop. Watches replication controllers and pods; creates and deletes pods, writes the
//! status of replication controllers.
//!
//! Invariant: as many active pods match a replication controller as it asks for. The mechanism is in
//! [`crate::replicas`].

use k8s_openapi::api::core::v1::{
    PodTemplateSpec, ReplicationController, ReplicationControllerCondition, ReplicationControllerStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use runtime::{Context, Descriptor, Loop};

use crate::replicas::{Condition, Replicas, Replicated, Status};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "replicationcontroller-controller",
    resource: "replicationcontrollers",
    identity: "system:serviceaccount:kube-system:replication-controller",
    workers: 5,
};

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    Box::new(Replicas::<ReplicationController>::new(ctx))
}

impl Replicated for ReplicationController {
    const COUNTS_TERMINATING: bool = false;

    fn replicas(&self) -> i32 {
        self.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
    }

    fn min_ready_seconds(&self) -> i32 {
        self.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0)
    }

    fn selector(&self) -> LabelSelector {
        let labels = self.spec.as_ref().and_then(|spec| spec.selector.clone());
        LabelSelector { match_labels: labels, match_expressions: None }
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
            terminating: None,
            observed_generation: status.observed_generation.unwrap_or(0),
            conditions: conditions.collect(),
        }
    }

    fn set_status(&mut self, status: Status) {
        let conditions: Vec<ReplicationControllerCondition> = status
            .conditions
            .into_iter()
            .map(|condition| ReplicationControllerCondition {
                type_: condition.kind,
                status: condition.status,
                reason: Some(condition.reason),
                message: Some(condition.message),
                last_transition_time: condition.since,
            })
            .collect();
        self.status = Some(ReplicationControllerStatus {
            replicas: status.replicas,
            fully_labeled_replicas: Some(status.fully_labeled),
            ready_replicas: Some(status.ready),
            available_replicas: Some(status.available),
            observed_generation: Some(status.observed_generation),
            conditions: Some(conditions).filter(|conditions| !conditions.is_empty()),
        });
    }
}
