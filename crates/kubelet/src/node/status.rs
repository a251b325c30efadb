//! The status of the node.

use std::collections::BTreeMap;

use jiff::Timestamp;
use objects::Quantity;
use objects::core::v1::{
    ContainerImage, DaemonEndpoint, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeRuntimeHandler,
    NodeRuntimeHandlerFeatures, NodeStatus,
};
use serde_json::{Value, json};

use super::capacity::{Amounts, is_extended};
use super::facts::system_info;
use super::heartbeat::Pressure;
use crate::csi;
use crate::lifecycle::status::seconds;
use crate::shared::Shared;

/// Maximum number of images listed.
const MAX_IMAGES: usize = 50;

/// Amounts as API quantities.
#[must_use]
pub fn quantities(amounts: &Amounts) -> BTreeMap<String, Quantity> {
    amounts
        .iter()
        .map(|(name, amount)| {
            let text = match name.as_str() {
                "cpu" if amount % 1000 == 0 => (amount / 1000).to_string(),
                "cpu" => format!("{amount}m"),
                "pods" => amount.to_string(),
                _ if *amount != 0 && amount % 1024 == 0 => format!("{}Ki", amount / 1024),
                _ => amount.to_string(),
            };
            (name.clone(), Quantity(text))
        })
        .collect()
}

/// A condition: type, status, reason, message.
type ConditionRow = (&'static str, bool, &'static str, String);

fn conditions(findings: Vec<ConditionRow>, old: &NodeStatus, now: Timestamp) -> Vec<NodeCondition> {
    findings
        .into_iter()
        .map(|(name, holds, reason, message)| {
            let status = if holds { "True" } else { "False" };
            let before = old.conditions.iter().flatten().find(|condition| condition.type_ == name);
            let since = before
                .filter(|before| before.status == status)
                .and_then(|before| before.last_transition_time.clone());
            NodeCondition {
                type_: name.to_owned(),
                status: status.to_owned(),
                reason: Some(reason.to_owned()),
                message: Some(message),
                last_heartbeat_time: Some(seconds(now)),
                last_transition_time: Some(since.unwrap_or_else(|| seconds(now))),
            }
        })
        .collect()
}

/// Adds extended resources: those of device plugins, and others from the node's capacity, which clients write and which
/// is allocatable.
fn with_extended(
    own: &Amounts,
    capacity: Option<&BTreeMap<String, Quantity>>,
    devices: impl Iterator<Item = (String, i64)>,
) -> BTreeMap<String, Quantity> {
    let mut all = quantities(own);
    let extended = capacity.into_iter().flatten().filter(|(name, _)| is_extended(name));
    all.extend(extended.map(|(name, amount)| (name.clone(), amount.clone())));
    all.extend(devices.map(|(name, amount)| (name, Quantity(amount.to_string()))));
    all
}

/// Patch from the `old` to the `new` status. Extended resources that this kubelet did not change are owned by others and
/// not written.
pub fn status_patch(old: &NodeStatus, new: &NodeStatus) -> Value {
    let mut value = objects::to_value(new).unwrap_or_default();
    if let Some(Value::Array(addresses)) = value.get_mut("addresses") {
        addresses.insert(0, json!({"$patch": "replace"}));
    }
    if let Some(Value::Object(capacity)) = value.get_mut("capacity") {
        let before = |name: &str| old.capacity.as_ref().and_then(|amounts| amounts.get(name));
        capacity.retain(|name, amount| {
            !is_extended(name) || amount.as_str() != before(name).map(|amount| amount.0.as_str())
        });
    }
    if let Some(Value::Object(allocatable)) = value.get_mut("allocatable") {
        for name in old.allocatable.iter().flat_map(BTreeMap::keys) {
            if is_extended(name) && !allocatable.contains_key(name) {
                allocatable.insert(name.clone(), Value::Null);
            }
        }
    }
    json!({"status": value})
}

/// Current node status.
pub async fn status(
    shared: &Shared,
    old: &NodeStatus,
    capacity: &Amounts,
    allocatable: &Amounts,
    pressure: Pressure,
    port: u16,
) -> NodeStatus {
    let (wrong, handlers) = readiness(shared).await;
    let devices = shared.devices.capacity().await;
    let of_devices = |amount: fn(&(i64, i64)) -> i64| {
        devices.iter().map(move |(name, row)| (name.clone(), amount(row))).collect::<Vec<_>>().into_iter()
    };
    let findings = findings(pressure, &wrong);
    let own = ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"];
    let mut list = conditions(findings, old, shared.clock.now());
    list.extend(old.conditions.iter().flatten().filter(|c| !own.contains(&c.type_.as_str())).cloned());
    let address =
        |kind: &str, address: &str| NodeAddress { type_: kind.to_owned(), address: address.to_owned() };
    let mut addresses: Vec<NodeAddress> =
        shared.addresses.ips().iter().map(|ip| address("InternalIP", ip)).collect();
    addresses.push(address("Hostname", &shared.addresses.hostname()));
    // Those of the cloud controller manager take precedence once it has written them.
    let provided =
        old.addresses.clone().filter(|all| shared.config.registration.external_cloud && !all.is_empty());
    NodeStatus {
        addresses: provided.or(Some(addresses)),
        capacity: Some(with_extended(capacity, old.capacity.as_ref(), of_devices(|row| row.0))),
        allocatable: Some(with_extended(allocatable, old.capacity.as_ref(), of_devices(|row| row.1))),
        conditions: Some(list),
        daemon_endpoints: Some(NodeDaemonEndpoints {
            kubelet_endpoint: Some(DaemonEndpoint { port: i32::from(port) }),
        }),
        images: Some(images(shared).await),
        node_info: Some(system_info(shared.engine.name(), shared.engine.version())),
        volumes_in_use: volumes_in_use(shared),
        runtime_handlers: handlers.or_else(|| old.runtime_handlers.clone()),
        ..old.clone()
    }
}

/// Reasons why the node cannot run pods, and the handlers of its runtime if it lists them.
async fn readiness(shared: &Shared) -> (Vec<String>, Option<Vec<NodeRuntimeHandler>>) {
    let mut wrong = Vec::new();
    let mut handlers = None;
    match shared.engine.status().await {
        Ok(answer) => {
            let conditions = answer.status.map(|status| status.conditions).unwrap_or_default();
            for (needed, subject) in [("RuntimeReady", "runtime"), ("NetworkReady", "runtime network")] {
                match conditions.iter().find(|condition| condition.r#type == needed) {
                    Some(condition) if condition.status => {}
                    Some(condition) => wrong.push(format!(
                        "container {subject} not ready: {needed}=false reason:{} message:{}",
                        condition.reason, condition.message
                    )),
                    None => wrong.push(format!("container runtime did not report {needed}")),
                }
            }
            if !answer.runtime_handlers.is_empty() {
                handlers = Some(answer.runtime_handlers.into_iter().map(handler).collect());
            }
        }
        Err(error) => wrong.push(format!("container runtime is down: {error}")),
    }
    if shared.shutting_down.load(std::sync::atomic::Ordering::Relaxed) {
        wrong.push("node is shutting down".to_owned());
    }
    (wrong, handlers)
}

/// Conditions of the node: type, status, reason, message.
fn findings(pressure: Pressure, wrong: &[String]) -> Vec<ConditionRow> {
    let under = |kind, is: bool, reasons: [&'static str; 2], texts: [&str; 2]| {
        let at = usize::from(!is);
        (kind, is, reasons[at], format!("kubelet has {}", texts[at]))
    };
    let ready = match wrong {
        [] => ("Ready", true, "KubeletReady", "kubelet is posting ready status".to_owned()),
        [one] => ("Ready", false, "KubeletNotReady", one.clone()),
        many => ("Ready", false, "KubeletNotReady", format!("[{}]", many.join(", "))),
    };
    vec![
        under(
            "MemoryPressure",
            pressure.memory,
            ["KubeletHasInsufficientMemory", "KubeletHasSufficientMemory"],
            ["insufficient memory available", "sufficient memory available"],
        ),
        under(
            "DiskPressure",
            pressure.disk,
            ["KubeletHasDiskPressure", "KubeletHasNoDiskPressure"],
            ["disk pressure", "no disk pressure"],
        ),
        under(
            "PIDPressure",
            pressure.pid,
            ["KubeletHasInsufficientPID", "KubeletHasSufficientPID"],
            ["insufficient PID available", "sufficient PID available"],
        ),
        ready,
    ]
}

/// CSI volumes in use, which must not be detached.
fn volumes_in_use(shared: &Shared) -> Option<Vec<String>> {
    let mut names: Vec<String> = csi::in_use(&shared.config.directory)
        .into_iter()
        .filter(|(_, volume)| volume.volume_lifecycle_mode != "Ephemeral")
        .map(|(_, volume)| csi::unique_name(&volume.driver_name, &volume.volume_handle))
        .collect();
    names.sort();
    names.dedup();
    (!names.is_empty()).then_some(names)
}

fn handler(handler: cri::v1::RuntimeHandler) -> NodeRuntimeHandler {
    NodeRuntimeHandler {
        name: Some(handler.name),
        features: handler.features.map(|features| NodeRuntimeHandlerFeatures {
            recursive_read_only_mounts: Some(features.recursive_read_only_mounts),
            user_namespaces: Some(features.user_namespaces),
        }),
    }
}

async fn images(shared: &Shared) -> Vec<ContainerImage> {
    let mut images = shared.engine.images().await.unwrap_or_default();
    images.sort_by_key(|image| std::cmp::Reverse(image.size));
    images
        .into_iter()
        .filter(|image| !image.repo_tags.is_empty() || !image.repo_digests.is_empty())
        .take(MAX_IMAGES)
        .map(|image| ContainerImage {
            names: Some(image.repo_digests.into_iter().chain(image.repo_tags).take(5).collect()),
            size_bytes: i64::try_from(image.size).ok(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_convert_to_quantities() {
        let amounts = Amounts::from([
            ("cpu".to_owned(), 2000),
            ("memory".to_owned(), 2048),
            ("pods".to_owned(), 110),
            ("hugepages-2Mi".to_owned(), 0),
        ]);
        let got: Vec<_> =
            quantities(&amounts).into_iter().map(|(name, q)| format!("{name}={}", q.0)).collect();
        assert_eq!(got, ["cpu=2", "hugepages-2Mi=0", "memory=2Ki", "pods=110"]);
        assert_eq!(quantities(&Amounts::from([("cpu".to_owned(), 1500)]))["cpu"].0, "1500m");
    }

    #[test]
    fn extended_capacity_is_allocatable_until_it_is_removed() {
        let quantity = |amount: &str| Quantity(amount.to_owned());
        let own = Amounts::from([("cpu".to_owned(), 2000)]);
        let capacity = BTreeMap::from([
            ("cpu".to_owned(), quantity("8")),
            ("example.com/gpu".to_owned(), quantity("4")),
            ("hugepages-2Mi".to_owned(), quantity("0")),
        ]);
        let all = with_extended(&own, Some(&capacity), std::iter::empty());
        assert_eq!(
            all,
            BTreeMap::from([
                ("cpu".to_owned(), quantity("2")),
                ("example.com/gpu".to_owned(), quantity("4"))
            ])
        );
        let with =
            NodeStatus { capacity: Some(all.clone()), allocatable: Some(all), ..NodeStatus::default() };
        let before = NodeStatus { capacity: Some(capacity.clone()), ..NodeStatus::default() };
        let patch = status_patch(&before, &with);
        assert_eq!(
            patch["status"],
            json!({"capacity": {"cpu": "2"}, "allocatable": {"cpu": "2", "example.com/gpu": "4"}})
        );
        let without = with_extended(&own, None, std::iter::empty());
        let without = NodeStatus {
            capacity: Some(without.clone()),
            allocatable: Some(without),
            ..NodeStatus::default()
        };
        assert_eq!(
            status_patch(&with, &without)["status"]["allocatable"],
            json!({"cpu": "2", "example.com/gpu": null})
        );
        let device = |amount| [("example.com/gpu".to_owned(), amount)].into_iter();
        let plugged = NodeStatus {
            capacity: Some(with_extended(&own, Some(&capacity), device(0))),
            allocatable: Some(with_extended(&own, Some(&capacity), device(0))),
            ..NodeStatus::default()
        };
        assert_eq!(
            status_patch(&before, &plugged)["status"]["capacity"],
            json!({"cpu": "2", "example.com/gpu": "0"}),
            "resources of device plugins are the kubelet's"
        );
    }
}
