//! Telling the API server the status of a pod, when it has changed.

use std::sync::Arc;

use client::Patch;
use objects::core::v1::{Pod, PodStatus};
use serde_json::{Value, json};

use super::worker::Worker;
use crate::lifecycle::status::{self, Surroundings};
use crate::lifecycle::{Observed, conditions};

impl Worker {
    /// Writes the status if it differs from what was written last. `terminal`: nothing will be started any more.
    pub(super) async fn publish(&mut self, pod: &Arc<Pod>, observed: &Observed, terminal: bool) {
        // What was written last is newer than what the cache may hold.
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
        let told = status::status(
            &current,
            observed,
            &Surroundings {
                runtime: self.shared.engine.name(),
                host_ips: &self.shared.settings.host_ips,
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
        if shown == self.written_to && current.status.as_ref() == Some(&told) {
            self.written = Some(told);
            return;
        }
        let (namespace, name) =
            (pod.metadata.namespace.as_deref().unwrap_or(""), pod.metadata.name.as_deref().unwrap_or(""));
        let patch = Patch::Strategic(patch(pod, &told));
        match self.shared.client.patch::<Pod>(namespace, name, Some("status"), &patch).await {
            Ok(_) => (self.written, self.written_to) = (Some(told), shown),
            Err(error) if error.is_not_found() => {}
            Err(error) => tracing::warn!(pod = %self.uid, %error, "cannot write the status"),
        }
    }
}

/// Conditions that others own, as they are now.
fn with_foreign_conditions(mut written: PodStatus, now: &PodStatus) -> PodStatus {
    let owned = |name: &str| crate::lifecycle::conditions::OWNED.contains(&name);
    let mut conditions: Vec<_> =
        written.conditions.take().unwrap_or_default().into_iter().filter(|c| owned(&c.type_)).collect();
    conditions.extend(now.conditions.iter().flatten().filter(|c| !owned(&c.type_)).cloned());
    written.conditions = Some(conditions);
    written
}

/// The status as a patch: conditions merge by type with those of others, addresses are replaced.
fn patch(pod: &Pod, told: &PodStatus) -> Value {
    let mut status = objects::to_value(told).unwrap_or_default();
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
        // What is not said would stay as it was.
        for condition in list.iter_mut().filter_map(Value::as_object_mut) {
            for field in ["reason", "message"] {
                condition.entry(field).or_insert(Value::Null);
            }
        }
        let told: Vec<&str> =
            told.conditions.iter().flatten().map(|condition| condition.type_.as_str()).collect();
        let before = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        for over in before.filter(|one| conditions::OWNED.contains(&one.type_.as_str())) {
            if !told.contains(&over.type_.as_str()) {
                list.push(json!({"$patch": "delete", "type": over.type_}));
            }
        }
    }
    // What mirrors a static pod has a UID of its own.
    if crate::static_pods::is_static(pod) {
        return json!({"status": status});
    }
    json!({"metadata": {"uid": pod.metadata.uid}, "status": status})
}
