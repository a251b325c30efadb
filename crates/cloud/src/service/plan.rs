//! Computes the change of a service's load balancer from its last applied state.

use std::collections::BTreeSet;
use std::sync::Arc;

use objects::core::v1::{LoadBalancerStatus, Node, Service, ServicePort, ServiceSpec};

/// Keeps a service until its load balancer is deleted.
pub const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";
/// Nodes with this label are excluded from load balancers.
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// Nodes with this taint will be removed.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// Node fields that a load balancer uses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Backend {
    pub name: String,
    pub provider_id: String,
    pub addresses: Vec<(String, String)>,
}

/// Last applied state of a service.
#[derive(Clone, Debug)]
pub struct Done {
    pub service: Arc<Service>,
    pub backends: BTreeSet<Backend>,
}

#[derive(Clone, Debug)]
pub enum LoadBalancerPlan {
    Nothing,
    /// A deleted service of this name that had no finalizer.
    Release(Arc<Service>),
    Delete(Arc<Service>),
    Ensure(Arc<Service>),
    /// Only the nodes of the load balancer changed.
    Update(Arc<Service>),
}

#[must_use]
pub fn plan(
    service: Option<&Arc<Service>>,
    done: Option<&Done>,
    backends: &BTreeSet<Backend>,
) -> LoadBalancerPlan {
    let Some(service) = service else {
        return done
            .map_or(LoadBalancerPlan::Nothing, |done| LoadBalancerPlan::Release(Arc::clone(&done.service)));
    };
    if let Some(done) = done.filter(|done| done.service.metadata.uid != service.metadata.uid) {
        return LoadBalancerPlan::Release(Arc::clone(&done.service));
    }
    if !needs_load_balancer(service) || needs_cleanup(service) {
        let anything = done.is_some() || has_finalizer(service);
        return if anything {
            LoadBalancerPlan::Delete(Arc::clone(service))
        } else {
            LoadBalancerPlan::Nothing
        };
    }
    match done {
        Some(done) if !needs_update(&done.service, service) => {
            if done.backends == *backends {
                LoadBalancerPlan::Nothing
            } else {
                LoadBalancerPlan::Update(Arc::clone(service))
            }
        }
        _ => LoadBalancerPlan::Ensure(Arc::clone(service)),
    }
}

fn spec(service: &Service) -> Option<&ServiceSpec> {
    service.spec.as_ref()
}

/// True if this controller manages the service's load balancer; a class selects another one.
#[must_use]
pub fn needs_load_balancer(service: &Service) -> bool {
    spec(service).is_some_and(|spec| {
        spec.type_.as_deref() == Some("LoadBalancer") && spec.load_balancer_class.is_none()
    })
}

#[must_use]
pub fn has_finalizer(service: &Service) -> bool {
    service.metadata.finalizers.iter().flatten().any(|name| name == FINALIZER)
}

/// True if an unwanted load balancer exists or may exist.
#[must_use]
pub fn needs_cleanup(service: &Service) -> bool {
    let another_type = spec(service).is_none_or(|spec| spec.type_.as_deref() != Some("LoadBalancer"));
    has_finalizer(service) && (service.metadata.deletion_timestamp.is_some() || another_type)
}

/// True if a change affects the load balancer.
#[must_use]
pub fn needs_update(old: &Service, new: &Service) -> bool {
    if !needs_load_balancer(old) && !needs_load_balancer(new) {
        return false;
    }
    let (Some(was), Some(is)) = (spec(old), spec(new)) else { return true };
    let ports = |spec: &ServiceSpec| -> Vec<ServicePort> { spec.ports.clone().unwrap_or_default() };
    let families = |spec: &ServiceSpec| spec.ip_families.as_ref().map_or(0, Vec::len);
    needs_load_balancer(old) != needs_load_balancer(new)
        || old.metadata.uid != new.metadata.uid
        || old.metadata.annotations != new.metadata.annotations
        || was.load_balancer_source_ranges != is.load_balancer_source_ranges
        || ports(was) != ports(is)
        || was.session_affinity != is.session_affinity
        || was.session_affinity_config != is.session_affinity_config
        || was.load_balancer_ip != is.load_balancer_ip
        || was.external_ips != is.external_ips
        || was.external_traffic_policy != is.external_traffic_policy
        || was.health_check_node_port != is.health_check_node_port
        || families(was) != families(is)
}

/// True if a node gets traffic from load balancers. Readiness is ignored: load balancers have health checks, and a
/// cluster whose nodes are all not ready must not lose all targets.
#[must_use]
pub fn is_backend(node: &Node) -> bool {
    let label = node.metadata.labels.as_ref().and_then(|labels| labels.get(EXCLUDED));
    // Unparsable values exclude, too.
    let excluded =
        label.is_some_and(|text| !matches!(text.as_str(), "0" | "f" | "F" | "false" | "FALSE" | "False"));
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    let leaving = taints.iter().any(|taint| taint.key == TO_BE_DELETED);
    node.metadata.deletion_timestamp.is_none() && !excluded && !leaving
}

#[must_use]
pub fn backend(node: &Node) -> Backend {
    let addresses = crate::node_addresses::current(node);
    Backend {
        name: node.metadata.name.clone().unwrap_or_default(),
        provider_id: node.spec.as_ref().and_then(|spec| spec.provider_id.clone()).unwrap_or_default(),
        addresses: addresses.iter().map(|address| (address.type_.clone(), address.address.clone())).collect(),
    }
}

/// A status as the API server normalizes it.
#[must_use]
pub fn with_defaults(mut status: LoadBalancerStatus) -> LoadBalancerStatus {
    for ingress in status.ingress.iter_mut().flatten() {
        if ingress.ip.is_some() {
            ingress.ip_mode.get_or_insert_with(|| "VIP".to_owned());
        }
    }
    status.ingress = status.ingress.filter(|ingress| !ingress.is_empty());
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn service(change: impl FnOnce(&mut Value)) -> Arc<Service> {
        let mut value = json!({
            "metadata": { "name": "s", "namespace": "n", "uid": "1" },
            "spec": { "type": "LoadBalancer", "ports": [{ "port": 80, "nodePort": 30080 }] },
        });
        change(&mut value);
        Arc::new(serde_json::from_value(value).expect("a service"))
    }

    fn plan_name(plan: &LoadBalancerPlan) -> &'static str {
        match plan {
            LoadBalancerPlan::Nothing => "nothing",
            LoadBalancerPlan::Release(_) => "release",
            LoadBalancerPlan::Delete(_) => "delete",
            LoadBalancerPlan::Ensure(_) => "ensure",
            LoadBalancerPlan::Update(_) => "update",
        }
    }

    fn nodes(names: &[&str]) -> BTreeSet<Backend> {
        let one =
            |name: &&str| Backend { name: (*name).to_owned(), provider_id: String::new(), addresses: vec![] };
        names.iter().map(one).collect()
    }

    /// A service with these changes, by JSON pointer.
    fn changed(changes: &[(&str, Value)]) -> Arc<Service> {
        service(|object| {
            for (pointer, value) in changes {
                let (parent, name) = pointer.rsplit_once('/').expect("a pointer");
                object.pointer_mut(parent).expect("a parent")[name] = value.clone();
            }
        })
    }

    #[test]
    fn plan_follows_service_and_applied_state() {
        let done = Done { service: service(|_| {}), backends: nodes(&["a"]) };
        let with_finalizer = ("/metadata/finalizers", json!([FINALIZER]));
        let internal = ("/spec/type", json!("ClusterIP"));
        let deleted = ("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"));
        for (what, changes, before, backends, expected) in [
            ("new", vec![], None, &["a"][..], "ensure"),
            ("unchanged", vec![with_finalizer.clone()], Some(&done), &["a"], "nothing"),
            ("more nodes", vec![with_finalizer.clone()], Some(&done), &["a", "b"], "update"),
            ("another port", vec![("/spec/ports", json!([{"port": 81}]))], Some(&done), &["a"], "ensure"),
            ("annotated", vec![("/metadata/annotations", json!({"a": "b"}))], Some(&done), &["a"], "ensure"),
            ("labelled", vec![("/metadata/labels", json!({"a": "b"}))], Some(&done), &["a"], "nothing"),
            ("policy", vec![("/spec/externalTrafficPolicy", json!("Local"))], Some(&done), &["a"], "ensure"),
            ("another type", vec![with_finalizer.clone(), internal.clone()], None, &["a"], "delete"),
            ("another type, no finalizer", vec![internal.clone()], Some(&done), &["a"], "delete"),
            ("never a load balancer", vec![internal], None, &["a"], "nothing"),
            ("another class", vec![("/spec/loadBalancerClass", json!("x/y"))], None, &["a"], "nothing"),
            ("being deleted", vec![with_finalizer, deleted], None, &["a"], "delete"),
            ("recreated", vec![("/metadata/uid", json!("2"))], Some(&done), &["a"], "release"),
        ] {
            let plan = plan(Some(&changed(&changes)), before, &nodes(backends));
            assert_eq!(plan_name(&plan), expected, "{what}");
        }
        assert_eq!(plan_name(&plan(None, Some(&done), &nodes(&["a"]))), "release");
        assert_eq!(plan_name(&plan(None, None, &nodes(&["a"]))), "nothing");
    }

    #[test]
    fn excluded_nodes_are_no_backends() {
        let node = |value: Value| -> Node { serde_json::from_value(value).expect("a node") };
        let labelled = |value: &str| node(json!({ "metadata": { "labels": { EXCLUDED: value } } }));
        assert!(is_backend(&node(json!({ "metadata": { "name": "n" } }))));
        assert!(is_backend(&labelled("false")));
        assert!(
            !is_backend(&labelled("true")) && !is_backend(&labelled("")) && !is_backend(&labelled("what"))
        );
        let leaving = json!({ "metadata": {}, "spec": { "taints": [{ "key": TO_BE_DELETED, "effect": "NoSchedule" }] } });
        assert!(!is_backend(&node(leaving)));
    }
}
