//! Authentication and authorization matrix over HTTP.

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use testkit::{Client, Kubectl, Server};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

/// Sends a request with custom headers; returns status code and body.
async fn ask(
    client: &Client,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: &Value,
) -> Result<(StatusCode, Value)> {
    let mut request = Request::builder().method(method).uri(path).header("content-type", "application/json");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
    let reply = client.send(request.body(Full::new(body))?).await?;
    let code = reply.status();
    let bytes = reply.into_body().collect().await?.to_bytes();
    Ok((code, serde_json::from_slice(&bytes).unwrap_or_default()))
}

async fn create(client: &Client, path: &str, object: Value) -> Result<Value> {
    let (code, body) = ask(client, Method::POST, path, &[], &object).await?;
    ensure!(code == StatusCode::CREATED, "{path}: {code} {body}");
    Ok(body)
}

fn role(name: &str, rules: Value) -> Value {
    json!({"metadata": {"name": name}, "rules": rules})
}

fn binding(name: &str, kind: &str, role: &str, subject: Value) -> Value {
    let role_ref = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role});
    json!({"metadata": {"name": name}, "roleRef": role_ref, "subjects": [subject]})
}

fn user(name: &str) -> Value {
    json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_rbac_roles_grant_access() -> Result<()> {
    let server = Server::start().await?;
    let alice = server.client_as("alice", None)?;
    let pods = "/api/v1/namespaces/default/pods";
    assert_eq!(alice.get(pods).await?.status, StatusCode::FORBIDDEN);

    let roles = format!("{RBAC}/namespaces/default/roles");
    let bindings = format!("{RBAC}/namespaces/default/rolebindings");
    let rules = json!([
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
        {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles", "rolebindings"], "verbs": ["*"],
         "resourceNames": []},
    ]);
    create(&server.admin, &roles, role("reader", rules)).await?;
    create(&server.admin, &bindings, binding("reader", "Role", "reader", user("alice"))).await?;
    assert_eq!(alice.get(pods).await?.status, StatusCode::OK);
    assert_eq!(alice.get("/api/v1/namespaces/kube-system/pods").await?.status, StatusCode::FORBIDDEN);
    assert_eq!(alice.get("/api/v1/pods").await?.status, StatusCode::FORBIDDEN);

    // `*` on roles includes the escalate verb; without it, missing permissions cannot be granted.
    let narrow = json!([
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
        {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles", "rolebindings"], "verbs": ["create"]},
    ]);
    let (code, body) =
        ask(&server.admin, Method::PUT, &format!("{roles}/reader"), &[], &role("reader", narrow)).await?;
    assert_eq!(code, StatusCode::OK, "{body}");
    let more = json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]);
    let (code, body) = ask(&alice, Method::POST, &roles, &[], &role("more", more)).await?;
    assert_eq!(code, StatusCode::FORBIDDEN);
    let message = body["message"].as_str().unwrap_or("");
    ensure!(message.contains("attempting to grant RBAC permissions not currently held"), "{message}");
    let same = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]);
    create(&alice, &roles, role("same", same)).await?;

    let (code, _) =
        ask(&server.admin, Method::DELETE, &format!("{bindings}/reader"), &[], &Value::Null).await?;
    assert_eq!(code, StatusCode::OK);
    assert_eq!(alice.get(pods).await?.status, StatusCode::FORBIDDEN);
    server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bound_token_is_invalid_after_deletion_of_its_object() -> Result<()> {
    let server = Server::start().await?;
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    create(&server.admin, accounts, json!({"metadata": {"name": "robot"}})).await?;
    let issued = create(&server.admin, &format!("{accounts}/robot/token"), json!({})).await?;
    let token = issued["status"]["token"].as_str().context("a token")?.to_owned();
    let nobody = server.anonymous()?;
    let bearer = format!("Bearer {token}");
    let headers = [("authorization", bearer.as_str())];
    let pods = "/api/v1/namespaces/default/pods";
    let (code, body) = ask(&nobody, Method::GET, pods, &headers, &Value::Null).await?;
    assert_eq!(code, StatusCode::FORBIDDEN);
    let message = body["message"].as_str().unwrap_or("");
    ensure!(message.contains("User \"system:serviceaccount:default:robot\" cannot list"), "{message}");

    // Valid only for the audience it was issued for.
    let review = json!({"spec": {"token": token, "audiences": ["somebody-else"]}});
    let reviews = "/apis/authentication.k8s.io/v1/tokenreviews";
    let reviewed = create(&server.admin, reviews, review).await?;
    assert_ne!(reviewed["status"]["authenticated"], true);
    let reviewed = create(&server.admin, reviews, json!({"spec": {"token": token}})).await?;
    assert_eq!(reviewed["status"]["authenticated"], true, "{reviewed}");
    assert_eq!(reviewed["status"]["user"]["username"], "system:serviceaccount:default:robot");

    for bad in ["x", "a.b.c", &token[..token.len() - 4]] {
        let header = format!("Bearer {bad}");
        let (code, _) =
            ask(&nobody, Method::GET, "/version", &[("authorization", &header)], &Value::Null).await?;
        assert_eq!(code, StatusCode::UNAUTHORIZED, "{bad}");
    }
    let (code, _) =
        ask(&server.admin, Method::DELETE, &format!("{accounts}/robot"), &[], &Value::Null).await?;
    assert_eq!(code, StatusCode::OK);
    let (code, _) = ask(&nobody, Method::GET, pods, &headers, &Value::Null).await?;
    assert_eq!(code, StatusCode::UNAUTHORIZED);

    let keys = server.admin.get("/openid/v1/jwks").await?;
    assert_eq!(keys.body["keys"][0]["alg"], "RS256");
    let discovery = server.admin.get("/.well-known/openid-configuration").await?;
    assert_eq!(discovery.body["issuer"], "https://kubernetes.default.svc.cluster.local");
    server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn static_and_bootstrap_tokens_and_front_proxies_authenticate() -> Result<()> {
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), "secret-of-alice,alice,1,\"dev,system:masters\"\n")?;
    let path = file.path().to_owned();
    let server = Server::start_with(|config| config.api.authentication.token_file = Some(path)).await?;
    let nobody = server.anonymous()?;
    let secrets = "/api/v1/secrets";
    let headers = [("authorization", "Bearer secret-of-alice")];
    let (code, _) = ask(&nobody, Method::GET, secrets, &headers, &Value::Null).await?;
    assert_eq!(code, StatusCode::OK);

    let encode = |text: &str| Value::from(base64_of(text));
    let secret = json!({
        "metadata": {"name": "bootstrap-token-abcdef"},
        "type": "bootstrap.kubernetes.io/token",
        "data": {
            "token-id": encode("abcdef"),
            "token-secret": encode("0123456789abcdef"),
            "usage-bootstrap-authentication": encode("true"),
        },
    });
    create(&server.admin, "/api/v1/namespaces/kube-system/secrets", secret).await?;
    let headers = [("authorization", "Bearer abcdef.0123456789abcdef")];
    let (code, body) = ask(&nobody, Method::GET, secrets, &headers, &Value::Null).await?;
    assert_eq!(code, StatusCode::FORBIDDEN);
    ensure!(body["message"].as_str().is_some_and(|m| m.contains("system:bootstrap:abcdef")), "{body}");
    let headers = [("authorization", "Bearer abcdef.0123456789abcdee")];
    let (code, _) = ask(&nobody, Method::GET, secrets, &headers, &Value::Null).await?;
    assert_eq!(code, StatusCode::UNAUTHORIZED);

    // Identity headers are accepted only from a front proxy.
    let headers = [("x-remote-user", "boss"), ("x-remote-group", "system:masters")];
    let proxy = server.front_proxy()?;
    let (code, _) = ask(&proxy, Method::GET, secrets, &headers, &Value::Null).await?;
    assert_eq!(code, StatusCode::OK);
    for client in [&nobody, &server.client_as("alice", None)?] {
        let (code, _) = ask(client, Method::GET, secrets, &headers, &Value::Null).await?;
        assert_eq!(code, StatusCode::FORBIDDEN);
    }
    server.stop().await
}

fn base64_of(text: &str) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(text)
}

/// Tries every discovered resource and verb as a user without permissions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_route_requires_authorization() -> Result<()> {
    let server = Server::start().await?;
    let mallory = server.client_as("mallory", None)?;
    let nobody = server.anonymous()?;
    let mut walked = 0;
    for (root, list) in resource_lists(&server.admin).await? {
        for resource in list["resources"].as_array().context("resources")? {
            let (plural, namespaced) =
                (resource["name"].as_str().context("a name")?, &resource["namespaced"]);
            let scope = if namespaced == true { "/namespaces/default" } else { "" };
            let (parent, subresource) = plural.split_once('/').unwrap_or((plural, ""));
            let collection = format!("{root}{scope}/{parent}");
            let one = match subresource {
                "" => format!("{collection}/x"),
                subresource => format!("{collection}/x/{subresource}"),
            };
            for verb in resource["verbs"].as_array().context("verbs")? {
                let verb = verb.as_str().context("a verb")?;
                let (method, path) = match verb {
                    "create" if subresource.is_empty() => (Method::POST, collection.clone()),
                    "create" => (Method::POST, one.clone()),
                    "get" => (Method::GET, one.clone()),
                    "list" => (Method::GET, collection.clone()),
                    "watch" => (Method::GET, format!("{collection}?watch=1")),
                    "update" => (Method::PUT, one.clone()),
                    "patch" => (Method::PATCH, one.clone()),
                    "delete" => (Method::DELETE, one.clone()),
                    "deletecollection" => (Method::DELETE, collection.clone()),
                    other => anyhow::bail!("{plural}: unknown verb: {other}"),
                };
                let expected = if is_self_review(plural) {
                    // All authenticated users may review themselves, once the default policy exists.
                    vec![
                        StatusCode::FORBIDDEN,
                        StatusCode::CREATED,
                        StatusCode::BAD_REQUEST,
                        StatusCode::UNPROCESSABLE_ENTITY,
                    ]
                } else {
                    vec![StatusCode::FORBIDDEN]
                };
                let (code, body) = ask(&mallory, method.clone(), &path, &[], &json!({})).await?;
                ensure!(expected.contains(&code), "{method} {path}: {code} {body}");
                let (code, body) = ask(&nobody, method.clone(), &path, &[], &json!({})).await?;
                ensure!(code == StatusCode::FORBIDDEN, "anonymous, {method} {path}: {code} {body}");
                let headers = [("authorization", "Bearer wrong")];
                let (code, body) = ask(&nobody, method.clone(), &path, &headers, &json!({})).await?;
                ensure!(code == StatusCode::UNAUTHORIZED, "bad token, {method} {path}: {code} {body}");
                walked += 1;
            }
        }
    }
    ensure!(walked > 400, "only {walked} routes were walked");
    for path in
        ["/metrics", "/openapi/v2", "/openapi/v3", "/api", "/apis", "/", "/openid/v1/jwks", "/nothing"]
    {
        let (code, body) = ask(&nobody, Method::GET, path, &[], &Value::Null).await?;
        ensure!(code == StatusCode::FORBIDDEN, "anonymous, GET {path}: {code} {body}");
    }
    server.stop().await
}

fn is_self_review(resource: &str) -> bool {
    resource.starts_with("selfsubject")
}

async fn resource_lists(admin: &Client) -> Result<Vec<(String, Value)>> {
    let mut roots = vec!["/api/v1".to_owned()];
    let groups = admin.get("/apis").await?.body;
    for group in groups["groups"].as_array().context("groups")? {
        for version in group["versions"].as_array().context("versions")? {
            roots.push(format!("/apis/{}", version["groupVersion"].as_str().context("a version")?));
        }
    }
    let mut lists = Vec::new();
    for root in roots {
        let list = admin.get(&root).await?.body;
        lists.push((root, list));
    }
    Ok(lists)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_auth_commands_report_permissions() -> Result<()> {
    let server = Server::start().await?;
    let Some(kubectl) = Kubectl::find(&server.kubeconfig)? else { return Ok(()) };
    let rules = json!([
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
        {"apiGroups": ["authorization.k8s.io"], "resources": ["selfsubjectrulesreviews", "selfsubjectaccessreviews"],
         "verbs": ["create"]},
        {"nonResourceURLs": ["/api", "/api/*", "/apis", "/apis/*"], "verbs": ["get"]},
    ]);
    create(&server.admin, &format!("{RBAC}/clusterroles"), role("lister", rules)).await?;
    let bound = binding("lister", "ClusterRole", "lister", user("alice"));
    create(&server.admin, &format!("{RBAC}/clusterrolebindings"), bound).await?;
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    create(&server.admin, accounts, json!({"metadata": {"name": "robot"}})).await?;

    let key = rcgen::KeyPair::generate()?;
    let mut request = rcgen::CertificateParams::new(Vec::<String>::new())?;
    request.distinguished_name.push(rcgen::DnType::CommonName, "carol");
    let signing = json!({
        "metadata": {"name": "carol"},
        "spec": {
            "request": base64_of(&request.serialize_request(&key)?.pem()?),
            "signerName": "kubernetes.io/kube-apiserver-client", "usages": ["client auth"],
        },
    });
    create(&server.admin, "/apis/certificates.k8s.io/v1/certificatesigningrequests", signing).await?;

    for (line, want) in [
        ("auth whoami", "admin"),
        ("auth whoami", "system:masters"),
        ("auth can-i delete nodes", "yes"),
        ("auth can-i list pods --as alice", "yes"),
        ("auth can-i --list --as alice", "selfsubjectrulesreviews.authorization.k8s.io"),
        ("get pods --as alice", ""),
        ("create token robot", "ey"),
        ("create token robot --duration=20m --audience=vault", "ey"),
        ("get csr carol", "Pending"),
        ("certificate approve carol", "certificatesigningrequest.certificates.k8s.io/carol approved"),
        ("get csr carol", "Approved"),
        ("auth can-i create pods --as system:serviceaccount:default:robot --as-group=system:masters", "yes"),
        ("auth whoami --as alice --as-group=dev", "dev"),
    ] {
        let out = kubectl.run(line.split(' ')).await?;
        ensure!(out.contains(want), "kubectl {line}: {want:?} is not in\n{out}");
    }
    let refused = kubectl.run(["get", "secrets", "--as", "alice"]).await;
    let message = refused.expect_err("alice may not read secrets").to_string();
    ensure!(message.contains("User \"alice\" cannot list resource \"secrets\""), "{message}");
    server.stop().await
}

/// Watches over WebSockets, as browsers use them: one message per event.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_over_websocket_sends_one_message_per_event() -> Result<()> {
    use tokio::io::AsyncReadExt;
    let server = Server::start().await?;
    let maps = "/api/v1/namespaces/default/configmaps";
    let request = Request::get(format!("{maps}?watch=true&resourceVersion=0"))
        .header("connection", "Upgrade")
        .header("upgrade", "websocket")
        .header("origin", "https://console.test")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
        .body(Full::default())?;
    let answer = server.admin_http1()?.send(request).await?;
    assert_eq!(answer.status(), StatusCode::SWITCHING_PROTOCOLS);
    assert_eq!(answer.headers()["sec-websocket-accept"], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    let mut stream = hyper_util::rt::TokioIo::new(hyper::upgrade::on(answer).await?);
    for name in ["first", "second"] {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
        let made = server.admin.post(maps, &object).await?;
        assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    }
    let mut seen = Vec::new();
    let events = async {
        while !seen.contains(&"second".to_owned()) {
            // A single unmasked text frame.
            assert_eq!(stream.read_u8().await?, 0x81);
            let length = match stream.read_u8().await? {
                126 => usize::from(stream.read_u16().await?),
                127 => usize::try_from(stream.read_u64().await?)?,
                short => usize::from(short),
            };
            let mut message = vec![0; length];
            stream.read_exact(&mut message).await?;
            let event: Value = serde_json::from_slice(&message)?;
            assert_eq!(event["type"], "ADDED", "{event}");
            seen.push(event["object"]["metadata"]["name"].as_str().unwrap_or_default().to_owned());
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), events).await??;
    assert!(seen.contains(&"first".to_owned()), "{seen:?}");
    server.stop().await
}
