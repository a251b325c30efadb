//! Writes through subresources: each needs its own permission, has no effect without it, and creates nothing.

use crate::test_server::{ADMIN, ALICE, TestServer};
use http::Method;
use machinery::Value;
use serde_json::{Value as Json, json};

const VERBS: [&str; 8] = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];
const JSON: &str = "application/json";
/// A certificate request with the subject `O=system:nodes, CN=system:node:a`.
const REQUEST: &str = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0KTUlHdU1HSUNBUUF3THpFVk1CTUdBMVVFQ2d3TWMzbHpkR1Z0T201dlpHVnpNUll3RkFZRFZRUUREQTF6ZVhOMApaVzA2Ym05a1pUcGhNQ293QlFZREsyVndBeUVBai8yNDFycEtCVW8vODdWTWxGOERWV3hVNUs3MXo1SFp0YUl2CkM5Y3ZzbnVnQURBRkJnTXJaWEFEUVFCWkM2VXpadExVVVJwUDhxRHFkRm9oYmdXOG9iOWlkQjE0ZVNnY2JKdkkKUVFlRFFCUU80ek4vZGZOSUtOTGl0QkdITUJsVmRIelhQRnlKa3QxOTBmc0wKLS0tLS1FTkQgQ0VSVElGSUNBVEUgUkVRVUVTVC0tLS0tCg==";

/// A write through a subresource.
struct Row {
    collection: &'static str,
    /// The object before the write.
    object: Json,
    subresource: &'static str,
    method: Method,
    media: &'static str,
    body: Json,
    /// Response to a user with the permission, where the object exists; otherwise 404.
    code: u16,
}

impl Row {
    fn verb(&self) -> &'static str {
        match self.method {
            Method::POST => "create",
            Method::PUT => "update",
            _ => "patch",
        }
    }

    fn resource(&self) -> &'static str {
        self.collection.rsplit('/').next().unwrap_or("")
    }

    fn path(&self) -> String {
        format!("{}/x", self.collection)
    }
}

fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    let mut add = |collection, object: &Json, subresource, method, media, body: Json, code| {
        rows.push(Row { collection, object: object.clone(), subresource, method, media, body, code });
    };
    let metadata = json!({"name": "x", "namespace": "n"});
    let spec = json!({"containers": [{"name": "c", "image": "i"}]});
    let pods = "/api/v1/namespaces/n/pods";
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": {"kind": "Node", "name": "a"}});
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata});
    add(pods, &pod, "binding", Method::POST, JSON, binding, 201);
    add(pods, &pod, "eviction", Method::POST, JSON, eviction, 201);
    let accounts = "/api/v1/namespaces/n/serviceaccounts";
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata});
    let token = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": ["a"]}});
    // The test server has no token signing key.
    add(accounts, &account, "token", Method::POST, JSON, token, 503);
    let deployments = "/apis/apps/v1/namespaces/n/deployments";
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata,
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": spec}},
    });
    let scale = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": metadata, "spec": {"replicas": 3}});
    add(deployments, &deployment, "scale", Method::PUT, JSON, scale.clone(), 200);
    let requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let request = json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": "x"},
        "spec": {"signerName": "example.com/s", "request": REQUEST, "usages": ["client auth"]},
    });
    for (collection, object, subresource) in [
        (pods, &pod, "status"),
        (pods, &pod, "ephemeralcontainers"),
        (pods, &pod, "resize"),
        (deployments, &deployment, "status"),
        (requests, &request, "approval"),
        (requests, &request, "status"),
    ] {
        // Written back unmodified; the test fills in `body`.
        add(collection, object, subresource, Method::PUT, JSON, Json::Null, approved(subresource));
    }
    let media = [
        ("application/json-patch+json", json!([])),
        ("application/merge-patch+json", json!({})),
        ("application/strategic-merge-patch+json", json!({})),
    ];
    for (collection, object, subresource) in [
        (pods, &pod, "status"),
        (pods, &pod, "ephemeralcontainers"),
        (pods, &pod, "resize"),
        (deployments, &deployment, "scale"),
        (requests, &request, "approval"),
    ] {
        for (media, body) in &media {
            add(collection, object, subresource, Method::PATCH, media, body.clone(), approved(subresource));
        }
    }
    add(deployments, &deployment, "scale", Method::PATCH, "application/apply-patch+yaml", scale, 200);
    rows
}

/// An approval also needs the verb `approve` on the request's signer, which admission checks.
fn approved(subresource: &str) -> u16 {
    if subresource == "approval" { 403 } else { 200 }
}

async fn ask(server: &TestServer, user: &str, method: Method, path: &str) -> (u16, Value) {
    server.ask(user, method, path, JSON, "").await
}

/// Creates or deletes the object as the cell requires.
async fn prepare(server: &TestServer, row: &Row, exists: bool) -> Option<Value> {
    let delete = format!("{}?gracePeriodSeconds=0", row.path());
    ask(server, ADMIN, Method::DELETE, &delete).await;
    if !exists {
        return None;
    }
    server.create(row.collection, &row.object).await;
    present(server, row).await
}

async fn present(server: &TestServer, row: &Row) -> Option<Value> {
    let (code, object) = ask(server, ADMIN, Method::GET, &row.path()).await;
    (code == 200).then_some(object)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subresource_writes_need_their_own_permission() {
    let server = TestServer::start();
    server.create("/api/v1/namespaces", &json!({"metadata": {"name": "n"}})).await;
    let default = json!({"metadata": {"name": "default", "namespace": "n"}});
    server.create("/api/v1/namespaces/n/serviceaccounts", &default).await;
    for row in &rows() {
        let through = format!("{}/{}", row.resource(), row.subresource);
        for exists in [false, true] {
            for dry_run in [false, true] {
                // Each verb on the subresource, and the write's own verb on the object itself.
                let permissions = VERBS.iter().map(|verb| (*verb, through.as_str()));
                for permission in permissions.chain([(row.verb(), row.resource())]) {
                    let before = prepare(&server, row, exists).await;
                    server.grant(&[permission]);
                    let mut path = format!("{}/{}?fieldManager=t", row.path(), row.subresource);
                    if row.media.contains("apply") {
                        path.push_str("&force=true");
                    }
                    if dry_run {
                        path.push_str("&dryRun=All");
                    }
                    let body = match &row.body {
                        Json::Null => before.clone().unwrap_or_else(|| row.object.clone()),
                        body => body.clone(),
                    };
                    let (code, answer) =
                        server.ask(ALICE, row.method.clone(), &path, row.media, body.to_string()).await;
                    let after = present(&server, row).await;
                    let case = format!(
                        "{} {} of {through}, exists: {exists}, dry run: {dry_run}, with {permission:?}: {code} {answer:.300}",
                        row.method, row.media
                    );
                    if permission != (row.verb(), through.as_str()) {
                        assert_eq!(code, 403, "{case}");
                        let words = format!("cannot {} resource {through:?}", row.verb());
                        assert!(
                            answer["message"].as_str().is_some_and(|message| message.contains(&words)),
                            "{case}"
                        );
                        assert_eq!(after, before, "refused and carried out: {case}");
                        continue;
                    }
                    assert_eq!(code, if exists { row.code } else { 404 }, "{case}");
                    if dry_run || !exists || code == 403 {
                        assert_eq!(after, before, "{case}");
                    }
                }
            }
        }
    }
}
