//! Service and pod rules shared by the endpoints loops.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use objects::IntOrString;
use objects::core::v1::{ObjectReference, Pod, Service, ServicePort};
use runtime::{Cache, Change, Key};

use crate::shared::{pod_facts, selector};

/// Label on endpoints of headless services.
const HEADLESS: &str = "service.kubernetes.io/headless";

/// A target port of a service on a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Port {
    pub number: i32,
    pub name: String,
    pub protocol: String,
    pub app_protocol: Option<String>,
}

/// Target ports of a service on a pod; named ports that the pod lacks are skipped.
#[must_use]
pub fn ports(pod: &Pod, service: &Service) -> Vec<Port> {
    let wanted = service.spec.as_ref().and_then(|spec| spec.ports.as_deref()).unwrap_or_default();
    let port = |port: &ServicePort| {
        Some(Port {
            number: target_port(pod, port)?,
            name: port.name.clone().unwrap_or_default(),
            protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
            app_protocol: port.app_protocol.clone(),
        })
    };
    wanted.iter().filter_map(port).collect()
}

/// Labels of a service's endpoints: its own, and the headless label.
#[must_use]
pub fn labels(service: &Service) -> BTreeMap<String, String> {
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    labels.remove(HEADLESS);
    if is_headless(service) {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    labels
}

/// Reference to the pod of an endpoint.
#[must_use]
pub fn target(pod: &Pod) -> ObjectReference {
    ObjectReference {
        kind: Some("Pod".to_owned()),
        namespace: pod.metadata.namespace.clone(),
        name: pod.metadata.name.clone(),
        uid: pod.metadata.uid.clone(),
        ..ObjectReference::default()
    }
}

/// True if the endpoints of a service are managed here by its selector.
#[must_use]
pub fn selects(service: &Service) -> bool {
    let spec = service.spec.as_ref();
    spec.is_some_and(|spec| spec.selector.is_some() && spec.type_.as_deref() != Some("ExternalName"))
}

#[must_use]
pub fn is_headless(service: &Service) -> bool {
    let address = service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref()).unwrap_or_default();
    address.is_empty() || address == "None"
}

#[must_use]
pub fn publishes_unready(service: &Service) -> bool {
    service.spec.as_ref().and_then(|spec| spec.publish_not_ready_addresses) == Some(true)
}

/// Services affected by a change of a pod.
#[must_use]
pub fn of_pod(change: &Change<Pod>, services: &Cache<Service>) -> Vec<Key> {
    let namespace = change.object().metadata.namespace.as_deref().unwrap_or_default();
    let wants = |service: &Arc<Service>| {
        let pairs = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        let mut pods = change.old().into_iter().chain([change.object()]);
        pairs.is_some_and(|pairs| pods.any(|pod| selector::holds(pairs, pod.metadata.labels.as_ref())))
    };
    services
        .list(namespace)
        .iter()
        .filter(|service| wants(service))
        .map(|service| Key::of(&**service))
        .collect()
}

/// Pods that a service selects, by name.
#[must_use]
pub fn pods_of(service: &Service, pods: &Cache<Pod>) -> Vec<Arc<Pod>> {
    let Some(pairs) = service.spec.as_ref().and_then(|spec| spec.selector.as_ref()) else {
        return Vec::new();
    };
    let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
    pods.list(namespace)
        .into_iter()
        .filter(|pod| selector::holds(pairs, pod.metadata.labels.as_ref()))
        .collect()
}

/// True if a pod receives traffic, or will.
#[must_use]
pub fn is_reachable(pod: &Pod, even_terminating: bool) -> bool {
    !pod_facts::is_finished(pod)
        && !addresses(pod).is_empty()
        && (even_terminating || !pod_facts::is_deleting(pod))
}

#[must_use]
pub fn addresses(pod: &Pod) -> Vec<IpAddr> {
    let Some(status) = &pod.status else { return Vec::new() };
    let all = status.pod_ips.iter().flatten().map(|address| address.ip.as_str());
    let mut found: Vec<IpAddr> = all.filter_map(|text| text.parse().ok()).collect();
    if found.is_empty() {
        found.extend(status.pod_ip.as_deref().and_then(|text| text.parse::<IpAddr>().ok()));
    }
    found
}

/// Hostname of a pod within the service's domain, if it sets one.
#[must_use]
pub fn hostname<'a>(pod: &'a Pod, service: &Service) -> Option<&'a str> {
    let spec = pod.spec.as_ref()?;
    let hostname = spec.hostname.as_deref().filter(|name| !name.is_empty())?;
    (spec.subdomain == service.metadata.name).then_some(hostname)
}

/// Port of a pod that a service port targets.
fn target_port(pod: &Pod, port: &ServicePort) -> Option<i32> {
    match &port.target_port {
        None => Some(port.port),
        Some(IntOrString::Int(0)) => Some(port.port),
        Some(IntOrString::Int(number)) => Some(*number),
        Some(IntOrString::String(name)) if name.is_empty() => Some(port.port),
        Some(IntOrString::String(name)) => {
            let spec = pod.spec.as_ref()?;
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            let always = |container: &&objects::core::v1::Container| {
                container.restart_policy.as_deref() == Some("Always")
            };
            let sidecars = spec.init_containers.iter().flatten().filter(always);
            let named =
                spec.containers.iter().chain(sidecars).flat_map(|container| container.ports.iter().flatten());
            let mut named = named.filter(|known| {
                known.name.as_deref() == Some(name) && known.protocol.as_deref().unwrap_or("TCP") == protocol
            });
            named.next().map(|known| known.container_port)
        }
    }
}
