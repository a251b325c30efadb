//! Service accounts with keys from files, secret tokens, and extension-apiserver-authentication.

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use testkit::{Client, Server, SigningKey};

const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";

async fn create(client: &Client, path: &str, object: Value) -> Result<Value> {
    let reply = client.post(path, &object).await?;
    anyhow::ensure!(reply.status == StatusCode::CREATED, "{path}: {}", reply.body);
    Ok(reply.body)
}

/// Status code and message of a request with a custom header.
async fn ask(client: &Client, path: &str, header: (&str, &str)) -> Result<(StatusCode, String)> {
    let request = Request::builder().method(Method::GET).uri(path).header(header.0, header.1);
    let reply = client.send(request.body(Full::new(Bytes::new()))?).await?;
    let status = reply.status();
    let body: Value =
        serde_json::from_slice(&reply.into_body().collect().await?.to_bytes()).unwrap_or_default();
    Ok((status, body["message"].as_str().unwrap_or("").to_owned()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_from_files_sign_and_verify() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let (signing, former) = (SigningKey::new("")?, SigningKey::new("")?);
    let (signing_file, former_file) = (directory.path().join("sa.key"), directory.path().join("former.key"));
    std::fs::write(&signing_file, signing.pem()?)?;
    std::fs::write(&former_file, former.pem()?)?;
    let server = Server::start_with(|config| {
        let accounts = &mut config.api.authentication.service_accounts;
        accounts.signing_key_file = Some(signing_file.clone());
        accounts.key_files = vec![former_file.clone(), signing_file.clone()];
    })
    .await?;
    let account = create(&server.admin, ACCOUNTS, json!({"metadata": {"name": "robot"}})).await?;
    let issued = create(&server.admin, &format!("{ACCOUNTS}/robot/token"), json!({})).await?;
    let token = issued["status"]["token"].as_str().context("a token")?;
    let header: Value =
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(token.split('.').next().unwrap_or(""))?)?;
    assert_eq!(header["alg"], "ES256");
    let nobody = server.anonymous()?;
    let pods = "/api/v1/namespaces/default/pods";
    let (code, message) = ask(&nobody, pods, ("authorization", &format!("Bearer {token}"))).await?;
    assert_eq!(code, StatusCode::FORBIDDEN);
    assert!(message.contains("system:serviceaccount:default:robot"), "{message}");

    let keys = server.admin.get("/openid/v1/jwks").await?.body;
    let kinds: Vec<&str> =
        keys["keys"].as_array().into_iter().flatten().filter_map(|key| key["kty"].as_str()).collect();
    assert!(kinds.iter().filter(|kind| **kind == "EC").count() == 2, "{kinds:?}");
    let discovery = server.admin.get("/.well-known/openid-configuration").await?.body;
    let algorithms = discovery["id_token_signing_alg_values_supported"].to_string();
    assert!(algorithms.contains("ES256"), "{algorithms}");

    // A token signed with an older key of the same issuer.
    let payload = URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap_or(""))?;
    let claims: Value = serde_json::from_slice(&payload)?;
    let bearer = format!("Bearer {}", former.sign(&claims)?);
    assert_eq!(ask(&nobody, pods, ("authorization", &bearer)).await?.0, StatusCode::FORBIDDEN);
    let bearer = format!("Bearer {}", SigningKey::new("")?.sign(&claims)?);
    assert_eq!(ask(&nobody, pods, ("authorization", &bearer)).await?.0, StatusCode::UNAUTHORIZED);

    // A secret token without expiration.
    let claims = json!({
        "iss": "kubernetes/serviceaccount", "sub": "system:serviceaccount:default:robot",
        "kubernetes.io/serviceaccount/namespace": "default",
        "kubernetes.io/serviceaccount/secret.name": "robot-token",
        "kubernetes.io/serviceaccount/service-account.name": "robot",
        "kubernetes.io/serviceaccount/service-account.uid": account["metadata"]["uid"],
    });
    let token = signing.sign(&claims)?;
    let header = format!("Bearer {token}");
    assert_eq!(
        ask(&nobody, pods, ("authorization", &header)).await?.0,
        StatusCode::UNAUTHORIZED,
        "no secret yet"
    );
    let secret = json!({
        "metadata": {"name": "robot-token", "annotations": {"kubernetes.io/service-account.name": "robot"}},
        "type": "kubernetes.io/service-account-token", "data": {"token": STANDARD.encode(&token)},
    });
    create(&server.admin, SECRETS, secret).await?;
    let (code, message) = ask(&nobody, pods, ("authorization", &header)).await?;
    assert_eq!(code, StatusCode::FORBIDDEN);
    assert!(message.contains("system:serviceaccount:default:robot"), "{message}");
    let path = format!("{SECRETS}/robot-token");
    let mut secret = server.admin.get(&path).await?.body;
    let used = secret["metadata"]["labels"]["kubernetes.io/legacy-token-last-used"].as_str().unwrap_or("");
    assert_eq!(used.len(), "2006-01-02".len(), "{secret}");
    secret["metadata"]["labels"]["kubernetes.io/legacy-token-invalid-since"] = "2026-01-01".into();
    assert_eq!(server.admin.put(&path, &secret).await?.status, StatusCode::OK);
    assert_eq!(ask(&nobody, pods, ("authorization", &header)).await?.0, StatusCode::UNAUTHORIZED);
    server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn front_proxy_requires_allowed_common_name() -> Result<()> {
    let server =
        Server::start_with(|config| config.api.authentication.front_proxy_names = vec!["other".to_owned()])
            .await?;
    let proxy = server.front_proxy()?;
    assert_eq!(ask(&proxy, "/api/v1/nodes", ("x-remote-user", "boss")).await?.0, StatusCode::UNAUTHORIZED);

    let path = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
    let published = server.admin.get(path).await?.body["data"].clone();
    assert_eq!(published["requestheader-allowed-names"], r#"["other"]"#);
    assert_eq!(published["requestheader-username-headers"], r#"["X-Remote-User"]"#);
    for bundle in ["client-ca-file", "requestheader-client-ca-file"] {
        assert!(
            published[bundle].as_str().unwrap_or("").starts_with("-----BEGIN CERTIFICATE-----"),
            "{published}"
        );
    }
    server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pod_security_has_defaults_and_exemptions() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("admission.yaml");
    std::fs::write(
        &file,
        "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n- name: PodSecurity\n  configuration:\n    \
         apiVersion: pod-security.admission.config.k8s.io/v1\n    kind: PodSecurityConfiguration\n    \
         defaults: {enforce: baseline}\n    exemptions: {namespaces: [kube-system], runtimeClasses: [vm]}\n",
    )?;
    let server = Server::start_with(|config| config.api.admission.file = Some(file.clone())).await?;
    for namespace in ["default", "kube-system", "kube-public"] {
        let account = json!({"metadata": {"name": "default"}});
        create(&server.admin, &format!("/api/v1/namespaces/{namespace}/serviceaccounts"), account).await?;
    }
    let labels = json!({"metadata": {"name": "kube-public", "labels": {"pod-security.kubernetes.io/enforce": "privileged"}}});
    assert_eq!(server.admin.put("/api/v1/namespaces/kube-public", &labels).await?.status, StatusCode::OK);
    let class = json!({
        "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "vm"}, "handler": "vm",
    });
    create(&server.admin, "/apis/node.k8s.io/v1/runtimeclasses", class).await?;
    let pod = |class: Value| {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
            "spec": {"hostPID": true, "runtimeClassName": class, "containers": [{"name": "c", "image": "i"}]},
        })
    };
    let place = |namespace: &str| format!("/api/v1/namespaces/{namespace}/pods?dryRun=All");
    let refused = server.admin.post(&place("default"), &pod(Value::Null)).await?;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    let message = refused.body["message"].as_str().unwrap_or("");
    assert!(
        message.contains("violates PodSecurity \"baseline:latest\": host namespaces (hostPID=true)"),
        "{message}"
    );
    for (namespace, class) in
        [("kube-system", Value::Null), ("kube-public", Value::Null), ("default", json!("vm"))]
    {
        let reply = server.admin.post(&place(namespace), &pod(class)).await?;
        assert_eq!(reply.status, StatusCode::CREATED, "{namespace}: {}", reply.body);
    }
    server.stop().await
}
