//! Field managers and User-Agents of the components of one process.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result};
use cluster::audit::{Format, LogConfig, Mode, Rotation};
use http::StatusCode;
use serde_json::{Value, json};
use testkit::{Server, eventually};

const LIMIT: Duration = Duration::from_secs(60);
const POLICY: &str = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n";

/// Managers of the objects of a list.
async fn managers(server: &Server, path: &str) -> BTreeSet<String> {
    let list = server.admin.get(path).await.map(|reply| reply.body).unwrap_or_default();
    let items = list["items"].as_array().cloned().unwrap_or_default();
    let entries = items.iter().filter_map(|item| item["metadata"]["managedFields"].as_array()).flatten();
    entries.filter_map(|entry| entry["manager"].as_str().map(str::to_owned)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn components_have_managers_and_user_agents_of_kubernetes() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let (policy, log) = (directory.path().join("policy.yaml"), directory.path().join("audit.log"));
    std::fs::write(&policy, POLICY)?;
    let server = Server::start_with(|config| {
        config.components = cluster::Components::all();
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
    let pod =
        json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": pod},
    });
    let created = server.admin.post("/apis/apps/v1/namespaces/default/deployments", &deployment).await?;
    assert_eq!(created.status, StatusCode::CREATED, "{}", created.body);
    for (resource, wanted) in [
        ("apis/apps/v1/replicasets", ["kube-controller-manager"].as_slice()),
        ("api/v1/pods", &["kube-controller-manager", "kube-scheduler"]),
    ] {
        let wanted: BTreeSet<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
        let path = format!("/{resource}");
        let seen = async || managers(&server, &path).await;
        eventually(&format!("managers of {resource}"), LIMIT, seen, |seen| *seen == wanted).await;
    }
    let text = std::fs::read_to_string(&log).with_context(|| log.display().to_string())?;
    let events: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let agent_of = |user: &str| {
        let event = events.iter().find(|event| event["user"]["username"] == user);
        event.and_then(|event| event["userAgent"].as_str()).unwrap_or_default().to_owned()
    };
    let account = "system:serviceaccount:kube-system:replicaset-controller";
    assert_eq!(agent_of(account), base::version::user_agent_of("kube-controller-manager", account));
    assert_eq!(
        agent_of("system:kube-scheduler"),
        base::version::user_agent_of("kube-scheduler", "scheduler")
    );
    server.stop().await
}
