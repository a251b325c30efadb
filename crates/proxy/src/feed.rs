//! Converts API objects to the planner's model: the services to serve, and the endpoints of each port.

use std::net::IpAddr;
use std::sync::Arc;

use objects::core::v1 as core;
use objects::discovery::v1::EndpointSlice;

use crate::model::{Endpoint, Port, Protocol, Service, ServiceName};

/// Services with this label belong to another proxy.
const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
/// Services and slices with this label are headless.
const HEADLESS: &str = "service.kubernetes.io/headless";
pub const SERVICE_LABEL: &str = "kubernetes.io/service-name";
/// Default session affinity timeout.
const DEFAULT_AFFINITY: i32 = 10_800;

/// The name of the service that a slice belongs to; `None` if its endpoints are not to be proxied.
#[must_use]
pub fn service_of(slice: &EndpointSlice) -> Option<ServiceName> {
    let labels = slice.metadata.labels.as_ref()?;
    if labels.contains_key(PROXY_NAME) || labels.contains_key(HEADLESS) {
        return None;
    }
    let name = labels.get(SERVICE_LABEL)?.clone();
    Some(ServiceName { namespace: slice.metadata.namespace.clone().unwrap_or_default(), name })
}

/// A service as the planner sees it from `node`. `None` for services of another proxy or without an address.
#[must_use]
pub fn view(service: &core::Service, slices: &[Arc<EndpointSlice>], node: &str) -> Option<Service> {
    let spec = service.spec.as_ref()?;
    let labels = service.metadata.labels.as_ref();
    if labels.is_some_and(|labels| labels.contains_key(PROXY_NAME) || labels.contains_key(HEADLESS)) {
        return None;
    }
    if spec.type_.as_deref() == Some("ExternalName") {
        return None;
    }
    let cluster_ips = addresses(spec.cluster_ips.as_deref().unwrap_or(spec.cluster_ip.as_slice()));
    if cluster_ips.is_empty() {
        return None;
    }
    let affinity_seconds = (spec.session_affinity.as_deref() == Some("ClientIP")).then(|| {
        let config = spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
        let seconds = config.and_then(|config| config.timeout_seconds).unwrap_or(DEFAULT_AFFINITY);
        u32::try_from(seconds).unwrap_or(0)
    });
    let port = |port: &core::ServicePort| {
        let name = port.name.clone().unwrap_or_default();
        let protocol = protocol(port.protocol.as_deref());
        Some(Port {
            protocol,
            port: u16::try_from(port.port).ok()?,
            node_port: port.node_port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0),
            endpoints: slices.iter().flat_map(|slice| endpoints(slice, &name, protocol, node)).collect(),
            name,
        })
    };
    let local = |policy: &Option<String>| policy.as_deref() == Some("Local");
    Some(Service {
        name: ServiceName {
            namespace: service.metadata.namespace.clone().unwrap_or_default(),
            name: service.metadata.name.clone().unwrap_or_default(),
        },
        cluster_ips,
        external_ips: addresses(spec.external_ips.as_deref().unwrap_or_default()),
        load_balancer_ips: load_balancer(service),
        source_ranges: spec
            .load_balancer_source_ranges
            .iter()
            .flatten()
            .filter_map(|text| text.trim().parse().ok())
            .collect(),
        ports: spec.ports.iter().flatten().filter_map(port).collect(),
        affinity_seconds,
        internal_local: local(&spec.internal_traffic_policy),
        external_local: local(&spec.external_traffic_policy),
        health_check_port: spec
            .health_check_node_port
            .and_then(|port| u16::try_from(port).ok())
            .filter(|port| *port != 0),
    })
}

fn addresses(texts: &[String]) -> Vec<IpAddr> {
    texts.iter().filter_map(|text| text.parse().ok()).collect()
}

/// Ingress addresses that the proxy serves itself; those with `ipMode: Proxy` are left to the load balancer.
fn load_balancer(service: &core::Service) -> Vec<IpAddr> {
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ingress = status.and_then(|status| status.ingress.as_deref()).unwrap_or_default();
    let ours = ingress.iter().filter(|ingress| ingress.ip_mode.as_deref() != Some("Proxy"));
    ours.filter_map(|ingress| ingress.ip.as_deref()?.parse().ok()).collect()
}

fn protocol(name: Option<&str>) -> Protocol {
    name.and_then(Protocol::from_name).unwrap_or(Protocol::Tcp)
}

fn endpoints(slice: &EndpointSlice, port_name: &str, wanted: Protocol, node: &str) -> Vec<Endpoint> {
    let ours = slice.ports.iter().flatten().find(|port| {
        port.name.as_deref().unwrap_or_default() == port_name && protocol(port.protocol.as_deref()) == wanted
    });
    let Some(port) = ours.and_then(|port| u16::try_from(port.port?).ok()) else { return Vec::new() };
    let one = |endpoint: &objects::discovery::v1::Endpoint| {
        let conditions = endpoint.conditions.clone().unwrap_or_default();
        let hints = endpoint.hints.clone().unwrap_or_default();
        let ready = conditions.ready.unwrap_or(true);
        Some(Endpoint {
            // Several addresses of one endpoint are equivalent; the first is used.
            address: endpoint.addresses.first()?.parse().ok()?,
            port,
            ready,
            serving: conditions.serving.unwrap_or(ready),
            terminating: conditions.terminating.unwrap_or(false),
            local: endpoint.node_name.as_deref() == Some(node),
            zone_hints: hints.for_zones.into_iter().flatten().map(|zone| zone.name).collect(),
            node_hints: hints.for_nodes.into_iter().flatten().map(|node| node.name).collect(),
        })
    };
    slice.endpoints.iter().flatten().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{from_value, json};

    #[test]
    fn service_and_slices_are_converted() {
        let service: core::Service = from_value(json!({
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {
                "type": "LoadBalancer", "clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"],
                "externalTrafficPolicy": "Local", "healthCheckNodePort": 30999, "sessionAffinity": "ClientIP",
                "loadBalancerSourceRanges": ["10.0.0.0/8", "nonsense"],
                "ports": [{"name": "http", "port": 80, "nodePort": 30080}, {"name": "dns", "protocol": "UDP", "port": 53}],
            },
            "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}, {"ip": "192.0.2.2", "ipMode": "Proxy"}, {"hostname": "x"}]}},
        }))
        .expect("a service");
        let slice: EndpointSlice = from_value(json!({
            "addressType": "IPv4",
            "metadata": {"name": "web-1", "namespace": "default", "labels": {SERVICE_LABEL: "web"}},
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
            "endpoints": [
                {"addresses": ["10.1.0.1"], "nodeName": "here", "conditions": {"ready": true}, "hints": {"forZones": [{"name": "z"}]}},
                {"addresses": ["10.1.0.2"], "nodeName": "there", "conditions": {"ready": false, "serving": true, "terminating": true}},
            ],
        }))
        .expect("a slice");
        assert_eq!(service_of(&slice).map(|name| name.to_string()).as_deref(), Some("default/web"));
        let got = view(&service, &[Arc::new(slice)], "here").expect("a view");
        assert_eq!(got.load_balancer_ips, [IpAddr::from([192, 0, 2, 1])]);
        assert_eq!(
            (got.source_ranges.len(), got.affinity_seconds, got.health_check_port),
            (1, Some(10_800), Some(30_999))
        );
        assert!(got.external_local && !got.internal_local);
        let [http, dns] = &got.ports[..] else { panic!("two ports") };
        assert_eq!((http.node_port, http.endpoints.len(), dns.endpoints.len()), (Some(30_080), 2, 0));
        assert_eq!((http.endpoints[0].local, http.endpoints[1].local), (true, false));
        assert!(http.endpoints[1].serving && http.endpoints[1].terminating && !http.endpoints[1].ready);
    }

    #[test]
    fn services_of_other_proxies_are_ignored() {
        for object in [
            json!({"spec": {"clusterIP": "None", "clusterIPs": ["None"]}}),
            json!({"spec": {"type": "ExternalName", "externalName": "x"}}),
            json!({"metadata": {"labels": {PROXY_NAME: "other"}}, "spec": {"clusterIP": "10.96.0.9"}}),
            json!({"metadata": {"labels": {HEADLESS: ""}}, "spec": {"clusterIP": "10.96.0.9"}}),
            json!({"spec": {}}),
        ] {
            let service: core::Service = from_value(object.clone()).expect("a service");
            assert_eq!(view(&service, &[], "here"), None, "{object}");
        }
    }

    #[test]
    fn slices_of_headless_services_and_other_proxies_are_ignored() {
        for label in [HEADLESS, PROXY_NAME] {
            let slice: EndpointSlice = from_value(json!({
                "addressType": "IPv4", "endpoints": [],
                "metadata": {"name": "web-1", "namespace": "default", "labels": {SERVICE_LABEL: "web", label: ""}},
            }))
            .expect("a slice");
            assert_eq!(service_of(&slice), None, "{label}");
        }
    }
}
