//! The service `kubernetes` with its endpoints, and the ServiceCIDR it is from.

use super::{BootstrapObject, condition};
use crate::registry::services::ServiceConfig;
use machinery::Value;
use serde_json::json;
use std::net::{IpAddr, SocketAddr};

const NAME: &str = "kubernetes";
const NAMESPACE: &str = "default";
const DEFAULT_PORT: u16 = 6443;

pub fn objects(config: &ServiceConfig, advertise: &str) -> Vec<BootstrapObject> {
    let address = advertise.parse::<SocketAddr>().ok();
    let port = address.map_or(DEFAULT_PORT, |address| address.port());
    let mut objects = vec![range(config), token_tracking()];
    if let Some(ip) = config.first_address() {
        objects.push(service(ip, port));
    }
    // A loopback address would direct every client to itself.
    if let Some(address) = address.filter(|address| !address.ip().is_loopback()) {
        objects.push(endpoints(address));
        objects.push(endpoint_slice(address));
    }
    objects
}

fn range(config: &ServiceConfig) -> BootstrapObject {
    let cidrs: Vec<String> = config.cidrs.iter().map(ToString::to_string).collect();
    let object = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
        "metadata": {"name": NAME},
        "spec": {"cidrs": cidrs},
        "status": {"conditions": [
            condition("Ready", "True", "", "Kubernetes default Service CIDR is ready"),
        ]},
    });
    BootstrapObject::new(("networking.k8s.io", "v1", "servicecidrs"), object)
}

fn service(ip: IpAddr, port: u16) -> BootstrapObject {
    let object = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": NAME, "namespace": NAMESPACE,
            "labels": {"component": "apiserver", "provider": "kubernetes"},
        },
        "spec": {
            "type": "ClusterIP", "sessionAffinity": "None",
            "clusterIP": ip.to_string(), "clusterIPs": [ip.to_string()],
            "ipFamilyPolicy": "SingleStack", "ipFamilies": [family(ip)],
            "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": port}],
        },
    });
    BootstrapObject::new(("", "v1", "services"), object)
}

fn family(ip: IpAddr) -> &'static str {
    if ip.is_ipv4() { "IPv4" } else { "IPv6" }
}

fn endpoints(address: SocketAddr) -> BootstrapObject {
    let object = json!({
        "apiVersion": "v1", "kind": "Endpoints",
        "metadata": {
            "name": NAME, "namespace": NAMESPACE,
            "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"},
        },
        "subsets": [{"addresses": [{"ip": address.ip().to_string()}], "ports": [port(address)]}],
    });
    BootstrapObject::new(("", "v1", "endpoints"), object)
}

fn endpoint_slice(address: SocketAddr) -> BootstrapObject {
    let object = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": NAME, "namespace": NAMESPACE,
            "labels": {"kubernetes.io/service-name": NAME},
        },
        "addressType": family(address.ip()),
        "endpoints": [{"addresses": [address.ip().to_string()], "conditions": {"ready": true}}],
        "ports": [port(address)],
    });
    BootstrapObject::new(("discovery.k8s.io", "v1", "endpointslices"), object)
}

fn port(address: SocketAddr) -> Value {
    json!({"name": "https", "port": address.port(), "protocol": "TCP"})
}

/// The date since which the use of legacy tokens is recorded.
fn token_tracking() -> BootstrapObject {
    let today = crate::registry::metadata::now();
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "name": "kube-apiserver-legacy-service-account-token-tracking", "namespace": "kube-system",
        },
        "data": {"since": today.split('T').next()},
    });
    BootstrapObject::new(("", "v1", "configmaps"), object)
}
