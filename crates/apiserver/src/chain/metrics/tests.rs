use crate::test_server::{ADMIN, ALICE, TestServer};
use base::metrics::Metrics;
use http::{Method, Request};
use serde_json::json;

const JSON: &str = "application/json";

fn page(metrics: &Metrics) -> String {
    String::from_utf8(metrics.encode().expect("encoded")).expect("text")
}

/// The value of the row that begins with `row`.
fn value(page: &str, row: &str) -> Option<f64> {
    page.lines().find_map(|line| line.strip_prefix(row)?.trim().parse().ok())
}

#[tokio::test]
async fn requests_have_the_labels_of_kubernetes() {
    let server = TestServer::start();
    let map = json!({"metadata": {"name": "m"}});
    server.create("/api/v1/namespaces", &json!({"metadata": {"name": "n"}})).await;
    server.create("/api/v1/namespaces/n/configmaps", &map).await;
    let maps = "/api/v1/namespaces/n/configmaps";
    let dry = format!("{maps}?dryRun=All");
    let other = json!({"metadata": {"name": "dry"}}).to_string();
    server.ask(ADMIN, Method::POST, &dry, JSON, other).await;
    server.ask(ADMIN, Method::GET, maps, JSON, "").await;
    let applied = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}}).to_string();
    let target = format!("{maps}/m?fieldManager=t");
    let (code, _) = server.ask(ADMIN, Method::PATCH, &target, "application/apply-patch+yaml", applied).await;
    assert_eq!(code, 200);
    server.ask(ADMIN, Method::GET, "/api/v1/namespaces/n/pods/p/log", JSON, "").await;
    server.ask(ADMIN, Method::GET, "/readyz", JSON, "").await;
    server.ask(ALICE, Method::GET, maps, JSON, "").await;
    let page = page(&server.chain.metrics);
    for (row, want) in [
        (
            r#"apiserver_request_total{code="201",component="apiserver",dry_run="",group="",resource="configmaps",scope="resource",subresource="",verb="POST",version="v1"}"#,
            1.0,
        ),
        (
            r#"apiserver_request_total{code="201",component="apiserver",dry_run="All",group="",resource="configmaps",scope="resource",subresource="",verb="POST",version="v1"}"#,
            1.0,
        ),
        (
            r#"apiserver_request_total{code="200",component="apiserver",dry_run="",group="",resource="configmaps",scope="resource",subresource="",verb="APPLY",version="v1"}"#,
            1.0,
        ),
        (
            r#"apiserver_request_total{code="404",component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="log",verb="CONNECT",version="v1"}"#,
            1.0,
        ),
        (
            r#"apiserver_request_total{code="200",component="apiserver",dry_run="",group="",resource="",scope="",subresource="/readyz",verb="GET",version=""}"#,
            1.0,
        ),
        (
            r#"apiserver_request_sli_duration_seconds_count{component="apiserver",group="",resource="configmaps",scope="resource",subresource="",verb="POST",version="v1"}"#,
            1.0,
        ),
        (
            r#"apiserver_response_sizes_count{component="apiserver",group="",resource="configmaps",scope="namespace",subresource="",verb="LIST",version="v1"}"#,
            2.0,
        ),
        (r#"apiserver_resource_objects{group="",resource="configmaps"}"#, 1.0),
        (r#"apiserver_storage_objects{resource="configmaps"}"#, 1.0),
        (r#"authenticated_user_requests{username="admin"}"#, 7.0),
        (r#"authentication_attempts{result="success"}"#, 8.0),
        (r#"authorization_attempts_total{result="no-opinion"}"#, 1.0),
    ] {
        assert_eq!(value(&page, row), Some(want), "{row} in\n{page}");
    }
    assert!(value(&page, r#"apiserver_storage_size_bytes{storage_cluster_id="etcd-0"}"#) > Some(0.0));
    assert!(page.contains(r#"apiserver_admission_controller_admission_duration_seconds_count{name="NamespaceLifecycle",operation="CREATE",rejected="false",type="admit"}"#));
}

#[tokio::test]
async fn watches_are_counted_until_they_end() {
    let server = TestServer::start();
    server.create("/api/v1/namespaces", &json!({"metadata": {"name": "n"}})).await;
    let request = Request::builder()
        .uri("/api/v1/namespaces?watch=1")
        .header("authorization", format!("Bearer {ADMIN}"))
        .body(Vec::new().into())
        .expect("a request");
    let reply = server.send(request).await;
    let row = r#"apiserver_longrunning_requests{component="apiserver",group="",resource="namespaces",scope="cluster",subresource="",verb="WATCH",version="v1"}"#;
    assert_eq!(value(&page(&server.chain.metrics), row), Some(1.0));
    let mut pieces = Box::pin(reply.into_body().into_pieces().expect("a stream"));
    let first = futures_util::StreamExt::next(&mut pieces).await.expect("an event");
    assert!(!first.is_empty());
    drop(pieces);
    let page = page(&server.chain.metrics);
    assert_eq!(value(&page, row), Some(0.0));
    let row = r#"apiserver_watch_events_total{group="",resource="namespaces",version="v1"}"#;
    assert!(value(&page, row) >= Some(1.0), "{page}");
}

/// A client that invents verbs, resources, subresources, paths and users adds no series.
#[tokio::test]
async fn invented_names_add_no_series() {
    let server = TestServer::start();
    server.create("/api/v1/namespaces", &json!({"metadata": {"name": "n"}})).await;
    let rows = |server: &TestServer| page(&server.chain.metrics).lines().count();
    let invent = async |number: usize| {
        for path in [
            format!("/api/v1/namespaces/n/things{number}"),
            format!("/api/v1/namespaces/n/things{number}/x"),
            format!("/api/v{number}/pods"),
            format!("/apis/g{number}.example.com/v1/things/x"),
            format!("/apis/apps/v1/namespaces/n/deployments/d/sub{number}"),
            format!("/api/v1/namespaces/n{number}/pods/p{number}?dryRun=x{number}"),
            format!("/invented/{number}"),
            format!("/healthz/{number}"),
            format!("/debug/pprof/x{number}"),
            format!("/statusz/{number}"),
        ] {
            for (user, method) in [
                (ADMIN.to_owned(), Method::GET),
                (ADMIN.to_owned(), Method::from_bytes(format!("VERB{number}").as_bytes()).expect("a method")),
                (ALICE.to_owned(), Method::POST),
                (format!("nobody{number}"), Method::GET),
            ] {
                server.ask(&user, method, &path, JSON, "{}").await;
            }
        }
    };
    invent(1).await;
    let before = rows(&server);
    for number in 2..30 {
        invent(number).await;
    }
    assert_eq!(rows(&server), before);
}

#[tokio::test]
async fn pages_need_permission() {
    let server = TestServer::start();
    for path in ["/statusz", "/flagz", "/debug/pprof/", "/debug/pprof/cmdline"] {
        let (code, _) = server.ask(ADMIN, Method::GET, path, JSON, "").await;
        assert_eq!(code, 200, "{path}");
        let (code, _) = server.ask(ALICE, Method::GET, path, JSON, "").await;
        assert_eq!(code, 403, "{path}");
    }
    let request = Request::builder()
        .uri("/statusz")
        .header("authorization", format!("Bearer {ADMIN}"))
        .header("accept", "application/json;v=v1beta1;g=config.k8s.io;as=Statusz")
        .body(Vec::new().into())
        .expect("a request");
    let reply = server.send(request).await;
    let body = http_body_util::BodyExt::collect(reply.into_body()).await.expect("a body").to_bytes();
    let status: machinery::Value = serde_json::from_slice(&body).expect("JSON");
    assert_eq!(
        (&status["kind"], &status["apiVersion"]),
        (&json!("Statusz"), &json!("config.k8s.io/v1beta1"))
    );
    assert_eq!(
        status["paths"],
        json!(["/flagz", "/healthz", "/livez", "/metrics", "/readyz", "/statusz", "/version"])
    );
}
