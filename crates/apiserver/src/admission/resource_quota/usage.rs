//! Usage of an object by quota resource name.

use super::super::{Attributes, Operation};
use super::resized::effective_spec;
use super::scopes::is_terminating;
use api::pod_spec::resources::quantity;
use api::pod_spec::totals::container_totals;
use api::value::Fields;
use base::clock::Clock;
use jiff::{SignedDuration, Timestamp};
use machinery::quantity::Quantity;
use machinery::{Map, Value, meta};
use std::collections::{BTreeMap, BTreeSet};

pub type Amounts = BTreeMap<String, Quantity>;

/// Resources with a quota name that predates `count/…`.
const ALIASES: [&str; 4] = ["configmaps", "resourcequotas", "replicationcontrollers", "secrets"];
const COMPUTE: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];
const BY_STORAGE_CLASS: &str = ".storageclass.storage.k8s.io/";
const BY_DEVICE_CLASS: &str = ".deviceclass.resource.k8s.io/devices";
/// Devices counted for a request with allocation mode `All`.
const ALL_DEVICES: i64 = 32;

/// Reports whether this write can change the usage of a namespace.
pub fn counts(attributes: &Attributes<'_>, new: &Value, old: Option<&Value>) -> bool {
    let kind = &attributes.served.kind;
    let create = attributes.operation == Operation::Create;
    let main = attributes.subresource().is_empty();
    match (kind.group(), kind.resource()) {
        ("", "pods") if main => create || old.is_some_and(|old| is_terminating(old) != is_terminating(new)),
        ("", "pods") => attributes.subresource() == "resize",
        ("", "persistentvolumeclaims") if !main => {
            let allocated = |claim: &Value| claim.at("status.allocatedResources.storage").clone();
            attributes.subresource() == "status" && old.is_some_and(|old| allocated(old) != allocated(new))
        }
        ("", "services" | "persistentvolumeclaims") | ("resource.k8s.io", "resourceclaims") => main,
        _ => main && create,
    }
}

fn count_name((group, resource): (&str, &str)) -> String {
    format!("count/{}", machinery::status::qualified(group, resource))
}

/// Reports whether a quota resource name counts this kind.
pub fn tracks(kind: (&str, &str), name: &str) -> bool {
    if name == count_name(kind) {
        return true;
    }
    match kind {
        ("", "pods") => {
            let bare =
                name.strip_prefix("requests.").or_else(|| name.strip_prefix("limits.")).unwrap_or(name);
            name == "pods"
                || COMPUTE.contains(&bare)
                || name.starts_with("hugepages-")
                || name.starts_with("requests.hugepages-")
                || (name.starts_with("requests.") && is_extended(bare))
        }
        ("", "services") => matches!(name, "services" | "services.nodeports" | "services.loadbalancers"),
        ("", "persistentvolumeclaims") => {
            let own = name.split_once(BY_STORAGE_CLASS).map_or(name, |(_, resource)| resource);
            matches!(own, "persistentvolumeclaims" | "requests.storage")
        }
        ("resource.k8s.io", "resourceclaims") => name.ends_with(BY_DEVICE_CLASS),
        ("", resource) => ALIASES.contains(&resource) && name == resource,
        _ => false,
    }
}

/// An extended resource: named with a domain that is not Kubernetes' own.
fn is_extended(name: &str) -> bool {
    name.contains('/')
        && (!name.contains("kubernetes.io/") || name.starts_with("deviceclass.resource.kubernetes.io/"))
}

/// Usage of one object.
pub fn of(kind: (&str, &str), object: &Value) -> Amounts {
    let one = Quantity::new(1);
    let mut used = Amounts::from([(count_name(kind), one)]);
    match kind {
        ("", "pods") if is_alive(object) => {
            let spec = effective_spec(object);
            used.extend(compute(&pod_total(&spec, "requests"), &pod_total(&spec, "limits")));
        }
        ("", "services") => add_service(&mut used, object),
        ("", "persistentvolumeclaims") => add_claim(&mut used, object),
        ("resource.k8s.io", "resourceclaims") => add_devices(&mut used, object),
        ("", resource) if ALIASES.contains(&resource) => {
            used.insert(resource.to_owned(), one);
        }
        _ => {}
    }
    used
}

/// Reports whether a pod uses compute resources; a finished or overdue one only counts as an object.
fn is_alive(pod: &Value) -> bool {
    if matches!(pod.field("status").text("phase"), "Failed" | "Succeeded") {
        return false;
    }
    let deleted = meta::deletion_timestamp(pod).and_then(|time| time.parse::<Timestamp>().ok());
    let grace = pod.field("metadata").opt_int("deletionGracePeriodSeconds");
    match (deleted, grace) {
        (Some(deleted), Some(grace)) => deleted
            .checked_add(SignedDuration::from_secs(grace))
            .is_ok_and(|end| end >= Clock::system().now()),
        _ => true,
    }
}

/// Requests or limits of the pod, including pod-level resources and overhead.
pub fn pod_total(spec: &Value, list: &str) -> Amounts {
    let mut total = container_totals(spec, list);
    for (name, amount) in amounts(spec.field("resources").field(list)) {
        if matches!(name.as_str(), "cpu" | "memory") || name.starts_with("hugepages-") {
            total.insert(name, amount);
        }
    }
    for (name, overhead) in amounts(spec.field("overhead")) {
        match total.get_mut(&name) {
            // A limit of zero is none.
            Some(limit) if list == "limits" && limit.is_zero() => {}
            Some(amount) => *amount += overhead,
            None if list == "requests" => {
                total.insert(name, overhead);
            }
            None => {}
        }
    }
    total
}

fn compute(requests: &Amounts, limits: &Amounts) -> Amounts {
    let mut used = Amounts::from([("pods".to_owned(), Quantity::new(1))]);
    for (name, amount) in requests {
        let known = COMPUTE.contains(&name.as_str()) || name.starts_with("hugepages-");
        if known {
            used.insert(name.clone(), *amount);
        }
        if known || is_extended(name) {
            used.insert(format!("requests.{name}"), *amount);
        }
    }
    for (name, amount) in limits.iter().filter(|(name, _)| COMPUTE.contains(&name.as_str())) {
        used.insert(format!("limits.{name}"), *amount);
    }
    used
}

fn add_service(used: &mut Amounts, service: &Value) {
    let spec = service.field("spec");
    let ports = spec.items("ports");
    let kind = spec.text("type");
    let balanced = kind == "LoadBalancer";
    let node_ports = match kind {
        "LoadBalancer" if spec.opt_flag("allocateLoadBalancerNodePorts") == Some(false) => {
            ports.iter().filter(|port| port.int("nodePort") != 0).count()
        }
        "NodePort" | "LoadBalancer" => ports.len(),
        _ => 0,
    };
    let number = |count: usize| Quantity::new(i64::try_from(count).unwrap_or(i64::MAX));
    used.insert("services".to_owned(), Quantity::new(1));
    used.insert("services.nodeports".to_owned(), number(node_ports));
    used.insert("services.loadbalancers".to_owned(), number(usize::from(balanced)));
}

fn add_claim(used: &mut Amounts, claim: &Value) {
    let class = meta::annotation(claim, "volume.beta.kubernetes.io/storage-class")
        .unwrap_or_else(|| claim.field("spec").text("storageClassName"));
    let mut charge = |name: &str, amount: Quantity| {
        used.insert(name.to_owned(), amount);
        if !class.is_empty() {
            used.insert(format!("{class}{BY_STORAGE_CLASS}{name}"), amount);
        }
    };
    charge("persistentvolumeclaims", Quantity::new(1));
    let requested = claim.at("spec.resources.requests.storage");
    if !requested.is_null() {
        let amount = quantity(requested).max(quantity(claim.at("status.allocatedResources.storage")));
        // Storage is counted in whole bytes.
        let whole = Quantity::new(amount.value()).with_format(amount.format());
        charge("requests.storage", if amount == whole { amount } else { whole });
    }
}

fn add_devices(used: &mut Amounts, claim: &Value) {
    let count = |request: &Value| match request.text("allocationMode") {
        "" | "ExactCount" => request.opt_int("count").unwrap_or(1),
        "All" => ALL_DEVICES,
        _ => 0,
    };
    let mut charge = |class: &str, devices: i64| {
        *used.entry(format!("{class}{BY_DEVICE_CLASS}")).or_default() += Quantity::new(devices);
    };
    for request in claim.at("spec.devices").items("requests") {
        let (exact, alternatives) = (request.field("exactly"), request.items("firstAvailable"));
        if exact.is_object() && alternatives.is_empty() {
            charge(exact.text("deviceClassName"), count(exact));
        }
        // Any of the alternatives may be allocated: each class counts with its largest one.
        let mut most: BTreeMap<&str, i64> = BTreeMap::new();
        for alternative in alternatives {
            let slot = most.entry(alternative.text("deviceClassName")).or_default();
            *slot = (*slot).max(count(alternative));
        }
        most.into_iter().for_each(|(class, devices)| charge(class, devices));
    }
}

/// Quotas of CPU and memory need every container to set its requests and limits.
pub fn check_required(pod: &Value, tracked: &[&str]) -> Result<(), String> {
    let spec = pod.field("spec");
    let of_pod = spec.field("resources");
    if of_pod.has("requests") || of_pod.has("limits") {
        return Ok(());
    }
    let mut missing: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for container in spec.items("containers").iter().chain(spec.items("initContainers")) {
        let resources = container.field("resources");
        for &name in tracked {
            let (list, resource) = match name.split_once('.') {
                Some((list @ ("requests" | "limits"), resource)) => (list, resource),
                _ => ("requests", name),
            };
            if matches!(resource, "cpu" | "memory") && !resources.field(list).has(resource) {
                missing.entry(name).or_default().insert(container.text("name"));
            }
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let texts: Vec<String> = missing
        .into_iter()
        .map(|(name, containers)| {
            let containers: Vec<&str> = containers.into_iter().collect();
            format!("{name} for: {}", containers.join(","))
        })
        .collect();
    Err(format!("must specify {}", texts.join("; ")))
}

pub fn amounts(list: &Value) -> Amounts {
    let entries = list.as_object().into_iter().flatten();
    entries.map(|(name, value)| (name.clone(), quantity(value))).collect()
}

/// Increase of usage from `old` to `new`.
pub fn growth(new: &Amounts, old: &Amounts) -> Amounts {
    new.iter()
        .map(|(name, amount)| {
            let mut more = *amount;
            more -= old.get(name).copied().unwrap_or_default();
            (name.clone(), if more.sign() < 0 { Quantity::default() } else { more })
        })
        .collect()
}

pub fn sum(used: &Amounts, requested: &Amounts) -> Amounts {
    let mut total = used.clone();
    for (name, amount) in requested {
        *total.entry(name.clone()).or_default() += *amount;
    }
    total
}

pub fn show(amounts: &Amounts) -> Value {
    let entries = amounts.iter().map(|(name, amount)| (name.clone(), amount.to_string().into()));
    Value::Object(entries.collect::<Map<String, Value>>())
}

/// `a=1,b=2` of these names.
pub fn describe(amounts: &Amounts, names: &[&str]) -> String {
    let named = amounts.iter().filter(|(name, _)| names.contains(&name.as_str()));
    let texts: Vec<String> = named.map(|(name, amount)| format!("{name}={amount}")).collect();
    texts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn usage_matches_vectors() {
        for vector in vectors::quota_usages() {
            let used = of((&vector.group, &vector.resource), &vector.object);
            assert_eq!(show(&used), json!(vector.used), "{}", vector.name);
        }
    }

    #[test]
    fn usage_of_other_kinds_is_object_count() {
        for (kind, want) in [
            (("apps", "deployments"), json!({"count/deployments.apps": "1"})),
            (("", "secrets"), json!({"count/secrets": "1", "secrets": "1"})),
        ] {
            assert_eq!(show(&of(kind, &json!({}))), want);
        }
    }

    #[test]
    fn pod_totals_match_vectors() {
        for vector in vectors::pod_resources() {
            let spec = effective_spec(&vector.pod);
            let requests = show(&pod_total(&spec, "requests"));
            assert_eq!(requests, json!(vector.quota_requests), "requests: {}", vector.name);
            assert_eq!(show(&pod_total(&spec, "limits")), json!(vector.limits), "limits: {}", vector.name);
        }
    }
}
