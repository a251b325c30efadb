//! Replica sets of a deployment: new and old ones, and their annotations.

use std::collections::BTreeMap;

use objects::apps::v1::{Deployment, ReplicaSet, ReplicaSetSpec, ReplicaSetStatus};
use objects::meta::v1::ObjectMeta;

use super::template;
use crate::shared::adoption::controller_reference;
use crate::shared::percent;

pub const REVISION: &str = "deployment.kubernetes.io/revision";
pub const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
pub const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
pub const MAX: &str = "deployment.kubernetes.io/max-replicas";
pub const ROLL_BACK_TO: &str = "deprecated.deployment.rollback.to";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Annotations that are not copied between deployment and replica set.
const OWN: [&str; 6] = [LAST_APPLIED, REVISION, REVISION_HISTORY, DESIRED, MAX, ROLL_BACK_TO];
const LONGEST_HISTORY: usize = 2000;
const LONGEST_NAME: usize = 253;

pub fn replicas(set: &ReplicaSet) -> i32 {
    set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
}

pub fn set_replicas(set: &mut ReplicaSet, count: i32) {
    set.spec.get_or_insert_default().replicas = Some(count);
}

pub fn observed(set: &ReplicaSet) -> ReplicaSetStatus {
    set.status.clone().unwrap_or_default()
}

pub fn available(set: &ReplicaSet) -> i32 {
    set.status.as_ref().and_then(|status| status.available_replicas).unwrap_or(0)
}

pub fn wanted(deployment: &Deployment) -> i32 {
    deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
}

fn bounds(deployment: &Deployment) -> Option<(i32, i32)> {
    let strategy = deployment.spec.as_ref()?.strategy.as_ref()?;
    if strategy.type_.as_deref() != Some("RollingUpdate") {
        return None;
    }
    let total = usize::try_from(wanted(deployment)).unwrap_or(0);
    let rolling = strategy.rolling_update.as_ref();
    let number = |value: Option<_>, round_up| {
        let count = value.map_or(0, |value| percent::scaled(value, total, round_up));
        i32::try_from(count).unwrap_or(i32::MAX)
    };
    let surge = number(rolling.and_then(|rolling| rolling.max_surge.as_ref()), true);
    let unavailable = number(rolling.and_then(|rolling| rolling.max_unavailable.as_ref()), false);
    // Both may round to 0, which would block the rollout.
    Some(if surge == 0 && unavailable == 0 { (0, 1) } else { (surge, unavailable) })
}

pub fn is_rolling(deployment: &Deployment) -> bool {
    bounds(deployment).is_some()
}

pub fn max_surge(deployment: &Deployment) -> i32 {
    bounds(deployment).map_or(0, |(surge, _)| surge)
}

pub fn max_unavailable(deployment: &Deployment) -> i32 {
    let replicas = wanted(deployment);
    if replicas == 0 { 0 } else { bounds(deployment).map_or(0, |(_, unavailable)| unavailable.min(replicas)) }
}

/// Revision in the history of the deployment; 0 if it has none.
pub fn revision(set: &ReplicaSet) -> i64 {
    annotation(set, REVISION).and_then(|value| value.parse().ok()).unwrap_or(0)
}

pub fn annotation<'a>(set: &'a ReplicaSet, key: &str) -> Option<&'a str> {
    set.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// Count in an annotation; `None` if it is missing or invalid.
pub fn count_in(set: &ReplicaSet, key: &str) -> Option<i32> {
    annotation(set, key)?.parse().ok().filter(|count| *count >= 0)
}

pub fn by_age(a: &ReplicaSet, b: &ReplicaSet) -> std::cmp::Ordering {
    let key = |set: &ReplicaSet| (set.metadata.creation_timestamp.clone(), set.metadata.name.clone());
    key(a).cmp(&key(b))
}

/// Records the deployment's size on a replica set, to detect resizing later.
pub fn note_size(set: &mut ReplicaSet, deployment: &Deployment) {
    let (desired, most) = (wanted(deployment), wanted(deployment).saturating_add(max_surge(deployment)));
    let annotations = set.metadata.annotations.get_or_insert_default();
    annotations.insert(DESIRED.to_owned(), desired.to_string());
    annotations.insert(MAX.to_owned(), most.to_string());
}

/// Copies the deployment's annotations to the current replica set and sets the latest revision.
pub fn note_revision(set: &mut ReplicaSet, deployment: &Deployment, latest: i64) {
    let annotations = set.metadata.annotations.get_or_insert_default();
    for (key, value) in deployment.metadata.annotations.iter().flatten() {
        if !OWN.contains(&key.as_str()) {
            annotations.insert(key.clone(), value.clone());
        }
    }
    let old = annotations.get(REVISION).cloned();
    let number = match old.as_deref().map(str::parse::<i64>) {
        None => 0,
        Some(Ok(number)) => number,
        // A revision that is not a number is left alone.
        Some(Err(_)) => return,
    };
    if number >= latest {
        return;
    }
    annotations.insert(REVISION.to_owned(), latest.to_string());
    if let Some(old) = old {
        let history = annotations.entry(REVISION_HISTORY.to_owned()).or_default();
        let mut numbers: Vec<&str> = history.split(',').filter(|number| !number.is_empty()).collect();
        numbers.push(&old);
        while numbers.len() > 1
            && numbers.iter().map(|number| number.len() + 1).sum::<usize>() > LONGEST_HISTORY
        {
            numbers.remove(0);
        }
        *history = numbers.join(",");
    }
}

/// Replica set of the current template, without replicas.
pub fn fresh(deployment: &Deployment, latest: i64) -> Option<ReplicaSet> {
    let spec = deployment.spec.as_ref()?;
    let collisions = deployment.status.as_ref().and_then(|status| status.collision_count);
    let hash = template::hash(&spec.template, collisions);
    let mut pod_template = spec.template.clone();
    let labels = pod_template.metadata.get_or_insert_default().labels.get_or_insert_default();
    labels.insert(template::HASH.to_owned(), hash.clone());
    let labels: BTreeMap<String, String> = labels.clone();
    let mut selector = spec.selector.clone();
    selector.match_labels.get_or_insert_default().insert(template::HASH.to_owned(), hash.clone());
    let name = deployment.metadata.name.as_deref().unwrap_or_default();
    let room = LONGEST_NAME.saturating_sub(hash.len() + 1);
    let mut set = ReplicaSet {
        metadata: ObjectMeta {
            name: Some(format!("{}-{hash}", name.get(..room).unwrap_or(name))),
            namespace: deployment.metadata.namespace.clone(),
            owner_references: Some(vec![controller_reference(deployment)]),
            labels: Some(labels),
            ..ObjectMeta::default()
        },
        spec: Some(ReplicaSetSpec {
            replicas: Some(0),
            min_ready_seconds: spec.min_ready_seconds,
            selector,
            template: Some(pod_template),
        }),
        status: None,
    };
    note_revision(&mut set, deployment, latest);
    note_size(&mut set, deployment);
    Some(set)
}

/// Copies the template and the annotations of a replica set back to the deployment.
pub fn take_back(deployment: &mut Deployment, set: &ReplicaSet) {
    let Some(old) = set.spec.as_ref().and_then(|spec| spec.template.as_ref()) else { return };
    deployment.spec.get_or_insert_default().template = template::without_hash(old);
    let annotations = deployment.metadata.annotations.get_or_insert_default();
    annotations.retain(|key, _| OWN.contains(&key.as_str()));
    for (key, value) in set.metadata.annotations.iter().flatten() {
        if !OWN.contains(&key.as_str()) {
            annotations.insert(key.clone(), value.clone());
        }
    }
}
