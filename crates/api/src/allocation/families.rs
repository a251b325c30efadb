//! Address fields of a Service before allocation: values carried over from the old service, `clusterIPs` from
//! `clusterIP`, and policy and families from those of the cluster.

use super::allocators::node_ports;
use super::ip::Family;
use super::service::{AllocationError, Allocators, invalid_if_any};
use crate::validation::service::{needs_health_check, ports, service_type};
use crate::validation::service_addresses;
use crate::value::{Fields, is_zero, texts};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, names};
use serde_json::json;

/// Carries over the old service's allocations that an update omits.
pub fn patch_allocated_values(new: &mut Value, old: &Value) {
    if service_type(old) != "ExternalName" && service_type(new) != "ExternalName" {
        let before = old.field("spec");
        let spec = new.child_mut("spec");
        for field in ["clusterIP", "clusterIPs"] {
            if before.has(field) && is_zero(spec.field(field)) {
                spec.set(field, before.field(field).clone());
            }
        }
    }
    if needs_node_ports(old) && needs_node_ports(new) {
        let used: Vec<i64> =
            node_ports(new).into_iter().filter(|port| node_ports(old).contains(port)).collect();
        for port in new.child_mut("spec").items_mut("ports") {
            let name = port.text("name");
            // The last of several ports with the same (empty) name wins.
            let before = ports(old).iter().rev().find(|old| old.text("name") == name);
            let before = before.map_or(0, |old| old.int("nodePort"));
            if port.int("nodePort") == 0 && before != 0 && !used.contains(&before) {
                port.set("nodePort", before);
            }
        }
    }
    if needs_health_check(old) && needs_health_check(new) {
        let port = old.field("spec").int("healthCheckNodePort");
        if port != 0 {
            new.child_mut("spec").default_if_zero("healthCheckNodePort", port);
        }
    }
}

/// Syncs `clusterIPs` with `clusterIP` for clients that set only the latter.
pub fn normalize_cluster_ips(new: &mut Value, old: Option<&Value>) {
    let spec = new.child_mut("spec");
    let ip = spec.text("clusterIP").to_owned();
    let none = spec.items("clusterIPs").is_empty();
    let Some(old) = old.map(|old| old.field("spec")) else {
        if !ip.is_empty() && none {
            spec.set("clusterIPs", json!([ip]));
        }
        return;
    };
    let before = old.text("clusterIP");
    if before == ip {
        if none && !old.items("clusterIPs").is_empty() {
            spec.set("clusterIPs", old.field("clusterIPs").clone());
        }
    } else if spec.items("clusterIPs") == old.items("clusterIPs") {
        if ip.is_empty() {
            spec.unset("clusterIPs");
        } else {
            spec.set("clusterIPs", json!([ip]));
        }
    }
}

/// Defaults `ipFamilyPolicy` and `ipFamilies` from the cluster's families, and rejects families that it lacks.
pub fn init_ip_families(
    new: &mut Value,
    old: Option<&Value>,
    allocators: &Allocators,
) -> Result<(), AllocationError> {
    if service_type(new) == "ExternalName" || old.is_some_and(|old| is_settled_dual_stack(new, old)) {
        return Ok(());
    }
    let headless_without_selector = {
        let spec = new.field("spec");
        spec.text("clusterIP") == "None" && spec.entries("selector").is_none_or(serde_json::Map::is_empty)
    };
    let spec = new.child_mut("spec");
    if !spec.has("ipFamilyPolicy") {
        let inherited = old.and_then(|old| old.field("spec").opt_text("ipFamilyPolicy"));
        let own = if headless_without_selector { "RequireDualStack" } else { "SingleStack" };
        spec.set("ipFamilyPolicy", inherited.unwrap_or(own));
    }
    invalid_if_any(service_addresses::validate(new, old))?;

    let spec = new.child_mut("spec");
    let policy = spec.text("ipFamilyPolicy").to_owned();
    let mut errors = check_policy(spec, old.map(|old| old.field("spec")), &policy);
    let (mut families, unavailable) = families_of_addresses(spec, allocators);
    errors.extend(unavailable);
    invalid_if_any(errors)?;
    // Nothing is allocated for a headless service without a selector: it may name families that the cluster lacks.
    if !headless_without_selector {
        invalid_if_any(check_families(&families, &policy, allocators))?;
    }
    if families.is_empty() {
        families.push(allocators.default_family().as_str().to_owned());
    }
    if policy != "SingleStack" && (headless_without_selector || allocators.families() == 2) {
        add_other_family(&mut families);
    }
    spec.set("ipFamilies", json!(families));
    Ok(())
}

/// Compares addresses and families with the policy. A service that becomes `SingleStack` loses the second of each.
fn check_policy(spec: &mut Value, old: Option<&Value>, policy: &str) -> ErrorList {
    let path = Path::new("spec");
    let policy_path = path.child("ipFamilyPolicy");
    let reject = |detail: &str| FieldError::invalid_str(&policy_path, policy, detail);
    let single = policy == "SingleStack";
    let mut errors = Vec::new();
    if let Some(old) = old {
        for (field, what) in [("clusterIPs", "cluster IP"), ("ipFamilies", "IP family")] {
            let same = old.items(field) == spec.items(field);
            let reduced = !spec.items(field).is_empty() && spec.items(field).len() < old.items(field).len();
            if single && same {
                truncate(spec, field, 1);
            } else if !single && reduced {
                errors.push(reject(&format!("must be 'SingleStack' to release the secondary {what}")));
            }
        }
    }
    if single {
        for (field, what) in [("clusterIPs", "cluster IPs"), ("ipFamilies", "IP families")] {
            if spec.items(field).len() == 2 {
                let detail = format!(
                    "must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified"
                );
                errors.push(reject(&detail));
            }
        }
    }
    errors
}

/// The families of the service, completed by those of its addresses; errors for addresses that cannot be allocated.
fn families_of_addresses(spec: &Value, allocators: &Allocators) -> (Vec<String>, ErrorList) {
    let path = Path::new("spec");
    let ips_path = path.child("clusterIPs");
    let mut families: Vec<String> = texts(spec.items("ipFamilies")).map(str::to_owned).collect();
    let mut errors = Vec::new();
    for (i, ip) in texts(spec.items("clusterIPs")).enumerate().take_while(|(_, ip)| *ip != "None") {
        let Some(family) = names::parse_ip_sloppy(ip).map(Family::of).filter(|_| i >= families.len()) else {
            continue;
        };
        if allocators.of(family).is_some() {
            families.push(family.as_str().to_owned());
        } else {
            let detail = format!("{} is not configured on this cluster", family.as_str());
            errors.push(FieldError::invalid(&ips_path.index(i), spec.field("clusterIPs"), detail));
        }
    }
    (families, errors)
}

/// Errors for families that the cluster lacks.
fn check_families(families: &[String], policy: &str, allocators: &Allocators) -> ErrorList {
    let path = Path::new("spec");
    let mut errors = Vec::new();
    if policy == "RequireDualStack" && allocators.families() < 2 {
        let detail = "this cluster is not configured for dual-stack services";
        errors.push(FieldError::invalid_str(&path.child("ipFamilyPolicy"), policy, detail));
    }
    let families_path = path.child("ipFamilies");
    for (i, family) in families.iter().enumerate() {
        if Family::parse(family).and_then(|family| allocators.of(family)).is_none() {
            let detail = "not configured on this cluster";
            errors.push(FieldError::invalid_str(&families_path.index(i), family, detail));
        }
    }
    errors
}

fn add_other_family(families: &mut Vec<String>) {
    if let [only] = families.as_slice()
        && let Some(family) = Family::parse(only)
    {
        families.push(family.other().as_str().to_owned());
    }
}

/// A `PreferDualStack` service is not upgraded or downgraded only because the cluster has changed.
pub fn is_settled_dual_stack(new: &Value, old: &Value) -> bool {
    let (spec, before) = (new.field("spec"), old.field("spec"));
    spec.text("ipFamilyPolicy") == "PreferDualStack"
        && matches!(before.opt_text("ipFamilyPolicy"), None | Some("PreferDualStack"))
        && spec.text("type") == before.text("type")
        && matches!(spec.text("type"), "ClusterIP" | "NodePort" | "LoadBalancer")
        && ["clusterIPs", "ipFamilies"].iter().all(|field| spec.items(field) == before.items(field))
}

fn needs_node_ports(service: &Value) -> bool {
    let spec = service.field("spec");
    match spec.text("type") {
        "NodePort" => true,
        "LoadBalancer" => spec.opt_flag("allocateLoadBalancerNodePorts").unwrap_or(true),
        _ => false,
    }
}

fn truncate(spec: &mut Value, field: &str, length: usize) {
    if let Some(Value::Array(list)) = spec.field_mut(field) {
        list.truncate(length);
    }
}
