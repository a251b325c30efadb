//! Priority and fairness as observed by clients.

use anyhow::Result;
use http::StatusCode;
use serde_json::{Value, json};
use std::time::Duration;
use testkit::{Client, Server, eventually};

const SCHEMAS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas";
const LEVELS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations";
const LIMIT: Duration = Duration::from_secs(20);

async fn get(client: &Client, path: &str) -> Value {
    client.get(path).await.expect("an answer").body
}

fn level(name: &str, shares: i64) -> Value {
    json!({
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "PriorityLevelConfiguration",
        "metadata": {"name": name},
        "spec": {"type": "Limited", "limited": {
            "nominalConcurrencyShares": shares, "borrowingLimitPercent": 0, "limitResponse": {"type": "Reject"},
        }},
    })
}

fn schema(name: &str, level: &str, user: &str) -> Value {
    json!({
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema", "metadata": {"name": name},
        "spec": {
            "matchingPrecedence": 50, "priorityLevelConfiguration": {"name": level},
            "rules": [{
                "subjects": [{"kind": "User", "user": {"name": user}}],
                "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
                "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": true}],
            }],
        },
    })
}

fn dangling(schema: &Value) -> (String, String) {
    let condition = &schema["status"]["conditions"][0];
    (
        condition["status"].as_str().unwrap_or("").to_owned(),
        condition["reason"].as_str().unwrap_or("").to_owned(),
    )
}

#[tokio::test]
async fn responses_name_flow_schema_and_level_and_new_ones_apply() -> Result<()> {
    let server = Server::start().await?;
    let uid = |object: Value| object["metadata"]["uid"].as_str().unwrap_or("none").to_owned();
    let exempt = uid(get(&server.admin, &format!("{SCHEMAS}/exempt")).await);
    let reply = server.admin.get("/api/v1/namespaces").await?;
    assert_eq!(reply.headers["x-kubernetes-pf-flowschema-uid"], exempt.as_str());
    let default = uid(get(&server.admin, &format!("{SCHEMAS}/global-default")).await);
    let alice = server.client_as("alice", None)?;
    let reply = alice.get("/api/v1/namespaces").await?;
    assert_eq!(reply.status, StatusCode::FORBIDDEN);
    assert_eq!(reply.headers["x-kubernetes-pf-flowschema-uid"], default.as_str());

    // A schema whose level is missing gets a condition, and is ignored.
    let made = server.admin.post(SCHEMAS, &schema("alices", "alices", "alice")).await?;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    let path = format!("{SCHEMAS}/alices");
    let state = async || dangling(&get(&server.admin, &path).await);
    eventually("dangling", LIMIT, state, |seen| *seen == ("True".into(), "NotFound".into())).await;
    assert_eq!(alice.get("/version").await?.headers["x-kubernetes-pf-flowschema-uid"], default.as_str());

    // A level without seats: once it exists, alice is rejected.
    assert_eq!(server.admin.post(LEVELS, &level("alices", 0)).await?.status, StatusCode::CREATED);
    eventually("found", LIMIT, state, |seen| *seen == ("False".into(), "Found".into())).await;
    let own = uid(made.body);
    let last = eventually(
        "the new schema",
        LIMIT,
        async || alice.get("/version").await.expect("an answer"),
        |reply| reply.headers["x-kubernetes-pf-flowschema-uid"] == own.as_str(),
    )
    .await;
    assert_eq!(
        last.headers["x-kubernetes-pf-prioritylevel-uid"],
        uid(get(&server.admin, &format!("{LEVELS}/alices")).await).as_str()
    );

    // Metrics.
    let metrics = String::from_utf8(server.admin.get("/metrics").await?.bytes.to_vec())?;
    for name in [
        "apiserver_flowcontrol_dispatched_requests_total{flow_schema=\"exempt\",priority_level=\"exempt\"}",
        "apiserver_flowcontrol_nominal_limit_seats{priority_level=\"global-default\"} 49",
        "apiserver_flowcontrol_current_limit_seats{priority_level=\"workload-low\"}",
        "apiserver_flowcontrol_request_execution_seconds_bucket{flow_schema=\"exempt\",priority_level=\"exempt\",type=\"regular\"",
        "apiserver_flowcontrol_request_wait_duration_seconds_count",
        "apiserver_flowcontrol_priority_level_seat_utilization_bucket",
    ] {
        assert!(metrics.contains(name), "{name}\n{metrics}");
    }
    for (dump, want) in [
        ("dump_priority_levels", "PriorityLevelName,"),
        ("dump_queues", "workload-low,"),
        ("dump_requests?includeRequestDetails=1", "/debug/api_priority_and_fairness/dump_requests"),
    ] {
        let reply = server.admin.get(&format!("/debug/api_priority_and_fairness/{dump}")).await?;
        let text = String::from_utf8(reply.bytes.to_vec())?;
        assert!(reply.status == StatusCode::OK && text.contains(want), "{text}");
    }
    assert_eq!(
        alice.get("/debug/api_priority_and_fairness/dump_queues").await?.status,
        StatusCode::FORBIDDEN
    );
    server.stop().await
}

#[tokio::test]
async fn level_of_type_reject_returns_429() -> Result<()> {
    let server = Server::start_with(|config| {
        config.api.chain.max_requests_in_flight = 1;
        config.api.chain.max_mutating_in_flight = 0;
    })
    .await?;
    assert_eq!(server.admin.post(LEVELS, &level("bobs", 1)).await?.status, StatusCode::CREATED);
    assert_eq!(server.admin.post(SCHEMAS, &schema("bobs", "bobs", "bob")).await?.status, StatusCode::CREATED);
    let path = format!("{SCHEMAS}/bobs");
    let state = async || dangling(&get(&server.admin, &path).await);
    eventually("found", LIMIT, state, |seen| seen.1 == "Found").await;
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "bob"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "bob"}],
    });
    server.admin.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &role).await?;
    let bob = server.client_as("bob", None)?;
    let slow = tokio::spawn({
        let other = server.client_as("bob", None)?;
        async move {
            // Waits for a future revision until its timeout.
            other.get("/api/v1/namespaces?resourceVersion=999999999&resourceVersionMatch=NotOlderThan").await
        }
    });
    let reply = eventually(
        "a refusal",
        LIMIT,
        async || bob.get("/version").await.expect("an answer"),
        |reply| reply.status == StatusCode::TOO_MANY_REQUESTS,
    )
    .await;
    assert_eq!(&reply.bytes[..], b"Too many requests, please try again later.\n");
    assert!(reply.headers[http::header::RETRY_AFTER].to_str()?.parse::<u64>()? >= 1);
    assert!(reply.headers.contains_key("x-kubernetes-pf-prioritylevel-uid"));
    let _ = slow.await?;
    eventually(
        "seats are free again",
        LIMIT,
        async || bob.get("/version").await.expect("an answer").status,
        |status| *status == StatusCode::OK,
    )
    .await;
    server.stop().await
}

#[tokio::test]
async fn mandatory_flow_objects_are_restored_and_user_changes_kept() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let server = Server::start_in(directory.path()).await?;
    let admin = &server.admin;
    let (workload, system) = (format!("{LEVELS}/workload-low"), format!("{LEVELS}/system"));
    let catch_all = format!("{SCHEMAS}/catch-all");
    let before = get(admin, &workload).await;
    assert_eq!(before["metadata"]["generation"], 1);
    assert_eq!(before["metadata"]["annotations"]["apf.kubernetes.io/autoupdate-spec"], "true");

    assert_eq!(admin.delete(&catch_all).await?.status, StatusCode::OK);
    eventually(
        "the mandatory schema",
        LIMIT,
        async || admin.get(&catch_all).await.expect("an answer").status,
        |status| *status == StatusCode::OK,
    )
    .await;

    // The server's spec wins unless the annotation is set to false.
    let mut changed = before.clone();
    changed["spec"]["limited"]["nominalConcurrencyShares"] = json!(7);
    assert_eq!(admin.put(&workload, &changed).await?.status, StatusCode::OK);
    let shares = async || get(admin, &workload).await["spec"]["limited"]["nominalConcurrencyShares"].clone();
    eventually("the server's shares", LIMIT, shares, |seen| *seen == json!(100)).await;
    let mut own = get(admin, &system).await;
    own["metadata"]["annotations"]["apf.kubernetes.io/autoupdate-spec"] = json!("false");
    own["spec"]["limited"]["nominalConcurrencyShares"] = json!(8);
    assert_eq!(admin.put(&system, &own).await?.status, StatusCode::OK);
    server.stop().await?;

    let server = Server::start_in(directory.path()).await?;
    let kept = get(&server.admin, &system).await;
    assert_eq!(kept["spec"]["limited"]["nominalConcurrencyShares"], 8);
    // A restart does not rewrite unchanged objects.
    let exempt = get(&server.admin, &format!("{SCHEMAS}/exempt")).await;
    assert_eq!(exempt["metadata"]["generation"], 1);
    assert_eq!(dangling(&exempt).1, "Found");
    server.stop().await
}
