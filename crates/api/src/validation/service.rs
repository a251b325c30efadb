//! What makes a Service valid.

use crate::value::Fields;
use machinery::Value;

pub fn service_type(service: &Value) -> &str {
    service.field("spec").text("type")
}

pub fn ports(service: &Value) -> &[Value] {
    service.field("spec").items("ports")
}

/// Whether traffic from outside the cluster may reach a service of this spec.
pub fn externally_accessible(spec: &Value) -> bool {
    match spec.text("type") {
        "LoadBalancer" | "NodePort" => true,
        "ClusterIP" => !spec.items("externalIPs").is_empty(),
        _ => false,
    }
}

pub fn is_externally_accessible(service: &Value) -> bool {
    externally_accessible(service.field("spec"))
}

/// Whether load balancers ask nodes on a port of their own if they have endpoints of this service.
pub fn needs_health_check(service: &Value) -> bool {
    let spec = service.field("spec");
    spec.text("type") == "LoadBalancer" && spec.text("externalTrafficPolicy") == "Local"
}
