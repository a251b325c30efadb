//! Consumers of objects, on custom resources: controllers, quota, policies, RBAC, storage version migration.

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use cluster::AggregatorRouting as Routing;
use http::Method;
use serde_json::{Value, json};
use std::time::Duration;
use testkit::{Client, Responder, Server, eventually};

const LIMIT: Duration = Duration::from_secs(60);
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const MERGE: &str = "application/merge-patch+json";

/// Paths of widgets and config maps in a namespace.
fn widgets(namespace: &str) -> String {
    format!("/apis/example.com/v1/namespaces/{namespace}/widgets")
}

fn config_maps(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/configmaps")
}

fn definition() -> Value {
    let schema = json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {
            "size": {"type": "integer"}, "replicas": {"type": "integer"},
            "parts": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                "items": {"type": "object", "required": ["name"], "properties": {
                    "name": {"type": "string"}, "count": {"type": "integer"}}}},
        }},
        "status": {"type": "object", "properties": {
            "replicas": {"type": "integer"}, "selector": {"type": "string"}}},
    }});
    let version = |name: &str, stored: bool| {
        json!({"name": name, "served": true, "storage": stored, "schema": {"openAPIV3Schema": schema},
            "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector"}}})
    };
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [version("v1", true), version("v2", false)]},
    })
}

fn widget(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec})
}

/// An owner reference to a created object.
fn owner(object: &Value) -> Value {
    json!([{"apiVersion": object["apiVersion"], "kind": object["kind"], "controller": true,
        "name": object["metadata"]["name"], "uid": object["metadata"]["uid"]}])
}

async fn create(client: &Client, path: &str, object: &Value) -> Result<Value> {
    let reply = client.post(path, object).await?;
    ensure!(reply.status == 201, "{path}: {}", reply.body);
    Ok(reply.body)
}

async fn patch(client: &Client, path: &str, patch: &Value) -> Result<Value> {
    let reply = client.request(Method::PATCH, path, MERGE, Bytes::from(patch.to_string())).await?;
    ensure!(reply.status == 200, "{path}: {}", reply.body);
    Ok(reply.body)
}

/// Waits until the response of a path satisfies a condition.
async fn until(client: &Client, path: &str, holds: impl Fn(u16, &Value) -> bool) -> Value {
    let read = async || match client.get(path).await {
        Ok(reply) => (reply.status.as_u16(), reply.body),
        Err(error) => (0, json!(format!("{error:#}"))),
    };
    eventually(path, LIMIT, read, |(code, body)| holds(*code, body)).await.1
}

async fn namespace(client: &Client, name: &str) -> Result<()> {
    create(client, "/api/v1/namespaces", &json!({"metadata": {"name": name}})).await.map(drop)
}

/// A server with all controllers and the definition of widgets.
async fn start(change: impl FnOnce(&mut cluster::Config)) -> Result<Server> {
    let server = Server::start_with(|config| {
        config.components.controllers = vec!["*".to_owned()];
        config.components.settings.autoscaler.period = Duration::from_secs(1);
        config.api.aggregator_routing = Routing::Service;
        change(config);
    })
    .await?;
    create(&server.admin, DEFINITIONS, &definition()).await?;
    until(&server.admin, "/apis/example.com/v1/widgets", |code, _| code == 200).await;
    until(&server.admin, "/apis/example.com/v2/widgets", |code, _| code == 200).await;
    Ok(server)
}

/// Dependents of custom resources, and custom resources that are dependents.
async fn collects_garbage(admin: &Client) -> Result<()> {
    namespace(admin, "garbage").await?;
    let (widgets, maps) = (widgets("garbage"), config_maps("garbage"));
    let root = create(admin, &maps, &json!({"metadata": {"name": "root"}})).await?;
    let mut middle = widget("middle", json!({}));
    middle["metadata"]["ownerReferences"] = owner(&json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": root["metadata"]}));
    let middle = create(admin, &widgets, &middle).await?;
    let leaf = json!({"metadata": {"name": "leaf", "ownerReferences": owner(&middle)}});
    create(admin, &maps, &leaf).await?;
    let mut orphan = leaf.clone();
    orphan["metadata"]["name"] = json!("orphan");
    orphan["metadata"]["ownerReferences"][0]["uid"] = json!("00000000-0000-0000-0000-000000000000");
    create(admin, &maps, &orphan).await?;
    until(admin, &format!("{maps}/orphan"), |code, _| code == 404).await;
    ensure!(admin.get(&format!("{maps}/leaf")).await?.status == 200, "the dependent of a present owner");
    ensure!(admin.delete(&format!("{maps}/root?propagationPolicy=Background")).await?.status == 200);
    until(admin, &format!("{widgets}/middle"), |code, _| code == 404).await;
    until(admin, &format!("{maps}/leaf"), |code, _| code == 404).await;

    let owner_of_foreground = create(admin, &widgets, &widget("foreground", json!({}))).await?;
    let mut blocking =
        json!({"metadata": {"name": "blocking", "ownerReferences": owner(&owner_of_foreground)}});
    blocking["metadata"]["ownerReferences"][0]["blockOwnerDeletion"] = json!(true);
    blocking["metadata"]["finalizers"] = json!(["example.com/hold"]);
    create(admin, &maps, &blocking).await?;
    let path = format!("{widgets}/foreground");
    admin.delete(&format!("{path}?propagationPolicy=Foreground")).await?;
    let blocked = format!("{maps}/blocking");
    until(admin, &blocked, |_, map| !map["metadata"]["deletionTimestamp"].is_null()).await;
    ensure!(admin.get(&path).await?.status == 200, "the owner waits for its dependent");
    patch(admin, &blocked, &json!({"metadata": {"finalizers": null}})).await?;
    until(admin, &path, |code, _| code == 404).await;
    Ok(())
}

async fn namespace_is_deleted(admin: &Client) -> Result<()> {
    namespace(admin, "emptied").await?;
    create(admin, &widgets("emptied"), &widget("a", json!({}))).await?;
    ensure!(admin.delete("/api/v1/namespaces/emptied").await?.status == 200);
    until(admin, "/api/v1/namespaces/emptied", |code, _| code == 404).await;
    let left = admin.get("/apis/example.com/v1/widgets").await?.body;
    let in_namespace = |item: &Value| item["metadata"]["namespace"] == "emptied";
    ensure!(!left["items"].as_array().context("items")?.iter().any(in_namespace), "{left}");
    Ok(())
}

async fn quota_counts(admin: &Client) -> Result<()> {
    const COUNT: &str = "count/widgets.example.com";
    namespace(admin, "counted").await?;
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {COUNT: "1"}}});
    let quotas = "/api/v1/namespaces/counted/resourcequotas";
    create(admin, quotas, &quota).await?;
    until(admin, &format!("{quotas}/q"), |_, quota| quota["status"]["used"][COUNT] == "0").await;
    let path = widgets("counted");
    create(admin, &path, &widget("a", json!({}))).await?;
    let refused = admin.post(&path, &widget("b", json!({}))).await?;
    let message = refused.body["message"].as_str().unwrap_or_default();
    ensure!(refused.status == 403 && message.contains("exceeded quota: q"), "{}", refused.body);
    ensure!(admin.delete(&format!("{path}/a")).await?.status == 200);
    until(admin, &format!("{quotas}/q"), |_, quota| quota["status"]["used"][COUNT] == "0").await;
    create(admin, &path, &widget("b", json!({}))).await?;
    Ok(())
}

/// The expected number of pods is that of the controller's scale.
async fn disruption_budget_reads_scale(admin: &Client) -> Result<()> {
    namespace(admin, "budget").await?;
    let controller = create(admin, &widgets("budget"), &widget("w", json!({"replicas": 4}))).await?;
    let account = json!({"metadata": {"name": "default"}});
    // The controller of service accounts may have been first.
    admin.post("/api/v1/namespaces/budget/serviceaccounts", &account).await?;
    let pod = json!({"metadata": {"name": "p", "labels": {"app": "w"}, "ownerReferences": owner(&controller)},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    create(admin, "/api/v1/namespaces/budget/pods", &pod).await?;
    let budgets = "/apis/policy/v1/namespaces/budget/poddisruptionbudgets";
    let budget = json!({"metadata": {"name": "b"},
        "spec": {"minAvailable": "50%", "selector": {"matchLabels": {"app": "w"}}}});
    create(admin, budgets, &budget).await?;
    let read = |budget: &Value| {
        (budget["status"]["expectedPods"].as_i64(), budget["status"]["desiredHealthy"].as_i64())
    };
    until(admin, &format!("{budgets}/b"), |_, budget| read(budget) == (Some(4), Some(2))).await;
    Ok(())
}

async fn aggregated_role_grants_access(server: &Server) -> Result<()> {
    const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    let admin = &server.admin;
    let alice = server.client_as("alice", None)?;
    let binding = json!({"metadata": {"name": "alice-views"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice"}]});
    create(admin, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding).await?;
    ensure!(alice.get("/apis/example.com/v1/widgets").await?.status == 403);
    let role = json!({"metadata": {"name": "widgets-view",
            "labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}},
        "rules": [{"apiGroups": ["example.com"], "resources": ["widgets"], "verbs": ["get", "list", "watch"]}]});
    create(admin, ROLES, &role).await?;
    until(&alice, "/apis/example.com/v1/widgets", |code, _| code == 200).await;
    ensure!(alice.post(&widgets("default"), &widget("x", json!({}))).await?.status == 403);
    Ok(())
}

/// Policies are typed by the definition's schema; an apply configuration merges lists by their keys.
async fn policies_apply(admin: &Client) -> Result<()> {
    const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";
    namespace(admin, "policed").await?;
    let matches = json!({"resourceRules": [{"apiGroups": ["example.com"], "apiVersions": ["*"],
            "operations": ["CREATE", "UPDATE"], "resources": ["widgets"]}],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "policed"}}});
    let policy = json!({"metadata": {"name": "small"}, "spec": {"matchConstraints": matches,
        "validations": [{"expression": "!has(object.spec.size) || object.spec.size < 5", "message": "too large"}]}});
    create(admin, &format!("{GROUP}/validatingadmissionpolicies"), &policy).await?;
    let binding = json!({"metadata": {"name": "small"},
        "spec": {"policyName": "small", "validationActions": ["Deny"]}});
    create(admin, &format!("{GROUP}/validatingadmissionpolicybindings"), &binding).await?;
    let expression = "Object{spec: Object.spec{parts: [Object.spec.parts{name: \"x\", count: 7}]}}";
    let policy = json!({"metadata": {"name": "counted"}, "spec": {"matchConstraints": matches,
        "failurePolicy": "Fail", "reinvocationPolicy": "Never",
        "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}]}});
    create(admin, &format!("{GROUP}/mutatingadmissionpolicies"), &policy).await?;
    let binding = json!({"metadata": {"name": "counted"}, "spec": {"policyName": "counted"}});
    create(admin, &format!("{GROUP}/mutatingadmissionpolicybindings"), &binding).await?;

    let path = widgets("policed");
    let attempt = widget("a", json!({"size": 9, "parts": [{"name": "x", "count": 1}, {"name": "y"}]}));
    let denied = async || match admin.post(&format!("{path}?dryRun=All"), &attempt).await {
        Ok(reply) => (reply.status.as_u16(), reply.body["message"].as_str().unwrap_or_default().to_owned()),
        Err(error) => (0, error.to_string()),
    };
    eventually("the policy denies", LIMIT, denied, |(code, message)| {
        *code == 422
            && message
                .contains("ValidatingAdmissionPolicy 'small' with binding 'small' denied request: too large")
    })
    .await;
    let mut allowed = attempt.clone();
    allowed["spec"]["size"] = json!(1);
    let mutated = async || match admin.post(&format!("{path}?dryRun=All"), &allowed).await {
        Ok(reply) => reply.body["spec"]["parts"].clone(),
        Err(error) => json!(error.to_string()),
    };
    let want = json!([{"name": "x", "count": 7}, {"name": "y"}]);
    eventually("the policy mutates", LIMIT, mutated, |parts| *parts == want).await;
    Ok(())
}

/// Webhooks see the version that their rule names and mutate it; the audit log has the write with its object.
async fn webhook_mutates_and_audit_log_records(server: &Server) -> Result<()> {
    let admin = &server.admin;
    namespace(admin, "hooked").await?;
    let responder = Responder::start(|_, review| {
        let patch = json!([{"op": "add", "path": "/spec/size", "value": 3}]).to_string();
        let response = json!({"uid": review["request"]["uid"], "allowed": true, "patchType": "JSONPatch",
            "patch": STANDARD.encode(patch)});
        (200, json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}))
    })
    .await?;
    let configuration = json!({"metadata": {"name": "sized"}, "webhooks": [{
        "name": "sized.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "matchPolicy": "Equivalent",
        "clientConfig": {"url": format!("{}/mutate", responder.url), "caBundle": STANDARD.encode(&responder.certificate)},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "hooked"}},
        "rules": [{"apiGroups": ["example.com"], "apiVersions": ["v1"], "operations": ["CREATE"],
            "resources": ["widgets"]}]}]});
    let path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
    create(admin, path, &configuration).await?;
    // A request in another version: the webhook gets version 1, and the response is of version 2.
    let mut object = widget("a", json!({"replicas": 1}));
    object["apiVersion"] = json!("example.com/v2");
    let path = "/apis/example.com/v2/namespaces/hooked/widgets";
    let mutated = async || match admin.post(&format!("{path}?dryRun=All"), &object).await {
        Ok(reply) => reply.body["spec"].clone(),
        Err(error) => json!(error.to_string()),
    };
    let want = json!({"replicas": 1, "size": 3});
    eventually("the webhook mutates", LIMIT, mutated, |spec| *spec == want).await;
    let (_, review) = responder.seen().pop().context("a review")?;
    let request = &review["request"];
    ensure!(request["object"]["apiVersion"] == "example.com/v1", "{request}");
    ensure!(request["requestResource"]["version"] == "v2", "{request}");
    ensure!(create(admin, path, &object).await?["apiVersion"] == "example.com/v2");

    let log = server.data_dir().join("logs/audit.log");
    let recorded = async || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let reference = |event: Value| event["objectRef"].clone();
        let of_widgets =
            |reference: &Value| reference["resource"] == "widgets" && reference["namespace"] == "hooked";
        events.map(reference).filter(of_widgets).collect::<Vec<_>>()
    };
    let has_write = |references: &Vec<Value>| {
        references.iter().any(|reference| reference["apiGroup"] == "example.com" && reference["name"] == "a")
    };
    eventually("the audit log has the write", LIMIT, recorded, has_write).await;
    Ok(())
}

/// The API of migrations, enabled by `--runtime-config`, rewrites objects of a definition whose stored version changed.
async fn stored_version_is_migrated(admin: &Client) -> Result<()> {
    const MIGRATIONS: &str = "/apis/storagemigration.k8s.io/v1beta1/storageversionmigrations";
    // The feature gate, which belongs to the process, adds the role of the controller.
    let binding = json!({"metadata": {"name": "migrator"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "namespace": "kube-system",
            "name": "storage-version-migrator-controller"}]});
    create(admin, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding).await?;
    let own = format!("{DEFINITIONS}/widgets.example.com");
    let path = format!("{}/old", widgets("default"));
    create(admin, &widgets("default"), &widget("old", json!({"size": 1}))).await?;
    let mut changed = admin.get(&own).await?.body;
    for (at, stored) in [(0, false), (1, true)] {
        changed["spec"]["versions"][at]["storage"] = json!(stored);
    }
    let reply = admin.put(&own, &changed).await?;
    ensure!(
        reply.status == 200 && reply.body["status"]["storedVersions"] == json!(["v1", "v2"]),
        "{}",
        reply.body
    );
    let before = admin.get(&path).await?.body["metadata"]["resourceVersion"].clone();
    let migration = json!({"apiVersion": "storagemigration.k8s.io/v1beta1", "kind": "StorageVersionMigration",
        "metadata": {"name": "m"}, "spec": {"resource": {"group": "example.com", "resource": "widgets"}}});
    create(admin, MIGRATIONS, &migration).await?;
    let succeeded = |_: u16, migration: &Value| {
        let conditions = migration["status"]["conditions"].as_array();
        let holds = |condition: &Value| condition["type"] == "Succeeded" && condition["status"] == "True";
        conditions.is_some_and(|conditions| conditions.iter().any(holds))
    };
    until(admin, &format!("{MIGRATIONS}/m"), succeeded).await;
    let after = admin.get(&path).await?.body;
    ensure!(after["metadata"]["resourceVersion"] != before, "the object was not written: {after}");
    ensure!(after["spec"] == json!({"size": 1}), "{after}");
    patch(admin, &format!("{own}/status"), &json!({"status": {"storedVersions": ["v2"]}})).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn controllers_and_policies_handle_custom_resources() -> Result<()> {
    let server = start(|config| {
        let enabled = ["storagemigration.k8s.io/v1beta1=true"];
        config.api.runtime = api::runtime_config::RuntimeConfig::parse(enabled).expect("valid");
        config.components.controllers.push("storage-version-migrator-controller".to_owned());
    })
    .await?;
    let admin = &server.admin;
    collects_garbage(admin).await.context("garbage collection")?;
    namespace_is_deleted(admin).await.context("namespace deletion")?;
    quota_counts(admin).await.context("quota")?;
    disruption_budget_reads_scale(admin).await.context("disruption budget")?;
    aggregated_role_grants_access(&server).await.context("aggregated role")?;
    policies_apply(admin).await.context("admission policies")?;
    webhook_mutates_and_audit_log_records(&server).await.context("webhook and audit log")?;
    stored_version_is_migrated(admin).await.context("storage version migration")?;
    server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn autoscaler_scales_a_custom_resource() -> Result<()> {
    const METRIC: &str = "/apis/external.metrics.k8s.io/v1beta1/namespaces/default/queue";
    let responder = Responder::start(|path, _| match path {
        METRIC => (
            200,
            json!({"kind": "ExternalMetricValueList", "apiVersion": "external.metrics.k8s.io/v1beta1",
                "metadata": {}, "items": [{"metricName": "queue", "metricLabels": {},
                    "timestamp": "2026-01-01T00:00:00Z", "value": "40"}]}),
        ),
        "/apis/external.metrics.k8s.io/v1beta1" => (
            200,
            json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "external.metrics.k8s.io/v1beta1",
                "resources": [{"name": "queue", "singularName": "", "namespaced": true,
                    "kind": "ExternalMetricValueList", "verbs": ["get"]}]}),
        ),
        _ => (404, json!({"kind": "Status", "apiVersion": "v1", "code": 404})),
    })
    .await?;
    let server = start(|_| {}).await?;
    let admin = &server.admin;
    let service = json!({"metadata": {"name": "responder"}, "spec": {"type": "ExternalName", "externalName": "localhost"}});
    create(admin, "/api/v1/namespaces/default/services", &service).await?;
    let api_service = json!({"metadata": {"name": "v1beta1.external.metrics.k8s.io"},
        "spec": {"group": "external.metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": 100,
            "versionPriority": 100, "caBundle": STANDARD.encode(&responder.certificate),
            "service": {"namespace": "default", "name": "responder", "port": responder.port()?}}});
    create(admin, "/apis/apiregistration.k8s.io/v1/apiservices", &api_service).await?;
    until(admin, METRIC, |code, _| code == 200).await;

    let path = widgets("default");
    create(admin, &path, &widget("scaled", json!({"replicas": 1}))).await?;
    let status = json!({"status": {"replicas": 1, "selector": "app=scaled"}});
    patch(admin, &format!("{path}/scaled/status"), &status).await?;
    let autoscaler = json!({"metadata": {"name": "a"}, "spec": {
        "scaleTargetRef": {"apiVersion": "example.com/v1", "kind": "Widget", "name": "scaled"},
        "minReplicas": 1, "maxReplicas": 10,
        "metrics": [{"type": "External", "external": {"metric": {"name": "queue"},
            "target": {"type": "AverageValue", "averageValue": "10"}}}]}});
    create(admin, "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers", &autoscaler).await?;
    until(admin, &format!("{path}/scaled"), |_, widget| widget["spec"]["replicas"] == 4).await;
    server.stop().await
}
