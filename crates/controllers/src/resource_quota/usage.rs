//! How much of each quota's resources an object uses. Pure.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use machinery::quantity::Quantity;
use objects::Quantity as Text;
use objects::core::v1::{
    Container, PersistentVolumeClaim, Pod, PodAffinityTerm, ResourceQuota, ScopedResourceSelectorRequirement,
    Service,
};

use crate::pod_facts;

/// Amounts by the name of the resource.
pub type Amounts = BTreeMap<String, Quantity>;

pub fn add(total: &mut Amounts, more: Amounts) {
    for (name, amount) in more {
        match total.get_mut(&name) {
            Some(known) => *known += amount,
            None => {
                total.insert(name, amount);
            }
        }
    }
}

/// Amounts of an API object; what cannot be read is left out.
#[must_use]
pub fn read(list: Option<&BTreeMap<String, Text>>) -> Amounts {
    let all = list.into_iter().flatten();
    all.filter_map(|(name, text)| Some((name.clone(), Quantity::parse(&text.0).ok()?))).collect()
}

#[must_use]
pub fn write(amounts: &Amounts) -> BTreeMap<String, Text> {
    amounts.iter().map(|(name, amount)| (name.clone(), Text(amount.to_string()))).collect()
}

fn larger(total: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        let known = total.entry(name.clone()).or_insert(*amount);
        if *amount > *known {
            *known = *amount;
        }
    }
}

/// What a pod uses; one that has ended, or should have, only counts as an object.
#[must_use]
pub fn of_pod(pod: &Pod, now: Timestamp) -> Amounts {
    let one = Quantity::new(1);
    let mut result = Amounts::from([("count/pods".to_owned(), one)]);
    let overdue = pod.metadata.deletion_timestamp.as_ref().is_some_and(|deletion| {
        let grace = SignedDuration::from_secs(pod.metadata.deletion_grace_period_seconds.unwrap_or(0));
        now.duration_since(deletion.0) > grace
    });
    if pod_facts::is_finished(pod) || overdue {
        return result;
    }
    result.insert("pods".to_owned(), one);
    let requests =
        sum(pod, |container| read(container.resources.as_ref().and_then(|all| all.requests.as_ref())), true);
    let limits =
        sum(pod, |container| read(container.resources.as_ref().and_then(|all| all.limits.as_ref())), false);
    for (name, amount) in &requests {
        let basic =
            matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-");
        if basic {
            result.insert(name.clone(), *amount);
        }
        if basic || name.contains('/') {
            result.insert(format!("requests.{name}"), *amount);
        }
    }
    for name in ["cpu", "memory", "ephemeral-storage"] {
        if let Some(amount) = limits.get(name) {
            result.insert(format!("limits.{name}"), *amount);
        }
    }
    result
}

/// Of all containers together, or of the greediest moment of the start, and the overhead of the pod.
fn sum(pod: &Pod, amounts: impl Fn(&Container) -> Amounts, requests: bool) -> Amounts {
    let Some(spec) = &pod.spec else { return Amounts::new() };
    let mut total = Amounts::new();
    for container in &spec.containers {
        add(&mut total, amounts(container));
    }
    let (mut sidecars, mut start) = (Amounts::new(), Amounts::new());
    for init in spec.init_containers.iter().flatten() {
        let mut moment = sidecars.clone();
        add(&mut moment, amounts(init));
        if init.restart_policy.as_deref() == Some("Always") {
            sidecars.clone_from(&moment);
            add(&mut total, amounts(init));
        }
        larger(&mut start, &moment);
    }
    larger(&mut total, &start);
    // What is given to the pod as a whole replaces the sum.
    let whole = spec.resources.as_ref();
    let whole =
        read(whole.and_then(|all| if requests { all.requests.as_ref() } else { all.limits.as_ref() }));
    total.extend(whole);
    let overhead = read(spec.overhead.as_ref());
    if requests {
        add(&mut total, overhead);
    } else {
        let known = overhead.into_iter().filter(|(name, _)| total.contains_key(name)).collect();
        add(&mut total, known);
    }
    total
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
        result.insert("requests.storage".to_owned(), storage);
        if let Some(class) = &class {
            result.insert(format!("{class}.storageclass.storage.k8s.io/requests.storage"), storage);
        }
    }
    result
}

/// The scopes of a quota, all of which an object must be in.
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

/// The pod is in the scope.
#[must_use]
pub fn pod_in_scope(scope: &ScopedResourceSelectorRequirement, pod: &Pod) -> bool {
    let spec = pod.spec.clone().unwrap_or_default();
    match scope.scope_name.as_str() {
        "Terminating" => spec.active_deadline_seconds.is_some_and(|seconds| seconds >= 0),
        "NotTerminating" => spec.active_deadline_seconds.is_none_or(|seconds| seconds < 0),
        "BestEffort" => is_best_effort(pod),
        "NotBestEffort" => !is_best_effort(pod),
        "PriorityClass" => names_match(scope, spec.priority_class_name.as_slice()),
        "CrossNamespacePodAffinity" => crosses_namespaces(pod),
        _ => false,
    }
}

/// The claim is in the scope.
#[must_use]
pub fn claim_in_scope(scope: &ScopedResourceSelectorRequirement, claim: &PersistentVolumeClaim) -> bool {
    let spec = claim.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.clone());
    let status = claim.status.as_ref();
    let current = status.and_then(|status| status.current_volume_attributes_class_name.clone());
    let target = status
        .and_then(|status| status.modify_volume_status.as_ref()?.target_volume_attributes_class_name.clone());
    let names: Vec<String> =
        spec.into_iter().chain(current).chain(target).filter(|name| !name.is_empty()).collect();
    scope.scope_name == "VolumeAttributesClass" && names_match(scope, &names)
}

fn names_match(scope: &ScopedResourceSelectorRequirement, names: &[String]) -> bool {
    let names: Vec<_> = names.iter().filter(|name| !name.is_empty()).collect();
    let listed = names.iter().any(|name| scope.values.iter().flatten().any(|value| value == *name));
    match scope.operator.as_str() {
        "Exists" => !names.is_empty(),
        "DoesNotExist" => names.is_empty(),
        "In" => listed,
        "NotIn" => !listed,
        _ => false,
    }
}

fn is_best_effort(pod: &Pod) -> bool {
    if let Some(class) = pod.status.as_ref().and_then(|status| status.qos_class.as_ref()) {
        return class == "BestEffort";
    }
    let asks = |container: &Container| {
        let resources = container.resources.as_ref();
        let lists =
            [resources.and_then(|all| all.requests.as_ref()), resources.and_then(|all| all.limits.as_ref())];
        let named = lists.into_iter().flatten().flatten();
        let mut relevant = named.filter(|(name, _)| matches!(name.as_str(), "cpu" | "memory"));
        relevant.any(|(_, text)| Quantity::parse(&text.0).is_ok_and(|amount| !amount.is_zero()))
    };
    let spec = pod.spec.as_ref();
    let mut all =
        spec.into_iter().flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
    !all.any(asks)
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
    use crate::fixture::{at, pod, time};
    use serde_json::json;

    fn texts(amounts: &Amounts) -> Vec<String> {
        amounts.iter().map(|(name, amount)| format!("{name}={amount}")).collect()
    }

    #[test]
    fn pods_use_what_their_containers_ask_for() {
        let mut busy = pod("p", "Running");
        busy.spec = serde_json::from_value(json!({
            "containers": [
                { "name": "a", "resources": { "requests": { "cpu": "100m", "nvidia.com/gpu": "1" }, "limits": { "memory": "1Gi" } } },
                { "name": "b", "resources": { "requests": { "cpu": "200m" } } },
            ],
            "initContainers": [
                { "name": "side", "restartPolicy": "Always", "resources": { "requests": { "cpu": "50m" } } },
                { "name": "init", "resources": { "requests": { "cpu": "1" } } },
            ],
        })).expect("a spec");
        assert_eq!(
            texts(&of_pod(&busy, at(0))),
            [
                "count/pods=1",
                "cpu=1050m",
                "limits.memory=1Gi",
                "pods=1",
                "requests.cpu=1050m",
                "requests.nvidia.com/gpu=1",
            ]
        );
        let mut done = busy.clone();
        done.status.get_or_insert_default().phase = Some("Succeeded".into());
        assert_eq!(texts(&of_pod(&done, at(0))), ["count/pods=1"]);
        busy.metadata.deletion_timestamp = Some(time(10));
        busy.metadata.deletion_grace_period_seconds = Some(5);
        assert_eq!(of_pod(&busy, at(12)).len(), 6);
        assert_eq!(of_pod(&busy, at(16)).len(), 1);
    }

    #[test]
    fn services_and_claims_are_counted_by_kind() {
        let service: Service = serde_json::from_value(json!({
            "spec": { "type": "LoadBalancer", "ports": [{ "port": 1, "nodePort": 30001 }, { "port": 2 }],
                      "allocateLoadBalancerNodePorts": false },
        }))
        .expect("a service");
        let used = of_service(&service);
        assert_eq!((used["services.loadbalancers"].value(), used["services.nodeports"].value()), (1, 1));
        let claim: PersistentVolumeClaim = serde_json::from_value(json!({
            "spec": { "storageClassName": "fast", "resources": { "requests": { "storage": "10Gi" } } },
            "status": { "allocatedResources": { "storage": "20Gi" } },
        }))
        .expect("a claim");
        let used = of_claim(&claim);
        assert_eq!(used["requests.storage"].to_string(), "20Gi");
        assert_eq!(used["fast.storageclass.storage.k8s.io/persistentvolumeclaims"].value(), 1);
    }

    #[test]
    fn scopes_pick_pods() {
        let mut plain = pod("p", "Running");
        let scope = |name: &str, operator: &str, values: &[&str]| ScopedResourceSelectorRequirement {
            scope_name: name.into(),
            operator: operator.into(),
            values: Some(values.iter().map(ToString::to_string).collect()),
        };
        assert!(pod_in_scope(&scope("BestEffort", "Exists", &[]), &plain));
        assert!(pod_in_scope(&scope("NotTerminating", "Exists", &[]), &plain));
        assert!(!pod_in_scope(&scope("PriorityClass", "In", &["high"]), &plain));
        plain.spec.get_or_insert_default().priority_class_name = Some("high".into());
        assert!(pod_in_scope(&scope("PriorityClass", "In", &["high"]), &plain));
        assert!(!pod_in_scope(&scope("PriorityClass", "NotIn", &["high"]), &plain));
        assert!(!pod_in_scope(&scope("CrossNamespacePodAffinity", "Exists", &[]), &plain));
    }
}
