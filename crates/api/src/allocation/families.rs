//! What a Service's address fields mean before anything is allocated: values carried over from the old service,
//! `clusterIPs` by `clusterIP`, and policy and families by what the cluster has.

use super::allocators::node_ports;
use super::ip::Family;
use super::service::{AllocationError, Allocators, invalid_if_any};
use crate::validation::service::{needs_health_check, ports, service_type};
use crate::validation::service_addresses;
use crate::value::{Fields, is_zero, texts};
use machinery::field::{FieldError, Path};
use machinery::{Value, names};
use serde_json::json;

/// What the old service was given stays when an update leaves it out.
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
    if wants_node_ports(old) && wants_node_ports(new) {
        let used: Vec<i64> =
            node_ports(new).into_iter().filter(|port| node_ports(old).contains(port)).collect();
        for port in new.child_mut("spec").items_mut("ports") {
            let name = port.text("name");
            // Of ports with one name (none), the last one counts.
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

/// Brings `clusterIPs` in line with `clusterIP` for clients that know only the latter.
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

/// Fills in `ipFamilyPolicy` and `ipFamilies` by what the cluster has, and refuses what it has not.
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

    let path = Path::new("spec");
    let policy_path = path.child("ipFamilyPolicy");
    let spec = new.child_mut("spec");
    let policy = spec.text("ipFamilyPolicy").to_owned();
    let single = policy == "SingleStack";
    let refuse = |detail: &str| FieldError::invalid_str(&policy_path, &policy, detail);
    let mut errors = Vec::new();
    if let Some(old) = old.map(|old| old.field("spec")) {
        for (field, what) in [("clusterIPs", "cluster IP"), ("ipFamilies", "IP family")] {
            let same = old.items(field) == spec.items(field);
            let reduced = !spec.items(field).is_empty() && spec.items(field).len() < old.items(field).len();
            if single && same {
                truncate(spec, field, 1);
            } else if !single && reduced {
                errors.push(refuse(&format!("must be 'SingleStack' to release the secondary {what}")));
            }
        }
    }
    if single {
        for (field, what) in [("clusterIPs", "cluster IPs"), ("ipFamilies", "IP families")] {
            if spec.items(field).len() == 2 {
                let detail = format!(
                    "must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified"
                );
                errors.push(refuse(&detail));
            }
        }
    }
    let mut families: Vec<String> = texts(spec.items("ipFamilies")).map(str::to_owned).collect();
    let ips_path = path.child("clusterIPs");
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
    invalid_if_any(errors)?;

    let default_family = allocators.default_family();
    let add_other = |families: &mut Vec<String>| {
        if let [only] = families.as_slice()
            && let Some(family) = Family::parse(only)
        {
            families.push(family.other().as_str().to_owned());
        }
    };
    if headless_without_selector {
        // Nobody allocates for these, so they may name families that the cluster has not.
        if families.is_empty() {
            families.push(default_family.as_str().to_owned());
        }
        if !single {
            add_other(&mut families);
        }
        spec.set("ipFamilies", json!(families));
        return Ok(());
    }
    let mut errors = Vec::new();
    if policy == "RequireDualStack" && allocators.families() < 2 {
        errors.push(refuse("this cluster is not configured for dual-stack services"));
    }
    let families_path = path.child("ipFamilies");
    for (i, family) in families.iter().enumerate() {
        if Family::parse(family).and_then(|family| allocators.of(family)).is_none() {
            let detail = "not configured on this cluster";
            errors.push(FieldError::invalid_str(&families_path.index(i), family, detail));
        }
    }
    invalid_if_any(errors)?;
    if families.is_empty() {
        families.push(default_family.as_str().to_owned());
    }
    if !single && allocators.families() == 2 {
        add_other(&mut families);
    }
    spec.set("ipFamilies", json!(families));
    Ok(())
}

/// A `PreferDualStack` service is neither upgraded nor downgraded just because the cluster has changed.
pub fn is_settled_dual_stack(new: &Value, old: &Value) -> bool {
    let (spec, before) = (new.field("spec"), old.field("spec"));
    spec.text("ipFamilyPolicy") == "PreferDualStack"
        && matches!(before.opt_text("ipFamilyPolicy"), None | Some("PreferDualStack"))
        && spec.text("type") == before.text("type")
        && matches!(spec.text("type"), "ClusterIP" | "NodePort" | "LoadBalancer")
        && ["clusterIPs", "ipFamilies"].iter().all(|field| spec.items(field) == before.items(field))
}

fn wants_node_ports(service: &Value) -> bool {
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
