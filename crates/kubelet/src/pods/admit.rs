//! Node-level pod admission, after the scheduler's decision.

use std::collections::BTreeMap;

use objects::core::v1::Pod;

use crate::lifecycle::phase::has_ended;
use crate::lifecycle::qos::{self, pod_requests};

/// Resources that are accounted.
const COUNTED: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

/// Reason and message if the pod targets another operating system, by its label or `spec.os`.
#[must_use]
pub fn other_os(pod: &Pod) -> Option<(String, String)> {
    let ours = |name: &str| name == "linux";
    let refused = |reason: &str, why: &str| {
        Some((reason.to_owned(), format!("Pod was rejected: Failed to admit pod as the {why}")))
    };
    let labelled = pod.metadata.labels.as_ref().and_then(|labels| labels.get("kubernetes.io/os"));
    if labelled.is_some_and(|name| !ours(name)) {
        return refused(
            "PodOSSelectorNodeLabelDoesNotMatch",
            "`kubernetes.io/os` label doesn't match node label",
        );
    }
    if pod.spec.as_ref().and_then(|spec| spec.os.as_ref()).is_some_and(|os| !ours(&os.name)) {
        return refused("PodOSNotSupported", "OS field doesn't match node OS");
    }
    None
}

/// Reason and message if the pod requires AppArmor profiles and the host has no AppArmor, as in Kubernetes.
#[must_use]
pub fn apparmor_missing(pod: &Pod, enabled: bool) -> Option<(String, String)> {
    let spec = pod.spec.as_ref()?;
    let of_pod = spec.security_context.as_ref().and_then(|context| context.app_armor_profile.as_ref());
    let of_containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let of_containers =
        of_containers.filter_map(|container| container.security_context.as_ref()?.app_armor_profile.as_ref());
    let wanted = of_pod.into_iter().chain(of_containers).any(|profile| profile.type_ != "Unconfined");
    (wanted && !enabled).then(|| {
        let message = "Pod was rejected: Cannot enforce AppArmor: AppArmor is not enabled on the host";
        ("AppArmor".to_owned(), message.to_owned())
    })
}

/// Reason and message if `pod` does not fit beside `others` within `allocatable`, in thousandths.
#[must_use]
pub fn rejection<'a>(
    pod: &Pod,
    others: impl Iterator<Item = &'a Pod> + Clone,
    allocatable: &BTreeMap<String, i64>,
) -> Option<(String, String)> {
    let spec = pod.spec.as_ref()?;
    let active = others.filter(|other| !has_ended(other) && other.metadata.uid != pod.metadata.uid);
    let refused = |name: &str, requested: i64, used: i64, capacity: i64| {
        let reason = format!("OutOf{name}");
        let message = format!(
            "Pod was rejected: Node didn't have enough resource: {name}, requested: {requested}, used: {used}, capacity: {capacity}"
        );
        (reason, message)
    };
    if active.clone().any(|other| ports_clash(pod, other)) {
        let message = "Pod was rejected: Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports";
        return Some(("NodePorts".to_owned(), message.to_owned()));
    }
    let pods = allocatable.get("pods").map_or(i64::MAX, |milli| milli / 1000);
    let count = i64::try_from(active.clone().count()).unwrap_or(i64::MAX);
    if count >= pods {
        return Some(refused("pods", 1, count, pods));
    }
    for name in COUNTED {
        let Some(capacity) = allocatable.get(name) else { continue };
        let requested = pod_requests(spec, name);
        if requested == 0 {
            continue;
        }
        let used = active
            .clone()
            .filter_map(|other| other.spec.as_ref())
            .map(|spec| pod_requests(spec, name))
            .fold(0, i64::saturating_add);
        if used.saturating_add(requested) > *capacity {
            // CPU is reported in thousandths, other resources in whole units.
            let unit = if name == "cpu" { 1 } else { 1000 };
            return Some(refused(name, requested / unit, used / unit, capacity / unit));
        }
    }
    None
}

/// Host ports of a pod: address, protocol, number.
fn node_ports(pod: &Pod) -> impl Iterator<Item = (&str, &str, i32)> {
    let spec = pod.spec.iter();
    // Sidecars run beside regular containers; ports of other init containers are free again by then.
    let sidecars = spec.clone().flat_map(|spec| spec.init_containers.iter().flatten());
    let sidecars = sidecars.filter(|one| one.restart_policy.as_deref() == Some("Always"));
    spec.flat_map(|spec| &spec.containers)
        .chain(sidecars)
        .flat_map(|one| one.ports.iter().flatten())
        .filter_map(|port| {
            let address = port.host_ip.as_deref().filter(|ip| !ip.is_empty()).unwrap_or("0.0.0.0");
            Some((
                address,
                port.protocol.as_deref().unwrap_or("TCP"),
                port.host_port.filter(|port| *port > 0)?,
            ))
        })
}

/// Returns true if two pods request the same host port.
fn ports_clash(one: &Pod, other: &Pod) -> bool {
    let everywhere = |address: &str| matches!(address, "0.0.0.0" | "::");
    node_ports(one).any(|(address, protocol, port)| {
        node_ports(other).any(|(theirs, their_protocol, their_port)| {
            port == their_port
                && protocol == their_protocol
                && (everywhere(address) || everywhere(theirs) || address == theirs)
        })
    })
}

/// Returns true if the resources of the pod's containers changed.
#[must_use]
pub fn resources_changed(before: &Pod, now: &Pod) -> bool {
    let (Some(a), Some(b)) = (&before.spec, &now.spec) else { return false };
    COUNTED.iter().any(|name| pod_requests(b, name) > pod_requests(a, name))
}

/// Reason and message if the CPUs of a guaranteed pod are resized under the static policy of the CPU manager.
#[must_use]
pub fn exclusive_resize(before: &Pod, now: &Pod, is_static: bool) -> Option<(String, String)> {
    let cpu = |pod: &Pod| pod.spec.as_ref().map(|spec| pod_requests(spec, "cpu"));
    (is_static && qos::class(now) == qos::Qos::Guaranteed && cpu(before) != cpu(now)).then(|| {
        let message = "Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\"";
        ("Infeasible".to_owned(), message.to_owned())
    })
}

/// Reason and message if a resize of a running pod is deferred or infeasible.
#[must_use]
pub fn resize_pending<'a>(
    pod: &Pod,
    others: impl Iterator<Item = &'a Pod> + Clone,
    allocatable: &BTreeMap<String, i64>,
) -> Option<(String, String)> {
    let (reason, message) = rejection(pod, others, allocatable)?;
    let name = reason.strip_prefix("OutOf").unwrap_or(&reason);
    if let Some((_, alone)) = rejection(pod, std::iter::empty(), allocatable) {
        let message = alone.replace("Pod was rejected: ", "");
        return Some((
            "Infeasible".to_owned(),
            message.replace("didn't have enough resource", "didn't have enough capacity"),
        ));
    }
    if name == "pods" {
        // The running pod is already counted.
        return None;
    }
    Some(("Deferred".to_owned(), message.replace("Pod was rejected: ", "")))
}

/// The pod with the resources of `before`.
#[must_use]
pub fn with_resources_of(pod: &Pod, before: &Pod) -> Pod {
    let mut pod = pod.clone();
    let (Some(spec), Some(old)) = (&mut pod.spec, &before.spec) else { return pod };
    let pairs = [
        (Some(&mut spec.containers), Some(&old.containers)),
        (spec.init_containers.as_mut(), old.init_containers.as_ref()),
    ];
    for (now, old) in pairs {
        for container in now.into_iter().flatten() {
            let same = old.into_iter().flatten().find(|one| one.name == container.name);
            if let Some(same) = same {
                container.resources.clone_from(&same.resources);
            }
        }
    }
    pod
}

/// The pod with the allocated resources from its status.
#[must_use]
pub fn with_resources_of_status(pod: &Pod) -> Pod {
    let mut adjusted = pod.clone();
    let (Some(spec), Some(status)) = (&mut adjusted.spec, &pod.status) else { return adjusted };
    let reported =
        [&status.container_statuses, &status.init_container_statuses].into_iter().flatten().flatten();
    let reported: BTreeMap<_, _> =
        reported.filter_map(|status| Some((status.name.as_str(), status.resources.as_ref()?))).collect();
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        if let Some(resources) = reported.get(container.name.as_str()) {
            container.resources = Some((*resources).clone());
        }
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::*;
    use objects::Quantity;
    use objects::core::v1::{Container, PodSpec, ResourceRequirements};

    fn pod(uid: &str, cpu: &str) -> Pod {
        let requests = BTreeMap::from([("cpu".to_owned(), Quantity(cpu.to_owned()))]);
        let container = Container {
            resources: Some(ResourceRequirements { requests: Some(requests), ..Default::default() }),
            ..Container::default()
        };
        let mut pod = Pod {
            spec: Some(PodSpec { containers: vec![container], ..PodSpec::default() }),
            ..Pod::default()
        };
        pod.metadata.uid = Some(uid.to_owned());
        pod
    }

    #[test]
    fn pod_exceeding_allocatable_is_rejected() {
        let allocatable = BTreeMap::from([("cpu".to_owned(), 2000), ("pods".to_owned(), 3000)]);
        let others = [pod("a", "1"), pod("b", "500m")];
        assert_eq!(rejection(&pod("c", "500m"), others.iter(), &allocatable), None);
        let (reason, message) = rejection(&pod("c", "1"), others.iter(), &allocatable).expect("too much");
        assert_eq!(reason, "OutOfcpu");
        assert_eq!(
            message,
            "Pod was rejected: Node didn't have enough resource: cpu, requested: 1000, used: 1500, capacity: 2000"
        );
        let many = [pod("a", "0"), pod("b", "0"), pod("d", "0")];
        assert_eq!(
            rejection(&pod("c", "0"), many.iter(), &allocatable).map(|r| r.0),
            Some("OutOfpods".to_owned())
        );
    }

    #[test]
    fn pod_for_other_os_is_rejected() {
        let reason = |label: Option<&str>, os: Option<&str>| {
            let mut pod = pod("a", "0");
            pod.metadata.labels =
                label.map(|name| BTreeMap::from([("kubernetes.io/os".to_owned(), name.to_owned())]));
            if let Some(spec) = &mut pod.spec {
                spec.os = os.map(|name| objects::core::v1::PodOS { name: name.to_owned() });
            }
            other_os(&pod).map(|refused| refused.0)
        };
        assert_eq!(reason(None, None), None);
        assert_eq!(reason(Some("linux"), Some("linux")), None);
        assert_eq!(reason(Some("windows"), None).as_deref(), Some("PodOSSelectorNodeLabelDoesNotMatch"));
        assert_eq!(reason(None, Some("windows")).as_deref(), Some("PodOSNotSupported"));
    }

    #[test]
    fn pod_with_apparmor_profile_on_host_without_is_rejected() {
        let pod = |of_pod: &str, own: &str| -> Pod {
            let profile = |kind: &str| match kind {
                "" => serde_json::json!({}),
                kind => serde_json::json!({"appArmorProfile": {"type": kind}}),
            };
            serde_json::from_value(serde_json::json!({"spec": {"securityContext": profile(of_pod),
                "containers": [{"name": "c", "securityContext": profile(own)}]}}))
            .unwrap()
        };
        for (of_pod, own, refused) in [
            ("", "", false),
            ("Unconfined", "Unconfined", false),
            ("RuntimeDefault", "", true),
            ("", "Localhost", true),
        ] {
            assert_eq!(apparmor_missing(&pod(of_pod, own), false).is_some(), refused, "{of_pod} {own}");
            assert_eq!(apparmor_missing(&pod(of_pod, own), true), None);
        }
        let (reason, message) = apparmor_missing(&pod("", "RuntimeDefault"), false).expect("refused");
        assert_eq!(reason, "AppArmor");
        assert!(
            message.ends_with("Cannot enforce AppArmor: AppArmor is not enabled on the host"),
            "{message}"
        );
    }

    #[test]
    fn host_port_in_use_is_rejected() {
        let with = |uid: &str, port: serde_json::Value| -> Pod {
            serde_json::from_value(serde_json::json!({"metadata": {"uid": uid},
                "spec": {"containers": [{"name": "c", "ports": [port]}]}}))
            .unwrap()
        };
        let tcp = with("a", serde_json::json!({"containerPort": 80, "hostPort": 8080}));
        for (port, clash) in [
            (serde_json::json!({"containerPort": 1, "hostPort": 8080}), true),
            (serde_json::json!({"containerPort": 1, "hostPort": 8080, "hostIP": "10.0.0.1"}), true),
            (serde_json::json!({"containerPort": 1, "hostPort": 8080, "protocol": "UDP"}), false),
            (serde_json::json!({"containerPort": 8080}), false),
        ] {
            let refused = rejection(&with("b", port.clone()), [&tcp].into_iter(), &BTreeMap::new());
            assert_eq!(refused.map(|(reason, _)| reason), clash.then(|| "NodePorts".to_owned()), "{port}");
        }
    }

    #[test]
    fn allocated_resources_come_from_status() {
        let mut requesting = pod("a", "3");
        requesting.status = serde_json::from_str(
            r#"{"containerStatuses": [{"name": "", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "resources": {"requests": {"cpu": "1"}}}]}"#,
        )
        .unwrap();
        let adjusted = with_resources_of_status(&requesting);
        assert_eq!(pod_requests(adjusted.spec.as_ref().unwrap(), "cpu"), 1000);
        assert!(resources_changed(&adjusted, &requesting));
    }

    #[test]
    fn resize_without_capacity_is_deferred() {
        let allocatable = BTreeMap::from([("cpu".to_owned(), 2000), ("pods".to_owned(), 2000)]);
        let (before, other) = (pod("a", "500m"), pod("b", "1"));
        let reason = |cpu: &str| {
            let now = pod("a", cpu);
            assert!(resources_changed(&before, &now));
            resize_pending(&now, [&before, &other].into_iter(), &allocatable).map(|found| found.0)
        };
        assert_eq!(reason("1"), None);
        assert_eq!(reason("1500m").as_deref(), Some("Deferred"));
        assert_eq!(reason("3").as_deref(), Some("Infeasible"));
        assert!(!resources_changed(&before, &pod("a", "100m")));
        let retained = with_resources_of(&pod("a", "3"), &before);
        assert_eq!(pod_requests(retained.spec.as_ref().expect("a spec"), "cpu"), 500);
    }
}
