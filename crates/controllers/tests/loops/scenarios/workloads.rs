//! Quotas, autoscalers, resource claims of pods, endpoints.

use serde_json::{Value, json};

use super::{at, pod};
use crate::steps::{Step, create, delete, is, merge, none, some};

/// An autoscaler of the deployment `web`.
fn autoscaler(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"maxReplicas": 4,
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "metrics": [{"type": "Resource", "resource": {"name": "cpu",
            "target": {"type": "Utilization", "averageUtilization": 50}}}]}})
}

pub fn quota() -> Vec<Step> {
    let quota = at("quota", "resourcequotas/q");
    let claims = "/apis/resource.k8s.io/v1/namespaces/quota/resourceclaims";
    let devices = "/status/used/gpu.example.com.deviceclass.resource.k8s.io~1devices";
    vec![
        create(
            &at("quota", "resourcequotas"),
            json!({"metadata": {"name": "q"}, "spec": {"hard": {"pods": "3", "configmaps": "10",
                "gpu.example.com.deviceclass.resource.k8s.io/devices": "8"}}}),
        ),
        is(&quota, "/status/used/pods", json!("0")),
        create(&at("quota", "pods"), pod("a", json!({}))),
        create(&at("quota", "pods"), pod("b", json!({}))),
        is(&quota, "/status/used/pods", json!("2")),
        create(
            claims,
            json!({"metadata": {"name": "gpus"}, "spec": {"devices": {"requests": [
                {"name": "r", "exactly": {"deviceClassName": "gpu.example.com", "count": 2}}]}}}),
        ),
        is(&quota, devices, json!("2")),
        // The deletion causes a recount, which has the numbers of admission.
        delete(&at("quota", "pods/a")),
        is(&quota, "/status/used/pods", json!("1")),
        is(&quota, devices, json!("2")),
        // The config map with the cluster's CA is in every namespace.
        is(&quota, "/status/used/configmaps", json!("1")),
        delete(&format!("{claims}/gpus")),
        is(&quota, devices, json!("0")),
    ]
}

pub fn autoscaling() -> Vec<Step> {
    vec![
        create(
            "/apis/apps/v1/namespaces/autoscaling/deployments",
            json!({"metadata": {"name": "web"}, "spec": {
            "replicas": 1, "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": pod("x", json!({}))["spec"]}}}),
        ),
        create(
            "/apis/autoscaling/v2/namespaces/autoscaling/horizontalpodautoscalers",
            json!({
            "metadata": {"name": "web"}, "spec": {"minReplicas": 2, "maxReplicas": 4,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "metrics": [{"type": "Resource", "resource": {"name": "cpu",
                "target": {"type": "Utilization", "averageUtilization": 50}}}]}}),
        ),
        is("/apis/apps/v1/namespaces/autoscaling/deployments/web", "/spec/replicas", json!(2)),
        merge("/apis/apps/v1/namespaces/autoscaling/deployments/web", json!({"spec": {"replicas": 9}})),
        is("/apis/apps/v1/namespaces/autoscaling/deployments/web", "/spec/replicas", json!(4)),
    ]
}

pub fn ambiguous() -> Vec<Step> {
    vec![
        create(
            "/apis/apps/v1/namespaces/ambiguous/deployments",
            json!({"metadata": {"name": "web"}, "spec": {
            "replicas": 2, "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": pod("x", json!({}))["spec"]}}}),
        ),
        some(&at("ambiguous", "pods"), "/items/1"),
        create("/apis/autoscaling/v2/namespaces/ambiguous/horizontalpodautoscalers", autoscaler("a")),
        is(
            "/apis/autoscaling/v2/namespaces/ambiguous/horizontalpodautoscalers/a",
            "/status/conditions/1/reason",
            json!("FailedGetResourceMetric"),
        ),
        create("/apis/autoscaling/v2/namespaces/ambiguous/horizontalpodautoscalers", autoscaler("b")),
        is(
            "/apis/autoscaling/v2/namespaces/ambiguous/horizontalpodautoscalers/b",
            "/status/conditions/1/reason",
            json!("AmbiguousSelector"),
        ),
        is(
            "/apis/autoscaling/v2/namespaces/ambiguous/horizontalpodautoscalers/b",
            "/status/conditions/1/message",
            json!("pods by selector app=web are controlled by multiple HPAs: [ambiguous/a ambiguous/b]"),
        ),
    ]
}

pub fn claims() -> Vec<Step> {
    vec![
        create(
            "/apis/resource.k8s.io/v1/namespaces/claims/resourceclaimtemplates",
            json!({
            "metadata": {"name": "gpu"}, "spec": {"spec": {"devices": {"requests": [
                {"name": "r", "exactly": {"deviceClassName": "gpu.example.com"}}]}}}}),
        ),
        create(
            &at("claims", "pods"),
            pod(
                "p",
                json!({"resourceClaims": [
            {"name": "gpu", "resourceClaimTemplateName": "gpu"}]}),
            ),
        ),
        some(&at("claims", "pods/p"), "/status/resourceClaimStatuses/0/resourceClaimName"),
        is(
            "/apis/resource.k8s.io/v1/namespaces/claims/resourceclaims",
            "/items/0/metadata/ownerReferences/0/name",
            json!("p"),
        ),
        delete(&at("claims", "pods/p")),
        none("/apis/resource.k8s.io/v1/namespaces/claims/resourceclaims", "/items/0"),
    ]
}

pub fn mirroring() -> Vec<Step> {
    vec![
        create(
            &at("mirroring", "services"),
            json!({"metadata": {"name": "outside"}, "spec": {"ports": [{"port": 80}]}}),
        ),
        create(
            &at("mirroring", "endpoints"),
            json!({"metadata": {"name": "outside"}, "subsets": [
            {"addresses": [{"ip": "192.0.2.1"}], "ports": [{"port": 8080}]}]}),
        ),
        is(
            "/apis/discovery.k8s.io/v1/namespaces/mirroring/endpointslices",
            "/items/0/endpoints/0/addresses/0",
            json!("192.0.2.1"),
        ),
        merge(
            &at("mirroring", "endpoints/outside"),
            json!({"subsets": [
            {"addresses": [{"ip": "192.0.2.2"}], "ports": [{"port": 8080}]}]}),
        ),
        is(
            "/apis/discovery.k8s.io/v1/namespaces/mirroring/endpointslices",
            "/items/0/endpoints/0/addresses/0",
            json!("192.0.2.2"),
        ),
        delete(&at("mirroring", "endpoints/outside")),
        none("/apis/discovery.k8s.io/v1/namespaces/mirroring/endpointslices", "/items/0"),
    ]
}
