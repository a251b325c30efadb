//! Writes the status of a pod to the API server when it has changed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use client::Patch;
use jiff::{SignedDuration, Timestamp};
use objects::core::v1::{Pod, PodStatus};
use serde_json::{Value, json};

use super::worker::Worker;
use crate::lifecycle::status::{self, StatusContext};
use crate::lifecycle::{ObservedPod, conditions};

/// Age below which an interactive command is not reported as running.
const BRIEF: SignedDuration = SignedDuration::from_millis(300);

/// Time until which the status of the pod waits: one of its containers is an interactive command that has just begun.
///
/// `kubectl run -i` prints the log of a running pod and attaches to it. If the command ends in between, it prints the log
/// again; a command that ends at once is therefore reported as ended only.
fn brief_until(pod: &Pod, observed: &ObservedPod, now: Timestamp) -> Option<Timestamp> {
    let spec = pod.spec.as_ref().filter(|spec| spec.restart_policy.as_deref() == Some("Never"))?;
    let is_interactive = |name: &str| {
        spec.containers.iter().any(|container| container.name == name && container.stdin == Some(true))
    };
    let begun = observed.running().filter(|one| is_interactive(&one.name)).map(|one| one.started_at).max()?;
    // A clock that was set back does not prolong it.
    begun.saturating_add(BRIEF).ok().filter(|until| (begun..*until).contains(&now))
}

impl Worker {
    /// Writes the status, or returns the time at which to do so if a command has just begun.
    pub(super) async fn publish_unless_brief(
        &mut self,
        pod: &Arc<Pod>,
        observed: &ObservedPod,
    ) -> Option<Timestamp> {
        let until = brief_until(pod, observed, self.shared.clock.now());
        if until.is_none() {
            self.publish(pod, observed, false).await;
        }
        until
    }

    /// Writes the status if it differs from the last written one. `terminal`: nothing will be started any more.
    pub(super) async fn publish(&mut self, pod: &Arc<Pod>, observed: &ObservedPod, terminal: bool) {
        // The last written status is newer than the cache may be.
        let mut current = Pod::clone(pod);
        if let Some(written) = &self.written {
            let foreign = current.status.take().unwrap_or_default();
            current.status = Some(with_foreign_conditions(written.clone(), &foreign));
        }
        let (resize, shown) = {
            let order = self.orders.borrow();
            (order.resize.clone(), order.shown)
        };
        let probes = |id: &str| self.verdict_of(id);
        let in_effect = |id: &str| self.applied.get(id).and_then(|applied| applied.resources.clone());
        let host_ips = self.shared.addresses.ips();
        let mut reported = status::status(
            &current,
            observed,
            &StatusContext {
                runtime: self.shared.engine.name(),
                host_ips: &host_ips,
                probes: &probes,
                waiting: &self.waiting,
                terminal: terminal && observed.running().next().is_none(),
                verdict: self.verdict.as_ref(),
                resize: resize.as_ref(),
                resizing: self.resizing.as_ref(),
                in_effect: &in_effect,
                recursive_read_only: self.shared.engine.features("").recursive_read_only_mounts,
                now: self.shared.clock.now(),
            },
        );
        let has_ended = matches!(reported.phase.as_deref(), Some("Succeeded" | "Failed"));
        if has_ended && observed.running().next().is_none() && !self.release_resources().await {
            reported.phase = current.status.as_ref().and_then(|status| status.phase.clone());
        }
        if let Some(statuses) = &mut reported.container_statuses {
            self.shared.devices.add_health(&self.uid, statuses);
            self.shared.dra.add_health(pod, statuses);
        }
        let foreign = self.is_foreign(pod);
        if !foreign && shown == self.written_to && current.status.as_ref() == Some(&reported) {
            self.published.fetch_max(revision(pod), Ordering::AcqRel);
            (self.written, self.status_changed, self.unwritten) = (Some(reported), None, None);
            return;
        }
        let before = self.unwritten.take().or(current.status);
        self.shared.metrics.terminated(before.as_ref(), &reported);
        let changed = *self.status_changed.get_or_insert_with(Instant::now);
        let (namespace, name) =
            (pod.metadata.namespace.as_deref().unwrap_or(""), pod.metadata.name.as_deref().unwrap_or(""));
        let mut patch = patch(pod, &reported);
        if foreign && let Some(status) = patch.get_mut("status").and_then(Value::as_object_mut) {
            // Omitted fields would keep the foreign value.
            for field in OWN_TEXTS {
                status.entry(field).or_insert(Value::Null);
            }
        }
        let patch = Patch::Strategic(patch);
        match self.shared.client.patch::<Pod>(namespace, name, Some("status"), &patch).await {
            Ok(patched) => {
                self.status_changed = None;
                self.shared.metrics.pods.status_sync.observe(changed.elapsed().as_secs_f64());
                self.published.store(revision(&patched), Ordering::Release);
                self.startup.published(pod, &reported, observed, &self.shared);
                (self.written, self.written_to) = (Some(reported), shown);
                return;
            }
            Err(error) if error.is_not_found() => {}
            Err(error) if self.is_succeeded_by_another(namespace, name).await => {
                tracing::debug!(pod = %self.uid, %error, "pod was deleted and then recreated, status not updated");
            }
            Err(error) => tracing::warn!(pod = %self.uid, %error, "failed to update pod status"),
        }
        self.unwritten = Some(reported);
    }

    /// Returns true if another client changed the status after the last write.
    fn is_foreign(&self, pod: &Pod) -> bool {
        revision(pod) > self.published.load(Ordering::Acquire)
            && self.written.as_ref().zip(pod.status.as_ref()).is_some_and(|(own, now)| differs(own, now))
            && !crate::static_pods::is_static(pod)
    }

    /// Returns true if the pod of this name is another one.
    async fn is_succeeded_by_another(&self, namespace: &str, name: &str) -> bool {
        match self.shared.client.get::<Pod>(namespace, name).await {
            // The UID of a static pod is not that of its mirror pod, which the patch does not name.
            Ok(found) => found.metadata.uid.as_deref() != Some(&self.uid),
            // A node may not read pods that are not assigned to it.
            Err(error) => error.is_not_found() || error.is_forbidden(),
        }
    }
}

/// Text fields of the status that the kubelet removes if they do not apply.
const OWN_TEXTS: [&str; 2] = ["reason", "message"];

/// Revision of an object; 0 if it is unknown.
pub(super) fn revision(pod: &Pod) -> u64 {
    pod.metadata.resource_version.as_ref().and_then(|text| text.parse().ok()).unwrap_or_default()
}

/// Returns true if the parts of the status that only the kubelet writes differ.
pub(super) fn differs(one: &PodStatus, other: &PodStatus) -> bool {
    let conditions = |status: &PodStatus| {
        let all = status.conditions.iter().flatten();
        let own = all.filter(|condition| conditions::OWNED.contains(&condition.type_.as_str()));
        own.map(|condition| (condition.type_.clone(), condition.status.clone())).collect::<BTreeMap<_, _>>()
    };
    let texts = |status: &PodStatus| {
        [&status.phase, &status.reason, &status.message, &status.pod_ip, &status.host_ip].map(Option::clone)
    };
    let containers = |status: &PodStatus| {
        let lists = [&status.container_statuses, &status.init_container_statuses];
        let all = lists.into_iter().flatten().flatten();
        let states = all.map(|one| {
            let state = one
                .state
                .as_ref()
                .map(|state| (state.running.is_some(), state.terminated.is_some(), state.waiting.is_some()));
            (one.name.clone(), one.ready, one.started, one.restart_count, one.container_id.clone(), state)
        });
        states.collect::<Vec<_>>()
    };
    texts(one) != texts(other) || conditions(one) != conditions(other) || containers(one) != containers(other)
}

/// Conditions owned by others, with their current values.
fn with_foreign_conditions(mut written: PodStatus, now: &PodStatus) -> PodStatus {
    let owned = |name: &str| crate::lifecycle::conditions::OWNED.contains(&name);
    let mut conditions: Vec<_> =
        written.conditions.take().unwrap_or_default().into_iter().filter(|c| owned(&c.type_)).collect();
    conditions.extend(now.conditions.iter().flatten().filter(|c| !owned(&c.type_)).cloned());
    written.conditions = Some(conditions);
    written
}

/// Status as a patch: conditions merge by type with those of others, addresses are replaced.
fn patch(pod: &Pod, reported: &PodStatus) -> Value {
    let mut status = objects::to_value(reported).unwrap_or_default();
    for list in ["podIPs", "hostIPs"] {
        if let Some(Value::Array(items)) = status.get_mut(list) {
            items.insert(0, json!({"$patch": "replace"}));
        }
    }
    if let Some(Value::Array(list)) = status.get_mut("conditions") {
        list.retain(|condition| {
            let text = |field: &str| condition.get(field).and_then(Value::as_str).unwrap_or("");
            let disrupted =
                text("type") == conditions::DISRUPTION && text("reason") == conditions::BY_KUBELET;
            disrupted || conditions::OWNED.contains(&text("type"))
        });
        // Omitted fields would keep their old value.
        for condition in list.iter_mut().filter_map(Value::as_object_mut) {
            for field in ["reason", "message"] {
                condition.entry(field).or_insert(Value::Null);
            }
        }
        let reported: Vec<&str> =
            reported.conditions.iter().flatten().map(|condition| condition.type_.as_str()).collect();
        let before = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        for over in before.filter(|one| conditions::OWNED.contains(&one.type_.as_str())) {
            if !reported.contains(&over.type_.as_str()) {
                list.push(json!({"$patch": "delete", "type": over.type_}));
            }
        }
    }
    // A mirror pod has its own UID.
    if crate::static_pods::is_static(pod) {
        return json!({"status": status});
    }
    json!({"metadata": {"uid": pod.metadata.uid}, "status": status})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::{ObservedContainer, RunState};

    #[test]
    fn interactive_command_is_reported_after_its_first_moment() {
        let until = |pod: Value, age: i64| {
            let pod: Pod = serde_json::from_value(pod).expect("a pod");
            let begun = Timestamp::from_second(1_000).expect("a time");
            let container = ObservedContainer {
                name: "c".to_owned(),
                state: RunState::Running,
                started_at: begun,
                ..ObservedContainer::default()
            };
            let observed = ObservedPod { containers: vec![container], ..ObservedPod::default() };
            let now = begun.saturating_add(SignedDuration::from_millis(age)).expect("a time");
            brief_until(&pod, &observed, now).map(|until| until.duration_since(begun).as_millis())
        };
        let pod = |policy: &str, stdin: bool| json!({"spec": {"restartPolicy": policy, "containers": [{"name": "c", "stdin": stdin}]}});
        assert_eq!(until(pod("Never", true), 10), Some(300));
        assert_eq!(until(pod("Never", true), 300), None);
        assert_eq!(until(pod("Never", true), -10), None, "the clock was set back");
        assert_eq!(until(pod("Always", true), 10), None);
        assert_eq!(until(pod("Never", false), 10), None);
    }

    #[test]
    fn statuses_differ_by_what_only_the_kubelet_writes() {
        let status = |change: Value| -> PodStatus {
            let mut status = json!({
                "phase": "Running", "podIP": "10.1.0.2",
                "conditions": [{"type": "Ready", "status": "True"}, {"type": "example.com/gate", "status": "False"}],
                "containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                    "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}],
            });
            if let (Value::Object(status), Value::Object(change)) = (&mut status, change) {
                status.extend(change);
            }
            serde_json::from_value(status).expect("a status")
        };
        let own = status(json!({}));
        for same in [
            json!({}),
            json!({"qosClass": "Burstable", "nominatedNodeName": "n"}),
            json!({"conditions": [{"type": "Ready", "status": "True"}, {"type": "example.com/gate", "status": "True"}]}),
        ] {
            assert!(!differs(&own, &status(same.clone())), "{same}");
        }
        for other in [
            json!({"phase": "Pending"}),
            json!({"reason": "Foreign"}),
            json!({"podIP": "10.1.0.3"}),
            json!({"conditions": [{"type": "Ready", "status": "False"}]}),
            json!({"containerStatuses": []}),
        ] {
            assert!(differs(&own, &status(other.clone())), "{other}");
        }
    }
}
