//! Writes the status of a pod to the API server when it has changed.

use std::sync::Arc;

use client::Patch;
use objects::core::v1::{Pod, PodStatus};
use serde_json::{Value, json};

use super::worker::Worker;
use crate::lifecycle::status::{self, StatusContext};
use crate::lifecycle::{ObservedPod, conditions};

impl Worker {
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
        let reported = status::status(
            &current,
            observed,
            &StatusContext {
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
        if shown == self.written_to && current.status.as_ref() == Some(&reported) {
            self.written = Some(reported);
            return;
        }
        let (namespace, name) =
            (pod.metadata.namespace.as_deref().unwrap_or(""), pod.metadata.name.as_deref().unwrap_or(""));
        let patch = Patch::Strategic(patch(pod, &reported));
        match self.shared.client.patch::<Pod>(namespace, name, Some("status"), &patch).await {
            Ok(_) => {
                self.startup.published(pod, &reported, observed, &self.shared);
                (self.written, self.written_to) = (Some(reported), shown);
            }
            Err(error) if error.is_not_found() => {}
            Err(error) => tracing::warn!(pod = %self.uid, %error, "failed to update pod status"),
        }
    }
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
