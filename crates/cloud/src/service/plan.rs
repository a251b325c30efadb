//! What a service's load balancer needs, given what was done for it before.

use std::collections::BTreeSet;
use std::sync::Arc;

use objects::core::v1::{LoadBalancerStatus, Node, Service, ServicePort, ServiceSpec};

/// Keeps a service until its load balancer is gone.
pub const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";
/// Nodes with this label get no traffic from load balancers.
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// Nodes with this taint are about to be removed.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// What of a node a load balancer is told.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Backend {
    pub name: String,
    pub provider_id: String,
    pub addresses: Vec<(String, String)>,
}

/// What was done for a service.
#[derive(Clone, Debug)]
pub struct Done {
    pub service: Arc<Service>,
    pub backends: BTreeSet<Backend>,
}

#[derive(Clone, Debug)]
pub enum Plan {
    Nothing,
    /// Another service of this name is gone, and nothing kept it.
    Release(Arc<Service>),
    Delete(Arc<Service>),
    Ensure(Arc<Service>),
    /// The load balancer stays as it is, with other nodes behind it.
    Update(Arc<Service>),
}

#[must_use]
pub fn plan(service: Option<&Arc<Service>>, done: Option<&Done>, backends: &BTreeSet<Backend>) -> Plan {
    let Some(service) = service else {
        return done.map_or(Plan::Nothing, |done| Plan::Release(Arc::clone(&done.service)));
    };
    if let Some(done) = done.filter(|done| done.service.metadata.uid != service.metadata.uid) {
        return Plan::Release(Arc::clone(&done.service));
    }
    if !wants(service) || needs_cleanup(service) {
        let anything = done.is_some() || has_finalizer(service);
        return if anything { Plan::Delete(Arc::clone(service)) } else { Plan::Nothing };
    }
    match done {
        Some(done) if !needs_update(&done.service, service) => {
            if done.backends == *backends {
                Plan::Nothing
            } else {
                Plan::Update(Arc::clone(service))
            }
        }
        _ => Plan::Ensure(Arc::clone(service)),
    }
}

fn spec(service: &Service) -> Option<&ServiceSpec> {
    service.spec.as_ref()
}

/// Whether a service is to have a load balancer, and of us: a class names somebody else.
#[must_use]
pub fn wants(service: &Service) -> bool {
    spec(service).is_some_and(|spec| {
        spec.type_.as_deref() == Some("LoadBalancer") && spec.load_balancer_class.is_none()
    })
}

#[must_use]
pub fn has_finalizer(service: &Service) -> bool {
    service.metadata.finalizers.iter().flatten().any(|name| name == FINALIZER)
}

/// Whether there is, or may be, a load balancer that is no longer wanted.
#[must_use]
pub fn needs_cleanup(service: &Service) -> bool {
    let another_type = spec(service).is_none_or(|spec| spec.type_.as_deref() != Some("LoadBalancer"));
    has_finalizer(service) && (service.metadata.deletion_timestamp.is_some() || another_type)
}

/// Whether a change concerns the load balancer.
#[must_use]
pub fn needs_update(old: &Service, new: &Service) -> bool {
    if !wants(old) && !wants(new) {
        return false;
    }
    let (Some(was), Some(is)) = (spec(old), spec(new)) else { return true };
    let ports = |spec: &ServiceSpec| -> Vec<ServicePort> { spec.ports.clone().unwrap_or_default() };
    let families = |spec: &ServiceSpec| spec.ip_families.as_ref().map_or(0, Vec::len);
    wants(old) != wants(new)
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

/// Whether a node gets traffic from load balancers. That it is not ready does not matter: load balancers look
/// themselves, and a whole cluster that is not ready should not lose all of its balancers' nodes.
#[must_use]
pub fn is_backend(node: &Node) -> bool {
    let label = node.metadata.labels.as_ref().and_then(|labels| labels.get(EXCLUDED));
    // What cannot be read as a truth value excludes, too.
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

/// A status as the API server would keep it.
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

    fn word(plan: &Plan) -> &'static str {
        match plan {
            Plan::Nothing => "nothing",
            Plan::Release(_) => "release",
            Plan::Delete(_) => "delete",
            Plan::Ensure(_) => "ensure",
            Plan::Update(_) => "update",
        }
    }

    #[test]
    fn plans() {
        let nodes = |names: &[&str]| -> BTreeSet<Backend> {
            let one = |name: &&str| Backend {
                name: (*name).to_owned(),
                provider_id: String::new(),
                addresses: vec![],
            };
            names.iter().map(one).collect()
        };
        let done = Done { service: service(|_| {}), backends: nodes(&["a"]) };
        let kept = |value: &mut Value| value["metadata"]["finalizers"] = json!([FINALIZER]);
        let time = json!("2026-01-01T00:00:00Z");
        for (what, now, before, backends, expected) in [
            ("new", Some(service(|_| {})), None, &["a"][..], "ensure"),
            ("as it was", Some(service(kept)), Some(&done), &["a"], "nothing"),
            ("more nodes", Some(service(kept)), Some(&done), &["a", "b"], "update"),
            (
                "another port",
                Some(service(|s| s["spec"]["ports"][0]["port"] = json!(81))),
                Some(&done),
                &["a"],
                "ensure",
            ),
            (
                "annotated",
                Some(service(|s| s["metadata"]["annotations"] = json!({ "a": "b" }))),
                Some(&done),
                &["a"],
                "ensure",
            ),
            (
                "labelled",
                Some(service(|s| s["metadata"]["labels"] = json!({ "a": "b" }))),
                Some(&done),
                &["a"],
                "nothing",
            ),
            (
                "policy",
                Some(service(|s| s["spec"]["externalTrafficPolicy"] = json!("Local"))),
                Some(&done),
                &["a"],
                "ensure",
            ),
            (
                "another type",
                Some(service(|s| {
                    kept(s);
                    s["spec"]["type"] = json!("ClusterIP")
                })),
                None,
                &["a"],
                "delete",
            ),
            (
                "another type, unkept",
                Some(service(|s| s["spec"]["type"] = json!("ClusterIP"))),
                Some(&done),
                &["a"],
                "delete",
            ),
            ("never one", Some(service(|s| s["spec"]["type"] = json!("ClusterIP"))), None, &["a"], "nothing"),
            (
                "somebody else's",
                Some(service(|s| s["spec"]["loadBalancerClass"] = json!("x/y"))),
                None,
                &["a"],
                "nothing",
            ),
            (
                "going",
                Some(service(|s| {
                    kept(s);
                    s["metadata"]["deletionTimestamp"] = time.clone()
                })),
                None,
                &["a"],
                "delete",
            ),
            (
                "made anew",
                Some(service(|s| s["metadata"]["uid"] = json!("2"))),
                Some(&done),
                &["a"],
                "release",
            ),
            ("gone", None, Some(&done), &["a"], "release"),
            ("gone and done", None, None, &["a"], "nothing"),
        ] {
            assert_eq!(word(&plan(now.as_ref(), before, &nodes(backends))), expected, "{what}");
        }
    }

    #[test]
    fn backends() {
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
