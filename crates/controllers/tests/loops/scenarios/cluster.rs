//! Nodes, addresses, service accounts, bootstrap tokens, certificates, admission policies.

use serde_json::json;

use super::{at, pod, signing_request};
use crate::steps::{Step, create, delete, gone, is, merge, none, some};

const NODES: &str = "/api/v1/nodes";
const CSRS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const CIDRS: &str = "/apis/networking.k8s.io/v1/servicecidrs";
const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";

pub fn addresses() -> Vec<Step> {
    vec![
        create(NODES, json!({"metadata": {"name": "address-node"}})),
        some(&format!("{NODES}/address-node"), "/spec/podCIDR"),
        is(
            &format!("{NODES}/address-node"),
            "/metadata/annotations/node.alpha.kubernetes.io~1ttl",
            json!("0"),
        ),
        create(CIDRS, json!({"metadata": {"name": "more"}, "spec": {"cidrs": ["10.97.0.0/24"]}})),
        is(&format!("{CIDRS}/more"), "/status/conditions/0/status", json!("True")),
        delete(&format!("{CIDRS}/more")),
        gone(&format!("{CIDRS}/more")),
    ]
}

pub fn accounts() -> Vec<Step> {
    vec![
        some(&at("accounts", "serviceaccounts/default"), "/metadata/uid"),
        some(&at("accounts", "configmaps/kube-root-ca.crt"), "/data/ca.crt"),
        delete(&at("accounts", "configmaps/kube-root-ca.crt")),
        some(&at("accounts", "configmaps/kube-root-ca.crt"), "/data/ca.crt"),
        create(&at("accounts", "serviceaccounts"), json!({"metadata": {"name": "robot"}})),
        create(
            &at("accounts", "secrets"),
            json!({"metadata": {"name": "token", "annotations":
            {"kubernetes.io/service-account.name": "robot"}}, "type": "kubernetes.io/service-account-token"}),
        ),
        some(&at("accounts", "secrets/token"), "/data/token"),
        delete(&at("accounts", "serviceaccounts/robot")),
        gone(&at("accounts", "secrets/token")),
    ]
}

pub fn bootstrap() -> Vec<Step> {
    vec![
        create(
            &at("kube-public", "configmaps"),
            json!({"metadata": {"name": "cluster-info"}, "data": {"kubeconfig": "k"}}),
        ),
        create(
            &at("kube-system", "secrets"),
            json!({"metadata": {"name": "bootstrap-token-abcdef"},
            "type": "bootstrap.kubernetes.io/token", "stringData": {"token-id": "abcdef",
            "token-secret": "0123456789abcdef", "usage-bootstrap-signing": "true"}}),
        ),
        some(&at("kube-public", "configmaps/cluster-info"), "/data/jws-kubeconfig-abcdef"),
        create(
            &at("kube-system", "secrets"),
            json!({"metadata": {"name": "bootstrap-token-fedcba"},
            "type": "bootstrap.kubernetes.io/token", "stringData": {"token-id": "fedcba",
            "token-secret": "0123456789abcdef", "expiration": "2020-01-01T00:00:00Z"}}),
        ),
        gone(&at("kube-system", "secrets/bootstrap-token-fedcba")),
        delete(&at("kube-system", "secrets/bootstrap-token-abcdef")),
        none(&at("kube-public", "configmaps/cluster-info"), "/data/jws-kubeconfig-abcdef"),
    ]
}

pub fn policies() -> Vec<Step> {
    vec![
        create(
            POLICIES,
            json!({"metadata": {"name": "p"}, "spec": {
            "matchConstraints": {"resourceRules": [{"apiGroups": ["apps"], "apiVersions": ["v1"],
                "operations": ["CREATE"], "resources": ["deployments"]}]},
            "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
            "variables": [{"name": "limits", "expression":
                "object.spec.template.spec.containers.map(c, c.resources.limits)"}],
            "validations": [
                {"expression": "object.spec.replicas > '1'",
                    "messageExpression": "'wants more, got ' + object.spec.replicas"},
                {"expression": "object.spec.replicas < int(params.data.most)"},
                {"expression": "object.metadata.namespace == params.metadata.namespace && params.spec"},
                {"expression": "variables.limits.all(l, quantity(l.cpu).isLessThan(quantity('1')))"}]}}),
        ),
        is(
            &format!("{POLICIES}/p"),
            "/status",
            json!({"observedGeneration": 1, "typeChecking": {"expressionWarnings": [
            {"fieldRef": "spec.validations[0].expression", "warning":
                "apps/v1, Kind=Deployment: ERROR: <input>:1:22: found no matching overload for '_>_' applied \
                to '(int, string)'\n | object.spec.replicas > '1'\n | .....................^\n"},
            {"fieldRef": "spec.validations[0].messageExpression", "warning":
                "apps/v1, Kind=Deployment: ERROR: <input>:1:20: found no matching overload for '_+_' applied \
                to '(string, int)'\n | 'wants more, got ' + object.spec.replicas\n | ...................^\n"},
            {"fieldRef": "spec.validations[2].expression", "warning":
                "apps/v1, Kind=Deployment: ERROR: <input>:1:65: undefined field 'spec'\n | \
                object.metadata.namespace == params.metadata.namespace && params.spec\n | \
                ................................................................^\n"}]}}),
        ),
        merge(&format!("{POLICIES}/p"), json!({"spec": {"validations": [{"expression": "true"}]}})),
        is(&format!("{POLICIES}/p"), "/status/observedGeneration", json!(2)),
        none(&format!("{POLICIES}/p"), "/status/typeChecking/expressionWarnings"),
        // The resource is not served.
        merge(
            &format!("{POLICIES}/p"),
            json!({"spec": {"validations": [{"expression": "object.nosuch == 1"}],
            "matchConstraints": {"resourceRules": [{"apiGroups": ["example.com"], "apiVersions": ["v1"],
                "operations": ["CREATE"], "resources": ["things"]}]}}}),
        ),
        is(&format!("{POLICIES}/p"), "/status/observedGeneration", json!(3)),
        none(&format!("{POLICIES}/p"), "/status/typeChecking/expressionWarnings"),
    ]
}

pub fn out_of_service() -> Vec<Step> {
    vec![
        create(
            NODES,
            json!({"metadata": {"name": "broken"}, "spec": {"taints": [
            {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]}}),
        ),
        create(
            &at("out-of-service", "pods"),
            pod(
                "p",
                json!({"nodeName": "broken", "terminationGracePeriodSeconds": 3600,
                "tolerations": [{"operator": "Exists"}]}),
            ),
        ),
        // No kubelet terminates it.
        delete(&at("out-of-service", "pods/p")),
        gone(&at("out-of-service", "pods/p")),
    ]
}

pub fn certificates() -> Vec<Step> {
    let node =
        signing_request("system:node:n1", "system:nodes", "kubernetes.io/kube-apiserver-client-kubelet");
    let by_hand = signing_request("jane", "team", "kubernetes.io/kube-apiserver-client");
    let approval =
        json!({"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "Test"}]}});
    vec![
        // Administrators may request node certificates; such requests are approved immediately.
        create(CSRS, node.expect("a request")),
        is(&format!("{CSRS}/system-node-n1"), "/status/conditions/0/type", json!("Approved")),
        some(&format!("{CSRS}/system-node-n1"), "/status/certificate"),
        create(CSRS, by_hand.expect("a request")),
        merge(&format!("{CSRS}/jane/approval"), approval),
        some(&format!("{CSRS}/jane"), "/status/certificate"),
    ]
}
