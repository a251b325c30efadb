//! Objects for the tests of the loops.

use jiff::Timestamp;
use objects::core::v1::{Pod, PodCondition, PodSpec, PodStatus};
use objects::meta::v1::{ObjectMeta, OwnerReference, Time};

pub fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("a second in range")
}

pub fn time(second: i64) -> Time {
    Time(at(second))
}

/// Metadata of an object in namespace `ns`, whose uid is `uid-<name>`.
pub fn meta(name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some("ns".to_owned()),
        uid: Some(format!("uid-{name}")),
        resource_version: Some("1".to_owned()),
        ..ObjectMeta::default()
    }
}

pub fn pod(name: &str, phase: &str) -> Pod {
    Pod {
        metadata: meta(name),
        spec: Some(PodSpec::default()),
        status: Some(PodStatus { phase: Some(phase.to_owned()), ..PodStatus::default() }),
    }
}

pub fn ready_at(mut pod: Pod, second: i64) -> Pod {
    let conditions = pod.status.get_or_insert_default().conditions.get_or_insert_default();
    conditions.push(PodCondition {
        type_: "Ready".into(),
        status: "True".into(),
        last_transition_time: Some(time(second)),
        ..PodCondition::default()
    });
    pod
}

pub fn controlled_by(mut pod: Pod, kind: &str, name: &str) -> Pod {
    pod.metadata.owner_references = Some(vec![OwnerReference {
        api_version: "v1".into(),
        kind: kind.into(),
        name: name.into(),
        uid: format!("uid-{name}"),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }]);
    pod
}
