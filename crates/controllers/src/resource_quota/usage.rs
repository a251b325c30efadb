//! Quota usage of objects, as quota admission counts it. Pure.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use machinery::quantity::Quantity;
use objects::Quantity as Text;
use objects::core::v1::{
    Container, PersistentVolumeClaim, Pod, PodAffinityTerm, ResourceQuota, ResourceRequirements,
    ScopedResourceSelectorRequirement, Service,
};
use objects::resource::v1::{DeviceSubRequest, ExactDeviceRequest, ResourceClaim};

pub use crate::protection::volume_attributes_class::of_claim as classes;
use crate::shared::pod_facts;
pub use crate::shared::pod_resources::{Amounts, add, read};
use crate::shared::pod_resources::{List, Source, total};

/// Devices counted for a request with allocation mode `All`.
const ALL_DEVICES: i64 = 32;

#[must_use]
pub fn write(amounts: &Amounts) -> BTreeMap<String, Text> {
    amounts.iter().map(|(name, amount)| (name.clone(), Text(amount.to_string()))).collect()
}

/// True if the pod uses compute resources: it has not finished, and its deletion is not overdue.
#[must_use]
pub fn is_charged(pod: &Pod, now: Timestamp) -> bool {
    let meta = &pod.metadata;
    let overdue = match (&meta.deletion_timestamp, meta.deletion_grace_period_seconds) {
        (Some(deletion), Some(grace)) => now.duration_since(deletion.0) > SignedDuration::from_secs(grace),
        _ => false,
    };
    !pod_facts::is_finished(pod) && !overdue
}

/// Usage of a pod; one that is not charged only counts as an object.
#[must_use]
pub fn of_pod(pod: &Pod, now: Timestamp) -> Amounts {
    let one = Quantity::new(1);
    let mut result = Amounts::from([("count/pods".to_owned(), one)]);
    if !is_charged(pod, now) {
        return result;
    }
    result.insert("pods".to_owned(), one);
    let compute = ["cpu", "memory", "ephemeral-storage"];
    for (name, amount) in total(pod, List::Requests, Source::SpecAndStatus) {
        let known = compute.contains(&name.as_str()) || name.starts_with("hugepages-");
        if known || is_extended(&name) {
            result.insert(format!("requests.{name}"), amount);
        }
        if known {
            result.insert(name, amount);
        }
    }
    for (name, amount) in total(pod, List::Limits, Source::SpecAndStatus) {
        if compute.contains(&name.as_str()) {
            result.insert(format!("limits.{name}"), amount);
        }
    }
    result
}

/// An extended resource: named with a domain that is not Kubernetes' own.
fn is_extended(name: &str) -> bool {
    name.contains('/')
        && (!name.contains("kubernetes.io/") || name.starts_with("deviceclass.resource.kubernetes.io/"))
}

#[must_use]
pub fn of_service(service: &Service) -> Amounts {
    let count = |number: usize| Quantity::new(i64::try_from(number).unwrap_or(i64::MAX));
    let spec = service.spec.as_ref();
    let ports = spec.and_then(|spec| spec.ports.as_deref()).unwrap_or_default();
    let kind = spec.and_then(|spec| spec.type_.as_deref()).unwrap_or("ClusterIP");
    let allocates = spec.and_then(|spec| spec.allocate_load_balancer_node_ports) != Some(false);
    let node_ports = match kind {
        "NodePort" => ports.len(),
        "LoadBalancer" if allocates => ports.len(),
        "LoadBalancer" => ports.iter().filter(|port| port.node_port.unwrap_or(0) != 0).count(),
        _ => 0,
    };
    Amounts::from([
        ("count/services".to_owned(), count(1)),
        ("services".to_owned(), count(1)),
        ("services.loadbalancers".to_owned(), count(usize::from(kind == "LoadBalancer"))),
        ("services.nodeports".to_owned(), count(node_ports)),
    ])
}

#[must_use]
pub fn of_claim(claim: &PersistentVolumeClaim) -> Amounts {
    let one = Quantity::new(1);
    let mut result = Amounts::from([
        ("count/persistentvolumeclaims".to_owned(), one),
        ("persistentvolumeclaims".to_owned(), one),
    ]);
    let class = crate::persistent_volume::claim_class(claim);
    let class = (!class.is_empty()).then_some(class);
    if let Some(class) = &class {
        result.insert(format!("{class}.storageclass.storage.k8s.io/persistentvolumeclaims"), one);
    }
    let spec = claim.spec.as_ref();
    let requested =
        read(spec.and_then(|spec| spec.resources.as_ref()?.requests.as_ref())).get("storage").copied();
    let allocated = claim.status.as_ref().and_then(|status| status.allocated_resources.as_ref());
    let allocated = read(allocated).get("storage").copied();
    if let Some(storage) = requested.map(|requested| allocated.map_or(requested, |more| more.max(requested)))
    {
        let storage = in_whole_bytes(storage);
        result.insert("requests.storage".to_owned(), storage);
        if let Some(class) = &class {
            result.insert(format!("{class}.storageclass.storage.k8s.io/requests.storage"), storage);
        }
    }
    result
}

fn in_whole_bytes(amount: Quantity) -> Quantity {
    let whole = Quantity::new(amount.value()).with_format(amount.format());
    if amount == whole { amount } else { whole }
}

/// Usage of a resource claim: its devices by class.
#[must_use]
pub fn of_resource_claim(claim: &ResourceClaim) -> Amounts {
    let mut result = Amounts::from([("count/resourceclaims.resource.k8s.io".to_owned(), Quantity::new(1))]);
    let mut charge = |class: &str, devices: i64| {
        let name = format!("{class}.deviceclass.resource.k8s.io/devices");
        add(&mut result, Amounts::from([(name, Quantity::new(devices))]));
    };
    let requests = claim.spec.devices.iter().flat_map(|devices| devices.requests.iter().flatten());
    for request in requests {
        let alternatives = request.first_available.as_deref().unwrap_or_default();
        // Any of the alternatives may be allocated: each class counts with its largest one.
        let mut most: BTreeMap<&str, i64> = BTreeMap::new();
        for DeviceSubRequest { device_class_name, allocation_mode, count, .. } in alternatives {
            let slot = most.entry(device_class_name).or_default();
            *slot = (*slot).max(devices(allocation_mode.as_deref(), *count));
        }
        most.into_iter().for_each(|(class, devices)| charge(class, devices));
        if let (Some(exact), true) = (&request.exactly, alternatives.is_empty()) {
            let ExactDeviceRequest { device_class_name, allocation_mode, count, .. } = exact;
            charge(device_class_name, devices(allocation_mode.as_deref(), *count));
        }
    }
    result
}

/// Devices of a request; a mode that is not known counts none.
fn devices(mode: Option<&str>, count: Option<i64>) -> i64 {
    match mode {
        None | Some("" | "ExactCount") => count.unwrap_or(1),
        Some("All") => ALL_DEVICES,
        Some(_) => 0,
    }
}

/// Scopes of a quota; an object must match all of them.
#[must_use]
pub fn scopes(quota: &ResourceQuota) -> Vec<ScopedResourceSelectorRequirement> {
    let Some(spec) = &quota.spec else { return Vec::new() };
    let plain = spec.scopes.iter().flatten().map(|scope| ScopedResourceSelectorRequirement {
        scope_name: scope.clone(),
        operator: "Exists".to_owned(),
        values: None,
    });
    let selected =
        spec.scope_selector.iter().flat_map(|selector| selector.match_expressions.iter().flatten()).cloned();
    plain.chain(selected).collect()
}

/// True if the pod is in the scope.
#[must_use]
pub fn pod_in_scope(scope: &ScopedResourceSelectorRequirement, pod: &Pod) -> bool {
    let priority_class = pod.spec.as_ref().and_then(|spec| spec.priority_class_name.as_ref());
    match scope.scope_name.as_str() {
        "Terminating" => has_deadline(pod),
        "NotTerminating" => !has_deadline(pod),
        "BestEffort" => is_best_effort(pod),
        "NotBestEffort" => !is_best_effort(pod),
        "PriorityClass" => names_match(scope, priority_class.map_or(&[], std::slice::from_ref)),
        "CrossNamespacePodAffinity" => crosses_namespaces(pod),
        _ => false,
    }
}

/// True for a pod with an active deadline (scope `Terminating`).
#[must_use]
pub fn has_deadline(pod: &Pod) -> bool {
    let deadline = pod.spec.as_ref().and_then(|spec| spec.active_deadline_seconds);
    deadline.is_some_and(|seconds| seconds >= 0)
}

/// True if the claim is in the scope.
#[must_use]
pub fn claim_in_scope(scope: &ScopedResourceSelectorRequirement, claim: &PersistentVolumeClaim) -> bool {
    scope.scope_name == "VolumeAttributesClass" && names_match(scope, &classes(claim))
}

fn names_match(scope: &ScopedResourceSelectorRequirement, names: &[String]) -> bool {
    let names: Vec<_> = names.iter().filter(|name| !name.is_empty()).collect();
    let values = scope.values.as_deref().unwrap_or_default();
    let listed = |name: &&String| values.contains(name);
    match scope.operator.as_str() {
        "Exists" => !names.is_empty(),
        "DoesNotExist" => names.is_empty(),
        "In" => names.iter().any(&listed),
        // Invalid without values.
        "NotIn" if values.is_empty() => false,
        "NotIn" => names.is_empty() || names.iter().any(|name| !listed(name)),
        _ => false,
    }
}

fn is_best_effort(pod: &Pod) -> bool {
    if let Some(class) = pod.status.as_ref().and_then(|status| status.qos_class.as_ref()) {
        return class == "BestEffort";
    }
    let sets_any = |resources: Option<&ResourceRequirements>| {
        let lists =
            [resources.and_then(|all| all.requests.as_ref()), resources.and_then(|all| all.limits.as_ref())];
        let mut named =
            lists.into_iter().flat_map(read).filter(|(name, _)| name == "cpu" || name == "memory");
        named.any(|(_, amount)| amount.sign() > 0)
    };
    let Some(spec) = &pod.spec else { return true };
    if spec.resources.is_some() {
        return !sets_any(spec.resources.as_ref());
    }
    let mut all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    !all.any(|container: &Container| sets_any(container.resources.as_ref()))
}

fn crosses_namespaces(pod: &Pod) -> bool {
    let crosses = |term: &PodAffinityTerm| {
        term.namespaces.as_ref().is_some_and(|names| !names.is_empty()) || term.namespace_selector.is_some()
    };
    let Some(affinity) = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref()) else { return false };
    let toward = affinity.pod_affinity.iter().flat_map(|affinity| {
        let required = affinity.required_during_scheduling_ignored_during_execution.iter().flatten();
        let preferred = affinity.preferred_during_scheduling_ignored_during_execution.iter().flatten();
        required.chain(preferred.map(|weighted| &weighted.pod_affinity_term))
    });
    let away = affinity.pod_anti_affinity.iter().flat_map(|affinity| {
        let required = affinity.required_during_scheduling_ignored_during_execution.iter().flatten();
        let preferred = affinity.preferred_during_scheduling_ignored_during_execution.iter().flatten();
        required.chain(preferred.map(|weighted| &weighted.pod_affinity_term))
    });
    toward.chain(away).any(crosses)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::fixture::{at, pod, time};
    use serde_json::Value;
    use serde_json::json;

    fn texts(amounts: &Amounts) -> BTreeMap<String, String> {
        amounts.iter().map(|(name, amount)| (name.clone(), amount.to_string())).collect()
    }

    #[test]
    fn usage_matches_vectors() {
        fn read<T: serde::de::DeserializeOwned>(object: Value) -> T {
            serde_json::from_value(object).expect("an object")
        }
        for vector in vectors::quota_usages() {
            let used = match vector.resource.as_str() {
                "pods" => of_pod(&read(vector.object), at(1_800_000_000)),
                "services" => of_service(&read(vector.object)),
                "persistentvolumeclaims" => of_claim(&read(vector.object)),
                "resourceclaims" => of_resource_claim(&read(vector.object)),
                other => panic!("{other}"),
            };
            assert_eq!(texts(&used), vector.used, "{}", vector.name);
        }
    }

    #[test]
    fn scopes_match_vectors() {
        for vector in vectors::quota_scopes() {
            let scope = serde_json::from_value(vector.scope).expect("a scope");
            let matches = match vector.resource.as_str() {
                "pods" => pod_in_scope(&scope, &serde_json::from_value(vector.object).expect("a pod")),
                _ => claim_in_scope(&scope, &serde_json::from_value(vector.object).expect("a claim")),
            };
            assert_eq!(matches, vector.matches, "{}", vector.name);
        }
    }

    #[test]
    fn best_effort_matches_vectors() {
        for vector in vectors::qos_classes() {
            let pod = serde_json::from_value(vector.pod).expect("a pod");
            assert_eq!(is_best_effort(&pod), vector.class == "BestEffort", "{}", vector.name);
        }
    }

    #[test]
    fn pod_is_charged_until_grace_period_ends() {
        let mut deleted = pod("p", "Running");
        deleted.metadata.deletion_timestamp = Some(time(10));
        deleted.metadata.deletion_grace_period_seconds = Some(5);
        assert!(is_charged(&deleted, at(15)) && !is_charged(&deleted, at(16)));
    }

    #[test]
    fn plain_scopes_require_existence() {
        let quota: ResourceQuota = serde_json::from_value(json!({"spec": {
            "scopes": ["BestEffort"],
            "scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["a"]}]},
        }}))
        .expect("a quota");
        let found: Vec<_> =
            scopes(&quota).into_iter().map(|scope| (scope.scope_name, scope.operator)).collect();
        let expected = [("BestEffort", "Exists"), ("PriorityClass", "In")];
        assert_eq!(found, expected.map(|(name, operator)| (name.to_owned(), operator.to_owned())));
    }
}
