//! Objects that a cluster has besides the API server's own: for joining nodes, permissions of nodes and cluster DNS,
//! and the address of the API server.
//!
//! Missing objects are created; changes by users are kept, except for addresses, which are reconciled.

use std::net::SocketAddr;

use client::{Client, ClientError, DeleteOptions, ResourceKey};
use objects::rbac::v1::ClusterRoleBinding;
use serde_json::{Value, json};

use crate::{cluster_dns, service_network};

const RBAC: &str = "rbac.authorization.k8s.io";
const SYSTEM: &str = "kube-system";
const PUBLIC: &str = "kube-public";
/// Group of all bootstrap tokens.
const BOOTSTRAPPERS: (&str, &str) = ("Group", "system:bootstrappers");
const NODES: (&str, &str) = ("Group", "system:nodes");

pub(crate) fn resource(group: &str, resource: &str, namespaced: bool) -> ResourceKey {
    ResourceKey {
        group: group.to_owned(),
        version: "v1".to_owned(),
        resource: resource.to_owned(),
        namespaced,
    }
}

/// Creates missing objects that nodes need to join and run. `url` is the external URL of the API server, `authority`
/// the issuer of its certificates.
pub(crate) async fn install(administrator: &Client, url: &str, authority: &str) -> Result<(), ClientError> {
    for (name, role, subject) in [
        ("ferry:node-bootstrapper", "system:node-bootstrapper", BOOTSTRAPPERS),
        (
            "ferry:node-autoapprove-bootstrap",
            "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
            BOOTSTRAPPERS,
        ),
        (
            "ferry:node-autoapprove-certificate-rotation",
            "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
            NODES,
        ),
        ("ferry:dns", "ferry:dns", ("User", cluster_dns::USER)),
    ] {
        let binding = binding("ClusterRoleBinding", name, "", ("ClusterRole", role), subject);
        ensure(administrator, &resource(RBAC, "clusterrolebindings", false), "", &binding).await?;
    }
    proxy_account(administrator).await?;
    let role = json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRole", "metadata": {"name": "ferry:dns"},
        "rules": [
            {"apiGroups": [""], "resources": ["services", "namespaces", "nodes"], "verbs": ["list", "watch"]},
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
        ],
    });
    let cluster_roles = resource(RBAC, "clusterroles", false);
    ensure(administrator, &cluster_roles, "", &role).await?;
    // An earlier version did not filter clients and had no permission to read nodes.
    let cluster_roles = administrator.dynamic(&cluster_roles);
    let mut present = cluster_roles.get("", "ferry:dns").await?;
    if !present["rules"].to_string().contains("\"nodes\"") {
        present["rules"] = role["rules"].clone();
        cluster_roles.update("", "ferry:dns", None, &present).await?;
    }
    let (roles, bindings) = (resource(RBAC, "roles", true), resource(RBAC, "rolebindings", true));
    let verbs = ["get", "create", "update", "delete"];
    let own = json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": "Role",
        "metadata": {"name": "ferry:dns", "namespace": SYSTEM},
        "rules": [
            {"apiGroups": [""], "resources": ["services"], "verbs": verbs},
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": verbs},
        ],
    });
    ensure(administrator, &roles, SYSTEM, &own).await?;
    let public = json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": "Role",
        "metadata": {"name": "ferry:cluster-info", "namespace": PUBLIC},
        "rules": [
            {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["cluster-info"], "verbs": ["get"]},
        ],
    });
    ensure(administrator, &roles, PUBLIC, &public).await?;
    for (name, namespace, role, subject) in [
        ("ferry:dns", SYSTEM, "ferry:dns", ("User", cluster_dns::USER)),
        ("ferry:node-trust", SYSTEM, "extension-apiserver-authentication-reader", NODES),
        ("ferry:cluster-info", PUBLIC, "ferry:cluster-info", ("User", "system:anonymous")),
    ] {
        let binding = binding("RoleBinding", name, namespace, ("Role", role), subject);
        ensure(administrator, &bindings, namespace, &binding).await?;
    }
    cluster_info(administrator, url, authority).await
}

/// Service account of the proxy of joined nodes, with the role of kube-proxy. The binding of an earlier version,
/// which granted that role to all nodes, is deleted.
async fn proxy_account(administrator: &Client) -> Result<(), ClientError> {
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": service_network::ACCOUNT, "namespace": SYSTEM},
    });
    ensure(administrator, &resource("", "serviceaccounts", true), SYSTEM, &account).await?;
    let bindings = resource(RBAC, "clusterrolebindings", false);
    let mut bound =
        binding("ClusterRoleBinding", "ferry:proxy", "", ("ClusterRole", "system:node-proxier"), NODES);
    bound["subjects"] =
        json!([{"kind": "ServiceAccount", "name": service_network::ACCOUNT, "namespace": SYSTEM}]);
    ensure(administrator, &bindings, "", &bound).await?;
    match administrator
        .delete::<ClusterRoleBinding>("", "ferry:node-proxier", &DeleteOptions::default())
        .await
    {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

pub(crate) fn binding(
    kind: &str,
    name: &str,
    namespace: &str,
    (role_kind, role): (&str, &str),
    (subject_kind, subject): (&str, &str),
) -> Value {
    let mut metadata = json!({"name": name});
    if !namespace.is_empty() {
        metadata["namespace"] = json!(namespace);
    }
    json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": kind, "metadata": metadata,
        "roleRef": {"apiGroup": RBAC, "kind": role_kind, "name": role},
        "subjects": [{"apiGroup": RBAC, "kind": subject_kind, "name": subject}],
    })
}

/// Creates an object unless one with its name exists.
pub(crate) async fn ensure(
    client: &Client,
    kind: &ResourceKey,
    ns: &str,
    object: &Value,
) -> Result<(), ClientError> {
    match client.dynamic(kind).create(ns, object).await {
        Err(error) if error.is_already_exists() => Ok(()),
        outcome => outcome.map(drop),
    }
}

/// cluster-info: URL and certificate authority of the cluster for joining nodes, signed with each bootstrap token by
/// a controller.
async fn cluster_info(client: &Client, url: &str, authority: &str) -> Result<(), ClientError> {
    use base64::Engine;
    let authority = base64::engine::general_purpose::STANDARD.encode(authority);
    let kubeconfig = format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: \"\"\n  cluster:\n    server: {url}\n    \
         certificate-authority-data: {authority}\ncontexts: null\ncurrent-context: \"\"\npreferences: {{}}\n\
         users: null\n"
    );
    let maps = resource("", "configmaps", true);
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "cluster-info", "namespace": PUBLIC},
        "data": {"kubeconfig": kubeconfig},
    });
    let maps = client.dynamic(&maps);
    match maps.create(PUBLIC, &object).await {
        Err(error) if error.is_already_exists() => {}
        outcome => return outcome.map(drop),
    }
    let mut present = maps.get(PUBLIC, "cluster-info").await?;
    if present["data"]["kubeconfig"] != kubeconfig {
        present["data"]["kubeconfig"] = json!(kubeconfig);
        maps.update(PUBLIC, "cluster-info", None, &present).await?;
    }
    Ok(())
}

/// Reconciles the endpoints of the service `kubernetes` with the address of this server, the only one.
pub(crate) async fn reconcile_endpoints(
    administrator: &Client,
    address: SocketAddr,
) -> Result<(), ClientError> {
    if address.ip().is_loopback() {
        return Ok(());
    }
    let ip = address.ip().to_string();
    let port = json!([{"name": "https", "port": address.port(), "protocol": "TCP"}]);
    let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
    let endpoints = administrator.dynamic(&resource("", "endpoints", true));
    if let Some(mut present) = find(endpoints.get("default", "kubernetes").await)? {
        let subsets = json!([{"addresses": [{"ip": ip}], "ports": port}]);
        if present["subsets"] != subsets {
            present["subsets"] = subsets;
            endpoints.update("default", "kubernetes", None, &present).await?;
        }
    }
    let slices = administrator.dynamic(&resource("discovery.k8s.io", "endpointslices", true));
    if let Some(mut present) = find(slices.get("default", "kubernetes").await)? {
        let there = present["endpoints"][0]["addresses"][0] == *ip.as_str() && present["ports"] == port;
        if !there && present["addressType"] == family {
            present["endpoints"] = json!([{"addresses": [ip], "conditions": {"ready": true}}]);
            present["ports"] = port;
            slices.update("default", "kubernetes", None, &present).await?;
        }
    }
    Ok(())
}

fn find(outcome: Result<Value, ClientError>) -> Result<Option<Value>, ClientError> {
    match outcome {
        Err(error) if error.is_not_found() => Ok(None),
        outcome => outcome.map(Some),
    }
}
