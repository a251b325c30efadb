//! Traces of a control plane, sent to a collector over gRPC.

use std::time::Duration;

use anyhow::{Context, Result};
use base::trace::TracingConfig;
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::Full;
use serde_json::{Value, json};
use testkit::{Behaviour, Client, Collector, RecordedSpan, Reply, Responder, Server, eventually};

const LIMIT: Duration = Duration::from_secs(60);
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn server(collector: &Collector, components: cluster::Components) -> Result<Server> {
    let endpoint = collector.address.to_string().parse()?;
    Server::start_with(|config| {
        config.tracing = Some(TracingConfig { endpoint, sampling_rate_per_million: 0 });
        config.components = components;
    })
    .await
}

/// Sends a request with a sampled parent.
async fn send(client: &Client, method: Method, path: &str, body: &Value) -> Result<Reply> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", "application/json")
        .header("user-agent", "tester/1")
        .header("audit-id", "traced")
        .header("traceparent", format!("00-{TRACE}-{PARENT}-01"))
        .header("tracestate", "vendor=1");
    let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
    client.exchange(request.body(Full::new(body))?).await
}

fn named<'a>(spans: &'a [RecordedSpan], name: &str) -> Option<&'a RecordedSpan> {
    spans.iter().find(|span| span.span.name == name)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_with_sampled_parent_is_recorded() -> Result<()> {
    let collector = Collector::start(Behaviour::Accept).await?;
    let server = server(&collector, cluster::Components::default()).await?;
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
    assert_eq!(send(&server.admin, Method::POST, MAPS, &map).await?.status, StatusCode::CREATED);
    send(&server.admin, Method::GET, "/version", &Value::Null).await?;
    // Other users do not decide about sampling, and requests without a parent are not sampled.
    let user = server.client_as("bob", None)?;
    let other = "/api/v1/namespaces/default/secrets";
    assert_eq!(send(&user, Method::GET, other, &Value::Null).await?.status, StatusCode::FORBIDDEN);
    server.admin.get(other).await?;
    server.stop().await?;

    let spans = collector.spans();
    let create = named(&spans, "POST /api/v1/namespaces/{:namespace}/configmaps").context("no span")?;
    assert_eq!((create.trace_id().as_str(), create.parent_id().as_str()), (TRACE, PARENT));
    assert_eq!((create.service.as_str(), create.span.kind), ("apiserver", 2));
    assert_eq!(create.span.trace_state, "vendor=1");
    for (key, want) in [
        ("http.request.method", "POST"),
        ("url.path", MAPS),
        ("http.target", MAPS),
        ("user_agent.original", "tester/1"),
        ("audit-id", "traced"),
        ("http.response.status_code", "201"),
    ] {
        assert_eq!(create.attribute(key).as_deref(), Some(want), "{key}");
    }
    assert!(create.span.start_time_unix_nano < create.span.end_time_unix_nano);
    let of_create = |span: &&RecordedSpan| span.span.parent_span_id == create.span.span_id;
    let steps: Vec<&str> = spans.iter().filter(of_create).map(|span| span.span.name.as_str()).collect();
    assert!(steps.contains(&"authorization") && steps.contains(&"priorityandfairness"), "{steps:?}");
    let version = named(&spans, "GET").context("no span of a path that is no resource")?;
    assert_eq!(version.attribute("url.path").as_deref(), Some("/version"));
    assert!(!spans.iter().any(|span| span.attribute("url.path").as_deref() == Some(other)), "{spans:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unprivileged_request_begins_linked_trace() -> Result<()> {
    let collector = Collector::start(Behaviour::Accept).await?;
    let endpoint = format!("http://{}/v1/traces", collector.address).parse()?;
    let server = Server::start_with(|config| {
        config.tracing = Some(TracingConfig { endpoint, sampling_rate_per_million: 1_000_000 });
    })
    .await?;
    send(&server.client_as("bob", None)?, Method::GET, MAPS, &Value::Null).await?;
    server.stop().await?;
    let spans = collector.spans();
    let span = spans.iter().find(|span| span.attribute("audit-id").as_deref() == Some("traced"));
    let span = span.context("no span")?;
    assert!(span.trace_id() != TRACE && span.parent_id().is_empty() && span.span.trace_state.is_empty());
    let link = span.span.links.first().context("no link")?;
    assert_eq!(link.span_id, [0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31]);
    Ok(())
}

fn deployment() -> Value {
    let pod =
        json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": pod},
    })
}

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reconcile_names_its_cause_and_is_parent_of_its_writes() -> Result<()> {
    let collector = Collector::start(Behaviour::Accept).await?;
    let endpoint = collector.address.to_string().parse()?;
    let server = Server::start_with(|config| {
        config.tracing = Some(TracingConfig { endpoint, sampling_rate_per_million: 1_000_000 });
        config.components = cluster::Components::all();
    })
    .await?;
    let created = send(&server.admin, Method::POST, DEPLOYMENTS, &deployment()).await?;
    assert_eq!(created.status, StatusCode::CREATED);
    let revision = created.body["metadata"]["resourceVersion"].as_str().context("a revision")?.to_owned();
    let pods = "POST /api/v1/namespaces/{:namespace}/pods";
    let reconcile = |spans: &[RecordedSpan]| {
        let is_first = |span: &&RecordedSpan| {
            span.span.name == "reconcile deployment-controller"
                && span.attribute("ferry.cause.revision").as_deref() == Some(&*revision)
        };
        spans.iter().find(is_first).cloned()
    };
    let seen = async || collector.spans();
    let both = |spans: &Vec<RecordedSpan>| named(spans, pods).is_some() && reconcile(spans).is_some();
    let spans = eventually("a pod is created", LIMIT, seen, both).await;
    let reconcile = reconcile(&spans).context("no span")?;
    assert_eq!((reconcile.service.as_str(), reconcile.span.kind), ("kube-controller-manager", 5));
    assert_eq!(reconcile.attribute("ferry.object").as_deref(), Some("deployments.apps/default/web"));
    assert_eq!(reconcile.trace_id(), TRACE, "{reconcile:?}");
    let write = "POST /apis/apps/v1/namespaces/{:namespace}/replicasets";
    let write = named(&spans, write).context("no write")?;
    assert_eq!(write.span.parent_span_id, reconcile.span.span_id);
    server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reconcile_of_sampled_write_is_sampled() -> Result<()> {
    let collector = Collector::start(Behaviour::Accept).await?;
    let server = server(&collector, cluster::Components::all()).await?;
    send(&server.admin, Method::POST, DEPLOYMENTS, &deployment()).await?;
    let pods = "POST /api/v1/namespaces/{:namespace}/pods";
    let seen = async || collector.spans();
    let spans = eventually("a pod is created", LIMIT, seen, |spans| named(spans, pods).is_some()).await;
    assert_eq!(named(&spans, pods).context("no write")?.trace_id(), TRACE);
    server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn webhook_gets_trace_context() -> Result<()> {
    let collector = Collector::start(Behaviour::Accept).await?;
    let server = server(&collector, cluster::Components::default()).await?;
    let hook = Responder::start(|_, review| {
        let response = json!({"uid": review["request"]["uid"], "allowed": true});
        (200, json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}))
    })
    .await?;
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "hook"},
        "webhooks": [{
            "name": "hook.example.org", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": hook.url, "caBundle": encoded(&hook.certificate)},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}],
        }],
    });
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    assert_eq!(server.admin.post(path, &configuration).await?.status, StatusCode::CREATED);
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "a"}});
    let create = async || {
        send(&server.admin, Method::POST, MAPS, &map).await.expect("a response");
        hook.headers().pop()
    };
    let headers =
        eventually("the webhook is called", LIMIT, create, Option::is_some).await.context("called")?;
    server.stop().await?;
    let spans = collector.spans();
    let call = named(&spans, "Call validating webhook").context("no span")?;
    assert_eq!(call.attribute("webhook").as_deref(), Some("hook.example.org"));
    let sent = headers["traceparent"].to_str()?.to_owned();
    assert!(spans.iter().any(|span| {
        span.span.name == "Call validating webhook"
            && sent == format!("00-{TRACE}-{}-01", hex(&span.span.span_id))
    }));
    assert_eq!(headers["tracestate"], "vendor=1");
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn encoded(text: &str) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(text)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn collector_that_hangs_does_not_slow_requests() -> Result<()> {
    let collector = Collector::start(Behaviour::Hang).await?;
    let server = server(&collector, cluster::Components::default()).await?;
    let begin = std::time::Instant::now();
    for _ in 0..3000 {
        send(&server.admin, Method::GET, "/version", &Value::Null).await?;
    }
    let took = begin.elapsed();
    assert!(took < LIMIT, "{took:?}");
    let reply = server.admin.get("/metrics").await?;
    let page = String::from_utf8_lossy(&reply.bytes).into_owned();
    let dropped = r#"ferry_trace_spans_dropped_total{reason="queue_full"} "#;
    let dropped = page.lines().find_map(|line| line.strip_prefix(dropped)).context("no counter")?;
    // The queue and one batch are in memory; everything else was dropped.
    assert!(dropped.parse::<u64>()? >= 3000 - 2048 - 512, "{dropped}");
    server.stop().await
}
