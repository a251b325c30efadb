//! External authentication: token issuers and webhooks, run by the test.

use anyhow::{Context, Result};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use testkit::{Client, Responder, Server, SigningKey, eventually};

/// A token issuer with replaceable keys.
struct Issuer {
    responder: Responder,
    keys: Arc<Mutex<Vec<Value>>>,
}

impl Issuer {
    async fn start() -> Result<Self> {
        let keys: Arc<Mutex<Vec<Value>>> = Arc::default();
        let url: Arc<OnceLock<String>> = Arc::default();
        let (shown, own) = (Arc::clone(&keys), Arc::clone(&url));
        let responder = Responder::start(move |path, _| {
            let url = own.get().cloned().unwrap_or_default();
            match path {
                "/.well-known/openid-configuration" => {
                    (200, json!({"issuer": url, "jwks_uri": format!("{url}/keys")}))
                }
                "/keys" => (200, json!({"keys": shown.lock().map(|keys| keys.clone()).unwrap_or_default()})),
                _ => (404, Value::Null),
            }
        })
        .await?;
        url.set(responder.url.clone()).ok().context("set once")?;
        Ok(Self { responder, keys })
    }

    fn publish(&self, keys: &[&SigningKey]) {
        if let Ok(mut published) = self.keys.lock() {
            *published = keys.iter().map(|key| key.jwk()).collect();
        }
    }

    fn claims(&self, more: Value) -> Value {
        let now =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut claims =
            json!({"iss": self.responder.url, "aud": "ferry", "sub": "alice", "exp": now + 600, "jti": "j1"});
        for (name, value) in more.as_object().into_iter().flatten() {
            claims[name] = value.clone();
        }
        claims
    }
}

/// User of a token according to the server; `None` if it is rejected.
async fn whoami(client: &Client, token: &str) -> Result<Option<Value>> {
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let request = Request::post("/apis/authentication.k8s.io/v1/selfsubjectreviews")
        .header("content-type", "application/json")
        .header("authorization", format!("Bearer {token}"))
        .body(Full::new(Bytes::from(review.to_string())))?;
    let reply = client.send(request).await?;
    let status = reply.status();
    let bytes = reply.into_body().collect().await?.to_bytes();
    let body: Value = serde_json::from_slice(&bytes)?;
    match status {
        StatusCode::CREATED => Ok(Some(body["status"]["userInfo"].clone())),
        StatusCode::UNAUTHORIZED => Ok(None),
        other => anyhow::bail!("{other}: {body}"),
    }
}

fn configuration(path: &Path, issuer: &Issuer, mappings: &str) -> Result<()> {
    let authority: String =
        issuer.responder.certificate.lines().map(|line| format!("        {line}\n")).collect();
    let text = format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt:\n- issuer:\n    url: {}\n    audiences: [ferry]\n    certificateAuthority: |\n{authority}{mappings}\
         anonymous:\n  enabled: true\n  conditions:\n  - path: /livez\n",
        issuer.responder.url
    );
    Ok(std::fs::write(path, text)?)
}

const MAPPINGS: &str = "  claimValidationRules:
  - expression: \"claims.exp - claims.iat <= 86400 || !has(claims.iat)\"
    message: tokens live a day at most
  - claim: hd
    requiredValue: example.com
  claimMappings:
    username: {expression: \"'oidc:' + claims.sub\"}
    groups: {claim: groups, prefix: 'oidc:'}
    uid: {claim: sub}
    extra:
    - {key: example.com/team, valueExpression: \"has(claims.team) ? claims.team : ''\"}
  userValidationRules:
  - expression: \"!user.groups.exists(g, g == 'oidc:banned')\"
    message: banned
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn oidc_tokens_authenticate() -> Result<()> {
    let issuer = Issuer::start().await?;
    let (first, second) = (SigningKey::new("k1")?, SigningKey::new("k2")?);
    issuer.publish(&[&first]);
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("authentication.yaml");
    configuration(&file, &issuer, MAPPINGS)?;
    let server = Server::start_with(|config| config.api.authentication.file = Some(file.clone())).await?;
    let client = server.anonymous()?;

    let good = json!({"hd": "example.com", "groups": ["dev", "ops"], "team": "blue"});
    let user = whoami(&client, &first.sign(&issuer.claims(good.clone()))?).await?.context("accepted")?;
    assert_eq!(user["username"], "oidc:alice");
    assert_eq!(user["uid"], "alice");
    assert_eq!(user["groups"], json!(["oidc:dev", "oidc:ops", "system:authenticated"]));
    assert_eq!(user["extra"]["example.com/team"], json!(["blue"]));
    assert_eq!(user["extra"]["authentication.kubernetes.io/credential-id"], json!(["JTI=j1"]));

    let with = |name: &str, value: Value| {
        let mut more = good.clone();
        more[name] = value;
        issuer.claims(more)
    };
    for (what, claims) in [
        ("another audience", with("aud", json!("other"))),
        ("expired", with("exp", json!(1))),
        ("not yet valid", with("nbf", json!(4_000_000_000_i64))),
        ("a required claim", with("hd", json!("example.org"))),
        ("a rule on claims", with("iat", json!(1))),
        ("a rule on the user", with("groups", json!(["banned"]))),
        ("another issuer", with("iss", json!("https://elsewhere"))),
    ] {
        assert_eq!(whoami(&client, &first.sign(&claims)?).await?, None, "{what}");
    }
    let stranger = SigningKey::new("k1")?;
    assert_eq!(
        whoami(&client, &stranger.sign(&issuer.claims(good.clone()))?).await?,
        None,
        "signed by another key"
    );

    // Anonymous requests are served only on configured paths.
    assert_eq!(client.get("/livez").await?.status, StatusCode::OK);
    assert_eq!(client.get("/healthz").await?.status, StatusCode::UNAUTHORIZED);

    // Configurations are reloaded; invalid ones are ignored.
    std::fs::write(&file, "nonsense")?;
    configuration(&file, &issuer, "  claimMappings:\n    username: {claim: sub, prefix: 'new:'}\n")?;
    let token = first.sign(&issuer.claims(json!({})))?;
    let name = async || whoami(&client, &token).await.ok().flatten().map(|user| user["username"].clone());
    eventually("the new prefix", Duration::from_secs(20), name, |seen| *seen == Some(json!("new:alice")))
        .await;

    // An unknown key ID triggers a fetch, but fetches are rate-limited.
    issuer.publish(&[&second]);
    let token = second.sign(&issuer.claims(json!({})))?;
    let known = async || whoami(&client, &token).await.ok().flatten().is_some();
    eventually("the new key", Duration::from_secs(30), known, |seen| *seen).await;
    server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_webhook_authenticates() -> Result<()> {
    let webhook = Responder::start(|_, review| match review["spec"]["token"].as_str() {
        Some("good") => {
            let user = json!({"username": "bob", "uid": "7", "groups": ["g"], "extra": {"k": ["v"]}});
            (200, json!({"status": {"authenticated": true, "user": user}}))
        }
        Some("broken") => (400, json!({})),
        _ => (200, json!({"status": {"authenticated": false}})),
    })
    .await?;
    let directory = tempfile::tempdir()?;
    let kubeconfig = webhook.kubeconfig(directory.path(), "/authenticate")?;
    let server = Server::start_with(|config| {
        config.api.authentication.webhook = Some(cluster::WebhookTokenConfig {
            kubeconfig,
            cache: Duration::from_secs(60),
            version: "v1".to_owned(),
        });
    })
    .await?;
    let client = server.anonymous()?;
    for _ in 0..3 {
        let user = whoami(&client, "good").await?.context("accepted")?;
        assert_eq!((&user["username"], &user["uid"]), (&json!("bob"), &json!("7")));
        assert_eq!(user["groups"], json!(["g", "system:authenticated"]));
        assert_eq!(user["extra"], json!({"k": ["v"]}));
        assert_eq!(whoami(&client, "bad").await?, None);
    }
    assert_eq!(whoami(&client, "broken").await?, None);
    let seen = webhook.seen();
    assert_eq!(seen.len(), 3, "answers are kept: {seen:?}");
    assert_eq!(seen[0].0, "/authenticate");
    assert_eq!(seen[0].1["kind"], "TokenReview");
    assert_eq!(seen[0].1["apiVersion"], "authentication.k8s.io/v1");
    server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn authorization_webhook_decides() -> Result<()> {
    let webhook = Responder::start(|_, review| {
        let spec = &review["spec"];
        let attributes = &spec["resourceAttributes"];
        match (attributes["verb"].as_str(), attributes["resource"].as_str()) {
            (Some("list"), Some("configmaps")) => {
                (200, json!({"status": {"allowed": true, "reason": "fine"}}))
            }
            (Some("list"), Some("secrets")) => {
                (200, json!({"status": {"allowed": false, "denied": true, "reason": "never"}}))
            }
            (Some("list"), Some("pods")) => (403, json!({})),
            _ => (200, json!({"status": {"allowed": false}})),
        }
    })
    .await?;
    let directory = tempfile::tempdir()?;
    let kubeconfig = webhook.kubeconfig(directory.path(), "/authorize")?;
    let file = directory.path().join("authorization.yaml");
    std::fs::write(
        &file,
        format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n- {{type: Node, name: node}}\n\
             - type: Webhook\n  name: hook\n  webhook:\n    authorizedTTL: 60s\n    unauthorizedTTL: 60s\n    timeout: 3s\n\
             \x20   subjectAccessReviewVersion: v1\n    matchConditionSubjectAccessReviewVersion: v1\n    failurePolicy: Deny\n\
             \x20   connectionInfo: {{type: KubeConfigFile, kubeConfigFile: '{}'}}\n    matchConditions:\n\
             \x20   - expression: has(request.resourceAttributes)\n    - expression: \"request.user == 'alice'\"\n\
             - {{type: RBAC, name: rbac}}\n",
            kubeconfig.display()
        ),
    )?;
    let server = Server::start_with(|config| config.api.authorization.file = Some(file.clone())).await?;
    let (alice, bob) = (server.client_as("alice", None)?, server.client_as("bob", None)?);
    let list = |resource: &str| format!("/api/v1/namespaces/default/{resource}");
    for _ in 0..2 {
        assert_eq!(alice.get(&list("configmaps")).await?.status, StatusCode::OK);
    }
    let refused = alice.get(&list("secrets")).await?;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    assert!(refused.body["message"].as_str().unwrap_or("").ends_with(": never"), "{}", refused.body);
    // Failure: its failure policy denies. No opinion: the next authorizers decide, and none allows it.
    assert_eq!(alice.get(&list("pods")).await?.status, StatusCode::FORBIDDEN);
    assert_eq!(alice.get(&list("services")).await?.status, StatusCode::FORBIDDEN);
    assert_eq!(bob.get(&list("configmaps")).await?.status, StatusCode::FORBIDDEN);
    assert_eq!(alice.get("/livez").await?.status, StatusCode::OK, "RBAC still counts");
    let seen = webhook.seen();
    assert_eq!(seen.len(), 4, "conditions and the cache keep the others away: {seen:?}");
    assert_eq!(
        seen[0].1["spec"]["resourceAttributes"],
        json!({"namespace": "default", "verb": "list", "version": "v1", "resource": "configmaps"})
    );
    assert_eq!(seen[0].1["spec"]["user"], "alice");
    server.stop().await
}
