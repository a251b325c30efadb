//! Service: defaults and update preparation. Allocation of addresses and ports is in
//! [`crate::allocation`]; validation in [`crate::validation::service`].

use crate::field_selectors::{LabelError, Selectable};
use crate::kind::SelectableField;
use crate::validation::service::{
    self as rules, externally_accessible, is_externally_accessible, needs_health_check, service_type,
};
use crate::value::Fields;
use crate::{Kind, Scope};
use machinery::Value;
use serde_json::json;

pub static KIND: Kind = Kind {
    // Names are DNS labels; a leading digit is allowed since v1.36.
    validate_name: machinery::names::dns_label,
    default,
    prepare_create,
    prepare_update,
    canonicalize: |service| {
        // Older clients set it for every type; it has no effect here and is never shown.
        if service_type(service) == "ExternalName" {
            service.child_mut("spec").unset("internalTrafficPolicy");
        }
    },
    validate: |service| rules::validate(service, None),
    validate_update: rules::validate_update,
    validate_status_update: rules::validate_status_update,
    warnings: |new, _| rules::warnings(new),
    status_warnings: rules::balancer_warnings,
    create_on_update: true,
    storage_path: "services/specs",
    selectable: Selectable::new(SELECTABLE, LabelError::Label),
    table: &crate::tables::service::SERVICE,
    returns_deleted: true,
    ..Kind::new("", "v1", "Service", "services", Scope::Namespaced)
};

const SELECTABLE: &[SelectableField] = {
    use crate::field_selectors::{NAME, NAMESPACE, field, text};
    &[
        NAME,
        NAMESPACE,
        field("spec.clusterIP", |service| text(service, "/spec/clusterIP")),
        field("spec.type", |service| text(service, "/spec/type")),
    ]
};

/// Default session affinity timeout of `ClientIP`: three hours.
const CLIENT_IP_AFFINITY_SECONDS: i64 = 10800;

fn default(service: &mut Value) {
    let spec = service.child_mut("spec");
    default_session_affinity(spec);
    spec.default_if_zero("type", "ClusterIP");
    for port in spec.items_mut("ports") {
        port.default_if_zero("protocol", "TCP");
        let number = port.int("port");
        port.default_if_zero("targetPort", number);
    }
    if externally_accessible(spec) {
        spec.default_if_zero("externalTrafficPolicy", "Cluster");
    }
    if matches!(spec.text("type"), "ClusterIP" | "NodePort" | "LoadBalancer") {
        spec.default_to("internalTrafficPolicy", "Cluster");
    }
    if spec.text("type") == "LoadBalancer" {
        spec.default_to("allocateLoadBalancerNodePorts", true);
        if let Some(balancer) = service.at_mut("status.loadBalancer") {
            for point in balancer.items_mut("ingress").iter_mut().filter(|point| !point.text("ip").is_empty())
            {
                point.default_to("ipMode", "VIP");
            }
        }
    }
}

fn default_session_affinity(spec: &mut Value) {
    spec.default_if_zero("sessionAffinity", "None");
    match spec.text("sessionAffinity") {
        "None" => {
            spec.unset("sessionAffinityConfig");
        }
        "ClientIP" if spec.at("sessionAffinityConfig.clientIP.timeoutSeconds").is_null() => {
            let config = json!({"clientIP": {"timeoutSeconds": CLIENT_IP_AFFINITY_SECONDS}});
            spec.set("sessionAffinityConfig", config);
        }
        _ => {}
    }
}

fn prepare_create(service: &mut Value) {
    service.set("status", empty_status());
}

fn prepare_update(new: &mut Value, old: &Value) {
    new.set("status", old.get("status").cloned().unwrap_or_else(empty_status));
    wipe_type_dependent_fields(new, old);
}

fn empty_status() -> Value {
    json!({"loadBalancer": {}})
}

/// A service is a union discriminated by its type. When the type changes, values that were set for the old type and
/// that the client did not change are cleared, so that clients need not handle them.
fn wipe_type_dependent_fields(new: &mut Value, old: &Value) {
    let same = |new: &Value, field: &str| new.field("spec").field(field) == old.field("spec").field(field);
    let needs_ip = |service: &Value| service_type(service) != "ExternalName";
    let needs_port = |service: &Value| matches!(service_type(service), "NodePort" | "LoadBalancer");
    let balanced = |service: &Value| service_type(service) == "LoadBalancer";

    let mut wiped: Vec<&str> = Vec::new();
    if needs_ip(old) && !needs_ip(new) {
        if same(new, "clusterIP") && same(new, "clusterIPs") {
            wiped.extend(["clusterIP", "clusterIPs"]);
        }
        wiped.extend(["ipFamilies", "ipFamilyPolicy"].into_iter().filter(|field| same(new, field)));
    }
    let drop_node_ports =
        needs_port(old) && !needs_port(new) && node_ports(new).all(|port| node_ports(old).any(|p| p == port));
    if needs_health_check(old) && !needs_health_check(new) && same(new, "healthCheckNodePort") {
        wiped.push("healthCheckNodePort");
    }
    if balanced(old) && !balanced(new) {
        wiped.extend(
            ["allocateLoadBalancerNodePorts", "loadBalancerClass"]
                .into_iter()
                .filter(|field| same(new, field)),
        );
    }
    if is_externally_accessible(old) && !is_externally_accessible(new) && same(new, "externalTrafficPolicy") {
        wiped.push("externalTrafficPolicy");
    }
    let clear_status = !balanced(new);

    let spec = new.child_mut("spec");
    for field in wiped {
        spec.unset(field);
    }
    if drop_node_ports {
        for port in spec.items_mut("ports") {
            port.unset("nodePort");
        }
    }
    if clear_status {
        new.child_mut("status").set("loadBalancer", json!({}));
    }
}

fn node_ports(service: &Value) -> impl Iterator<Item = i64> {
    rules::ports(service).iter().map(|port| port.int("nodePort")).filter(|port| *port != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defaulted(spec: Value) -> Value {
        let mut service = json!({"spec": spec});
        default(&mut service);
        let once = service.clone();
        default(&mut service);
        assert_eq!(once, service, "defaulting is idempotent");
        service["spec"].take()
    }

    #[test]
    fn minimal_service_gets_defaults() {
        assert_eq!(
            defaulted(json!({"ports": [{"port": 80}]})),
            json!({
                "internalTrafficPolicy": "Cluster",
                "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}],
                "sessionAffinity": "None",
                "type": "ClusterIP",
            })
        );
        assert_eq!(
            defaulted(json!({"type": "LoadBalancer", "sessionAffinity": "ClientIP"})),
            json!({
                "allocateLoadBalancerNodePorts": true,
                "externalTrafficPolicy": "Cluster",
                "internalTrafficPolicy": "Cluster",
                "sessionAffinity": "ClientIP",
                "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 10800}},
                "type": "LoadBalancer",
            })
        );
        assert_eq!(
            defaulted(json!({"type": "ExternalName", "externalName": "a.b"})),
            json!({"type": "ExternalName", "externalName": "a.b", "sessionAffinity": "None"})
        );
    }

    #[test]
    fn type_change_clears_allocated_fields() {
        let old = json!({"spec": {
            "type": "LoadBalancer", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack", "externalTrafficPolicy": "Local", "healthCheckNodePort": 30001,
            "allocateLoadBalancerNodePorts": true, "ports": [{"port": 80, "nodePort": 30000}],
        }, "status": {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}}});
        let mut new = old.clone();
        new["spec"]["type"] = "ExternalName".into();
        prepare_update(&mut new, &old);
        assert_eq!(
            new,
            json!({"spec": {"type": "ExternalName", "ports": [{"port": 80}]}, "status": {"loadBalancer": {}}})
        );

        let mut new = old.clone();
        new["spec"]["type"] = "ClusterIP".into();
        new["spec"]["ports"][0]["nodePort"] = 30005.into();
        prepare_update(&mut new, &old);
        assert_eq!(
            new["spec"]["ports"][0]["nodePort"], 30005,
            "a changed port is retained for validation to reject"
        );
        assert_eq!(new["spec"]["clusterIP"], "10.0.0.1");
        assert!(new["spec"].get("healthCheckNodePort").is_none());
        assert!(new["spec"].get("externalTrafficPolicy").is_none());
    }
}
