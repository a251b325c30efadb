//! Audit: requests are recorded as the policy requires, and the built-in audit log contains every write.

use anyhow::{Context, Result};
use bytes::Bytes;
use cluster::audit::{Format, LogConfig, Mode, Rotation};
use http::{Method, Request, StatusCode};
use http_body_util::Full;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;
use testkit::{Reply, Server, eventually};

const LIMIT: Duration = Duration::from_secs(20);
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

const POLICY: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  nonResourceURLs: ["/metrics"]
- level: RequestResponse
  omitManagedFields: true
  resources:
  - group: ""
    resources: ["configmaps"]
- level: Request
  resources:
  - group: apps
- level: Metadata
"#;

fn events(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

async fn ask(
    client: &testkit::Client,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: &Value,
) -> Result<Reply> {
    let mut request = Request::builder().method(method).uri(path).header("content-type", "application/json");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
    client.exchange(request.body(Full::new(body))?).await
}

fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": "v"}})
}

fn deployment() -> Value {
    let pod =
        json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"replicas": 3, "selector": {"matchLabels": {"a": "b"}}, "template": pod},
    })
}

#[tokio::test]
async fn audit_events_follow_policy() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let (policy, log) = (directory.path().join("policy.yaml"), directory.path().join("audit.log"));
    std::fs::write(&policy, POLICY)?;
    let server = Server::start_with(|config| {
        config.api.audit.policy_file = Some(policy.clone());
        config.api.audit.log = Some(LogConfig {
            path: log.clone(),
            rotation: Rotation { max_bytes: 0, max_backups: 0, max_age_days: 0, compress: false },
            format: Format::Json,
            mode: Mode::Blocking,
            buffer: 100,
            max_event_bytes: None,
        });
    })
    .await?;
    write_is_recorded_with_its_objects(&server, &log).await?;
    list_and_denial_are_recorded_without_objects(&server, &log).await?;
    rejected_credentials_are_recorded(&server, &log).await?;
    watch_is_recorded_at_start_and_end(&server, &log).await?;
    patch_is_recorded_unmodified(&server, &log).await?;
    let metrics = String::from_utf8(server.admin.get("/metrics").await?.bytes.to_vec())?;
    for name in ["apiserver_audit_event_total", "apiserver_audit_level_total{level=\"Metadata\"}"] {
        assert!(metrics.contains(name), "{metrics}");
    }
    server.stop().await
}

/// Level RequestResponse.
async fn write_is_recorded_with_its_objects(server: &Server, log: &Path) -> Result<()> {
    let headers = [
        ("audit-id", "one"),
        ("user-agent", "tester/1 (x)"),
        ("x-forwarded-for", "1.2.3.4, rubbish"),
        ("ferry-cause", "a test"),
    ];
    let reply = ask(&server.admin, Method::POST, MAPS, &headers, &config_map("a")).await?;
    assert_eq!((reply.status, reply.headers["audit-id"].to_str()?), (StatusCode::CREATED, "one"));
    let event = events(log).pop().context("an event")?;
    assert_eq!(event["auditID"], "one");
    assert_eq!((&event["level"], &event["stage"]), (&json!("RequestResponse"), &json!("ResponseComplete")));
    assert_eq!(event["user"]["username"], "admin");
    assert_eq!(event["sourceIPs"], json!(["1.2.3.4", "127.0.0.1"]));
    assert_eq!(event["userAgent"], "tester/1 (x)");
    assert_eq!(
        event["objectRef"],
        json!({"resource": "configmaps", "namespace": "default", "name": "a", "apiVersion": "v1"})
    );
    assert_eq!(event["responseStatus"], json!({"metadata": {}, "code": 201}));
    assert_eq!(event["requestObject"]["data"], json!({"k": "v"}));
    assert_eq!(event["responseObject"]["metadata"]["name"], "a");
    assert!(event["responseObject"]["metadata"].get("managedFields").is_none());
    assert_eq!(event["annotations"]["authorization.k8s.io/decision"], "allow");
    assert_eq!(event["annotations"]["ferry.dev/cause"], "a test");
    let micros = event["requestReceivedTimestamp"].as_str().context("a time")?;
    assert_eq!((micros.len(), micros.ends_with('Z')), ("2026-01-02T03:04:05.000000Z".len(), true));
    Ok(())
}

/// A list is recorded after its response; denials have a reason, also for impersonated users.
async fn list_and_denial_are_recorded_without_objects(server: &Server, log: &Path) -> Result<()> {
    server.admin.get(&format!("{MAPS}?limit=500")).await?;
    let event = events(log).pop().context("an event")?;
    assert_eq!((&event["verb"], &event["responseObject"]["kind"]), (&json!("list"), &json!("ConfigMapList")));
    let as_bob = [("impersonate-user", "bob")];
    let reply = ask(&server.admin, Method::GET, "/api/v1/nodes/x", &as_bob, &Value::Null).await?;
    assert_eq!(reply.status, StatusCode::FORBIDDEN);
    let event = events(log).pop().context("an event")?;
    assert_eq!(
        (&event["level"], &event["impersonatedUser"]["username"]),
        (&json!("Metadata"), &json!("bob"))
    );
    assert_eq!(event["responseStatus"]["reason"], "Forbidden");
    assert_eq!(event["annotations"]["authorization.k8s.io/decision"], "forbid");
    assert!(event.get("requestObject").is_none());
    Ok(())
}

/// The message has the authenticators that were tried.
async fn rejected_credentials_are_recorded(server: &Server, log: &Path) -> Result<()> {
    let reply =
        ask(&server.anonymous()?, Method::GET, "/api", &[("authorization", "Bearer wrong")], &Value::Null)
            .await?;
    assert_eq!(reply.status, StatusCode::UNAUTHORIZED);
    let event = events(log).pop().context("an event")?;
    assert_eq!(event["responseStatus"]["message"], "Authentication failed, attempted: bearer");
    Ok(())
}

/// Watches have two events, and requests of level None none.
async fn watch_is_recorded_at_start_and_end(server: &Server, log: &Path) -> Result<()> {
    let before = events(log).len();
    server.admin.get("/metrics").await?;
    let watch = server.admin.stream("/api/v1/namespaces?watch=1&timeoutSeconds=1").await?;
    let stages = async || -> Vec<String> {
        let stage = |event: &Value| event["stage"].as_str().unwrap_or("").to_owned();
        events(log).iter().skip(before).map(stage).collect()
    };
    eventually("a watch began", LIMIT, stages, |seen| *seen == ["ResponseStarted"]).await;
    drop(watch);
    eventually("and ended", LIMIT, stages, |seen| *seen == ["ResponseStarted", "ResponseComplete"]).await;
    Ok(())
}

/// The body of a patch, not its result.
async fn patch_is_recorded_unmodified(server: &Server, log: &Path) -> Result<()> {
    let path = "/apis/apps/v1/namespaces/default/deployments";
    assert_eq!(server.admin.post(path, &deployment()).await?.status, StatusCode::CREATED);
    let patch = r#"{"spec":{"replicas":100}}"#;
    let scale = format!("{path}/web/scale");
    let reply = server.admin.request(Method::PATCH, &scale, "application/merge-patch+json", patch).await?;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
    let event = events(log).pop().context("an event")?;
    assert_eq!(event["requestObject"], json!({"spec": {"replicas": 100}}));
    assert_eq!(event["annotations"]["ferry.dev/replicas"], "3 -> 100");
    assert!(event.get("responseObject").is_none());
    Ok(())
}

#[tokio::test]
async fn builtin_audit_log_contains_writes_and_pod_security() -> Result<()> {
    let server = Server::start().await?;
    let audit_log = server.data_dir().join("logs/audit.log");
    let admin = &server.admin;
    let pods = "/api/v1/namespaces/strict/pods";
    let labels = json!({"pod-security.kubernetes.io/audit": "baseline"});
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "strict", "labels": labels}});
    assert_eq!(admin.post("/api/v1/namespaces", &namespace).await?.status, StatusCode::CREATED);
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    admin.post("/api/v1/namespaces/strict/serviceaccounts", &account).await?;
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "p-"},
        "spec": {"hostPID": true, "containers": [{"name": "c", "image": "i"}]},
    });
    let made = admin.post(pods, &pod).await?;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    let name = made.body["metadata"]["name"].as_str().context("a name")?.to_owned();
    admin.get(pods).await?;
    let cause = [("ferry-cause", "job/web revision 7")];
    let path = format!("{pods}/{name}?gracePeriodSeconds=0");
    assert_eq!(ask(admin, Method::DELETE, &path, &cause, &Value::Null).await?.status, StatusCode::OK);
    let of_pods = async || -> Vec<Value> {
        events(&audit_log).into_iter().filter(|event| event["objectRef"]["resource"] == "pods").collect()
    };
    let seen = eventually("two writes", LIMIT, of_pods, |seen| seen.len() >= 2).await;
    assert_eq!(seen.len(), 2, "reads are not writes: {seen:?}");
    assert_eq!(seen[0]["objectRef"]["name"], name.as_str());
    assert_eq!(seen[0]["annotations"]["pod-security.kubernetes.io/enforce-policy"], "privileged:latest");
    let violations = seen[0]["annotations"]["pod-security.kubernetes.io/audit-violations"].as_str();
    assert!(violations.is_some_and(|text| text.contains("host namespaces")), "{:?}", seen[0]);
    assert_eq!((&seen[1]["verb"], &seen[1]["user"]["username"]), (&json!("delete"), &json!("admin")));
    assert_eq!(seen[1]["annotations"]["ferry.dev/cause"], "job/web revision 7");
    assert!(seen.iter().all(|event| event.get("requestObject").is_none() && event["level"] == "Metadata"));
    server.stop().await
}
