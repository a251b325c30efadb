//! Permissions of nodes and of their agents: a node's certificate has no more than the Node authorizer allows; the proxy and
//! network policy agents act with tokens that the node requests bound to its own Node object.

use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::Full;
use serde_json::{Value, json};
use testkit::{Client, Server, eventually};

const LIMIT: Duration = Duration::from_secs(30);
const PODS: &str = "/api/v1/pods";
const SERVICES: &str = "/api/v1/services";
const NODES: &str = "/api/v1/nodes";
const NAMESPACES: &str = "/api/v1/namespaces";
const SECRETS: &str = "/api/v1/secrets";
const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
const POLICIES: &str = "/apis/networking.k8s.io/v1/networkpolicies";
const CIDRS: &str = "/apis/networking.k8s.io/v1/servicecidrs";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";

/// A cluster with its add-ons and the nodes `n1` and `n2`.
async fn cluster() -> Result<Server> {
    let server = Server::start_with(|config| {
        config.components = cluster::Components::all();
        config.components.addons = true;
    })
    .await?;
    for name in ["n1", "n2"] {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
        let reply = server.admin.post(NODES, &node).await?;
        assert_eq!(reply.status, StatusCode::CREATED, "{}", reply.body);
    }
    let installed = async || {
        let path = format!("{BINDINGS}/ferry:network-policy");
        server.admin.get(&path).await.map(|reply| reply.status).unwrap_or_default()
    };
    eventually("the add-ons", LIMIT, installed, |status| *status == StatusCode::OK).await;
    Ok(server)
}

async fn uid(server: &Server, node: &str) -> Result<String> {
    let reply = server.admin.get(&format!("{NODES}/{node}")).await?;
    Ok(reply.body["metadata"]["uid"].as_str().context("a UID")?.to_owned())
}

/// Status of a node's token request, and the token.
async fn request_token(client: &Client, account: &str, spec: Value) -> Result<(StatusCode, String)> {
    let (namespace, name) = account.split_once('/').context("an account")?;
    let request = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec,
    });
    let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token");
    let reply = client.post(&path, &request).await?;
    Ok((reply.status, reply.body["status"]["token"].as_str().unwrap_or_default().to_owned()))
}

fn bound_to(node: &str, uid: &str) -> Value {
    json!({"boundObjectRef": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}})
}

async fn get_with_token(server: &Server, token: &str, path: &str) -> Result<StatusCode> {
    let request = Request::builder()
        .method(Method::GET)
        .uri(path)
        .header(header::AUTHORIZATION, format!("Bearer {token}"))
        .body(Full::new(Bytes::new()))?;
    Ok(server.anonymous()?.exchange(request).await?.status)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_certificate_gets_no_more_than_the_node_authorizer_allows() -> Result<()> {
    let server = cluster().await?;
    let node = server.client_as("system:node:n1", Some("system:nodes"))?;
    for (path, want) in [
        (PODS, StatusCode::FORBIDDEN),
        ("/api/v1/pods?fieldSelector=spec.nodeName%3Dn2", StatusCode::FORBIDDEN),
        ("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1", StatusCode::OK),
        (NODES, StatusCode::FORBIDDEN),
        ("/api/v1/nodes/n2", StatusCode::FORBIDDEN),
        ("/api/v1/nodes/n1", StatusCode::OK),
        (NAMESPACES, StatusCode::FORBIDDEN),
        (SECRETS, StatusCode::FORBIDDEN),
        (SLICES, StatusCode::FORBIDDEN),
        (POLICIES, StatusCode::FORBIDDEN),
        (CIDRS, StatusCode::FORBIDDEN),
        (SERVICES, StatusCode::OK),
    ] {
        let reply = node.get(path).await?;
        assert_eq!(reply.status, want, "{path}: {}", reply.body);
    }
    // Permissions of all nodes: certificate renewal, and extension-apiserver-authentication.
    let mut to_nodes = Vec::new();
    for path in [BINDINGS, "/apis/rbac.authorization.k8s.io/v1/rolebindings"] {
        let reply = server.admin.get(path).await?;
        for binding in reply.body["items"].as_array().context("bindings")? {
            let subjects = binding["subjects"].as_array().cloned().unwrap_or_default();
            if subjects.iter().any(|subject| subject["kind"] == "Group" && subject["name"] == "system:nodes")
            {
                to_nodes.push(binding["metadata"]["name"].as_str().unwrap_or_default().to_owned());
            }
        }
    }
    to_nodes.sort_unstable();
    assert_eq!(to_nodes, ["ferry:node-autoapprove-certificate-rotation", "ferry:node-trust"]);
    server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_token_bound_to_own_node_reads_what_the_agent_needs() -> Result<()> {
    let server = cluster().await?;
    let node = server.client_as("system:node:n1", Some("system:nodes"))?;
    let uid = uid(&server, "n1").await?;
    let (status, proxy) = request_token(&node, "kube-system/ferry-proxy", bound_to("n1", &uid)).await?;
    assert_eq!(status, StatusCode::CREATED);
    let (status, policies) =
        request_token(&node, "kube-system/ferry-network-policy", bound_to("n1", &uid)).await?;
    assert_eq!(status, StatusCode::CREATED);
    let (yes, no) = (StatusCode::OK, StatusCode::FORBIDDEN);
    for (path, for_proxy, for_policies) in [
        (SERVICES, yes, no),
        (SLICES, yes, yes),
        (NODES, yes, no),
        (CIDRS, yes, no),
        (PODS, no, yes),
        (NAMESPACES, no, yes),
        (POLICIES, no, yes),
        (SECRETS, no, no),
    ] {
        assert_eq!(get_with_token(&server, &proxy, path).await?, for_proxy, "the proxy: {path}");
        assert_eq!(get_with_token(&server, &policies, path).await?, for_policies, "policies: {path}");
    }
    // The token becomes invalid with the Node object.
    server.admin.delete(&format!("{NODES}/n1")).await?;
    let seen = async || get_with_token(&server, &proxy, SERVICES).await.unwrap_or_default();
    eventually("the token is invalid", LIMIT, seen, |status| *status == StatusCode::UNAUTHORIZED).await;
    server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_request_of_node_for_other_accounts_or_nodes_is_denied() -> Result<()> {
    let server = cluster().await?;
    let node = server.client_as("system:node:n1", Some("system:nodes"))?;
    let (own, other) = (uid(&server, "n1").await?, uid(&server, "n2").await?);
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "ferry-proxy"}});
    let made = server.admin.post("/api/v1/namespaces/default/serviceaccounts", &account).await?;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    let for_vault = {
        let mut spec = bound_to("n1", &own);
        spec["audiences"] = json!(["vault"]);
        spec
    };
    let as_pod = json!({"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": own}});
    for (what, account, spec) in [
        ("another account", "kube-system/default", bound_to("n1", &own)),
        (
            "an account of a controller",
            "kube-system/clusterrole-aggregation-controller",
            bound_to("n1", &own),
        ),
        ("another namespace", "default/ferry-proxy", bound_to("n1", &own)),
        ("bound to nothing", "kube-system/ferry-proxy", json!({})),
        ("bound to another node", "kube-system/ferry-proxy", bound_to("n2", &other)),
        ("bound without a UID", "kube-system/ferry-proxy", bound_to("n1", "")),
        ("bound with another UID", "kube-system/ferry-proxy", bound_to("n1", &other)),
        ("another audience", "kube-system/ferry-network-policy", for_vault),
    ] {
        let (status, token) = request_token(&node, account, spec).await?;
        assert_eq!((status, token.as_str()), (StatusCode::FORBIDDEN, ""), "{what}");
    }
    let (status, token) = request_token(&node, "kube-system/ferry-proxy", as_pod).await?;
    assert!(status.is_client_error() && token.is_empty(), "bound to a pod that does not exist: {status}");
    server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_bindings_of_earlier_version_are_deleted() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let server = Server::start_in(directory.path()).await?;
    for (name, role) in
        [("ferry:node-proxier", "system:node-proxier"), ("ferry:network-policy", "ferry:network-policy")]
    {
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:nodes"}],
        });
        let made = server.admin.post(BINDINGS, &binding).await?;
        assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    }
    server.stop().await?;
    let server = Server::start_in_with(directory.path(), |config| {
        config.components = cluster::Components::all();
        config.components.addons = true;
    })
    .await?;
    let bound = async || {
        let reply = server.admin.get(BINDINGS).await.ok()?;
        let items = reply.body["items"].as_array().cloned().unwrap_or_default();
        let ours = items.iter().filter(|item| {
            ["ferry:node-proxier", "ferry:network-policy"]
                .contains(&item["metadata"]["name"].as_str().unwrap_or_default())
        });
        Some(
            ours.filter_map(|item| item["subjects"][0]["kind"].as_str().map(str::to_owned))
                .collect::<Vec<_>>(),
        )
    };
    eventually("no binding to nodes", LIMIT, bound, |kinds| {
        kinds.as_ref().is_some_and(|kinds| kinds == &["ServiceAccount"])
    })
    .await;
    server.stop().await
}

#[test]
fn agent_accounts_match_api_server_policy() {
    let mut accounts = [cluster::PROXY_ACCOUNT, policy::access::ACCOUNT];
    let mut known = apiserver::AGENT_ACCOUNTS;
    accounts.sort_unstable();
    known.sort_unstable();
    assert_eq!(accounts, known);
}
