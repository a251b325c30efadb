//! Pods of simulated nodes: runs bound pods, completes those that run to completion, and finishes deletions.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use client::{DeleteOptions, Patch, Preconditions};
use jiff::Timestamp;
use objects::core::v1::Pod;
use objects::meta::v1::Time;
use parking_lot::Mutex;
use runtime::{Action, Cache, Change, Context, Descriptor, Key, Loop, LoopError};
use serde_json::{Value, json};

use crate::Fleet;
use crate::addresses::{self, Pool};

pub const DESCRIPTOR: Descriptor =
    Descriptor { name: "simulated-kubelet", resource: "pods", identity: "system:nodes", workers: 16 };

struct Pods {
    pods: Cache<Pod>,
    fleet: Arc<Fleet>,
    pool: Arc<Mutex<Pool>>,
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    let fleet = ctx.setting::<Arc<Fleet>>().cloned().unwrap_or_default();
    let pool = Arc::new(Mutex::new(Pool::default()));
    let (known, held) = (Arc::clone(&fleet), Arc::clone(&pool));
    let pods = ctx.watch::<Pod>(move |change| {
        let pod = change.object();
        if let Change::Deleted(gone) = change {
            held.lock().release(gone.metadata.uid.as_deref().unwrap_or_default());
            return Vec::new();
        }
        if number_of(pod, &known).is_some() { vec![Key::of(&**pod)] } else { Vec::new() }
    });
    Box::new(Pods { pods, fleet, pool })
}

fn number_of(pod: &Pod, fleet: &Fleet) -> Option<usize> {
    fleet.number(pod.spec.as_ref()?.node_name.as_deref()?)
}

/// Next action of a node for a pod.
#[derive(Debug, PartialEq)]
enum Step {
    Nothing,
    Run,
    /// Completes after a delay.
    EndIn(Duration),
    End,
    /// Containers are killed; the status reports that before the deletion.
    Kill,
    Remove,
}

fn plan(pod: &Pod, run_time: Duration, now: Timestamp) -> Step {
    let status = pod.status.clone().unwrap_or_default();
    let over = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    if pod.metadata.deletion_timestamp.is_some() {
        return if over { Step::Remove } else { Step::Kill };
    }
    let ends =
        pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref()).unwrap_or("Always") != "Always";
    match status.phase.as_deref() {
        None | Some("Pending") => Step::Run,
        Some("Running") if ends => {
            let since = status.start_time.map_or(now, |time| time.0);
            let age = now.duration_since(since).unsigned_abs();
            if age >= run_time { Step::End } else { Step::EndIn(run_time - age) }
        }
        _ => Step::Nothing,
    }
}

#[async_trait]
impl Loop for Pods {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let Some(pod) = self.pods.get_key(key) else { return Ok(Action::Done) };
        let Some(node) = number_of(&pod, &self.fleet) else { return Ok(Action::Done) };
        let now = ctx.clock.now();
        let status = match plan(&pod, self.fleet.run_time, now) {
            Step::Nothing => return Ok(Action::Done),
            Step::EndIn(left) => return Ok(Action::RequeueAfter(left)),
            Step::Remove => {
                let options = DeleteOptions {
                    grace_period_seconds: Some(0),
                    preconditions: Some(Preconditions {
                        uid: pod.metadata.uid.clone(),
                        ..Preconditions::default()
                    }),
                    ..DeleteOptions::default()
                };
                return match ctx.client.delete::<Pod>(&key.namespace, &key.name, &options).await {
                    Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error.into()),
                    _ => Ok(Action::Done),
                };
            }
            Step::Run => {
                let address = self.pool.lock().of_pod(pod.metadata.uid.as_deref().unwrap_or_default(), node);
                running(&pod, &address.to_string(), node, now)
            }
            Step::End => ended(&pod, "Succeeded", 0, now),
            Step::Kill => ended(&pod, "Failed", 137, now),
        };
        let patch = Patch::Strategic(json!({"metadata": {"uid": pod.metadata.uid}, "status": status}));
        match ctx.client.patch::<Pod>(&key.namespace, &key.name, Some("status"), &patch).await {
            Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error.into()),
            _ => Ok(Action::Done),
        }
    }
}

fn conditions(ready: bool, reason: &str, now: Timestamp) -> Value {
    let state = if ready { "True" } else { "False" };
    let of = |kind: &str, status: &str| {
        let mut condition = json!({"type": kind, "status": status, "lastTransitionTime": Time(now)});
        if status == "False" {
            condition["reason"] = json!(reason);
        }
        condition
    };
    json!([of("Initialized", "True"), of("Ready", state), of("ContainersReady", state)])
}

fn containers(pod: &Pod, ready: bool, state: &Value) -> Vec<Value> {
    let containers = pod.spec.as_ref().map(|spec| spec.containers.as_slice()).unwrap_or_default();
    containers
        .iter()
        .map(|container| {
            json!({
                "name": container.name, "image": container.image, "imageID": "simulated",
                "ready": ready, "started": ready, "restartCount": 0, "state": state,
            })
        })
        .collect()
}

fn running(pod: &Pod, address: &str, node: usize, now: Timestamp) -> Value {
    json!({
        "phase": "Running",
        "startTime": Time(now),
        "hostIP": addresses::of_node(node).to_string(),
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": conditions(true, "", now),
        "containerStatuses": containers(pod, true, &json!({"running": {"startedAt": Time(now)}})),
    })
}

fn ended(pod: &Pod, phase: &str, code: i32, now: Timestamp) -> Value {
    let (reason, why) = if code == 0 { ("Completed", "PodCompleted") } else { ("Error", "PodFailed") };
    let state = json!({"terminated": {"exitCode": code, "reason": reason, "finishedAt": Time(now)}});
    json!({
        "phase": phase,
        "conditions": conditions(false, why, now),
        "containerStatuses": containers(pod, false, &state),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simulated_pods_run_complete_and_are_deleted() {
        let at = |second| Timestamp::from_second(second).expect("in range");
        let second = Duration::from_secs(1);
        let mut pod = Pod::default();
        assert_eq!(plan(&pod, second, at(0)), Step::Run);
        let status = pod.status.get_or_insert_default();
        status.phase = Some("Running".to_owned());
        status.start_time = Some(Time(at(10)));
        assert_eq!(plan(&pod, second, at(20)), Step::Nothing);
        pod.spec.get_or_insert_default().restart_policy = Some("Never".to_owned());
        assert_eq!(plan(&pod, second, at(10)), Step::EndIn(second));
        assert_eq!(plan(&pod, second, at(11)), Step::End);
        pod.metadata.deletion_timestamp = Some(Time(at(12)));
        assert_eq!(plan(&pod, second, at(12)), Step::Kill);
        pod.status.get_or_insert_default().phase = Some("Failed".to_owned());
        assert_eq!(plan(&pod, second, at(12)), Step::Remove);
    }

    #[test]
    fn deleted_pods_are_removed_once_finished() {
        for (phase, finished) in vectors::PHASES {
            let mut pod = Pod::default();
            pod.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
            pod.status.get_or_insert_default().phase = Some(phase.to_owned());
            let step = plan(&pod, Duration::ZERO, Timestamp::UNIX_EPOCH);
            assert_eq!(step, if finished { Step::Remove } else { Step::Kill }, "{phase}");
        }
    }

    #[test]
    fn node_names_of_other_fleets_are_ignored() {
        let fleet = Fleet { nodes: 3, ..Fleet::default() };
        assert_eq!(fleet.number("sim-00002"), Some(2));
        for name in ["sim-00003", "sim-2", "other-00001", "sim-"] {
            assert_eq!(fleet.number(name), None, "{name}");
        }
    }
}
