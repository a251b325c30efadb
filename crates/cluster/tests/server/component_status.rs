//! `kubectl get componentstatuses` of a cluster in one process and of an API server alone.

use anyhow::Result;
use serde_json::{Value, json};
use testkit::Server;

const PATH: &str = "/api/v1/componentstatuses";

fn condition<'a>(list: &'a Value, name: &str) -> &'a Value {
    let items = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    let item = items.iter().find(|item| item["metadata"]["name"] == name);
    item.map_or(&Value::Null, |item| &item["conditions"][0])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn components_in_process_are_healthy_and_absent_ones_are_not() -> Result<()> {
    let healthy = json!({"type": "Healthy", "status": "True", "message": "ok"});
    let server = Server::start_with(|config| config.components = cluster::Components::all()).await?;
    let list = server.admin.get(PATH).await?.body;
    for name in ["controller-manager", "etcd-0", "scheduler"] {
        assert_eq!(condition(&list, name), &healthy, "{list}");
    }
    assert_eq!(list["items"].as_array().map(Vec::len), Some(3));
    // A failed task of the scheduler affects only its component.
    let tasks = server.tasks().clone();
    tasks.supervise("kube-scheduler", || async { panic!("no state") });
    let seen = async || server.admin.get(PATH).await.map(|reply| reply.body).unwrap_or_default();
    let limit = std::time::Duration::from_secs(60);
    let list = testkit::eventually("the scheduler is unhealthy", limit, seen, |list| {
        condition(list, "scheduler")["status"] == "False"
    })
    .await;
    let message = condition(&list, "scheduler")["message"].as_str().unwrap_or_default().to_owned();
    assert_eq!(message, "task kube-scheduler cannot be restarted: it panicked: no state");
    assert_eq!(condition(&list, "controller-manager"), &healthy);
    server.stop().await?;

    let server = Server::start().await?;
    let table = server.admin.get(PATH).await?;
    assert_eq!(condition(&table.body, "etcd-0"), &healthy);
    // A scheduler of another cluster may have the port; this process has none.
    assert!(condition(&table.body, "scheduler")["status"].is_string(), "{}", table.body);
    let warning = table.headers[http::header::WARNING].to_str()?;
    assert!(warning.contains("v1 ComponentStatus is deprecated in v1.19+"), "{warning}");
    server.stop().await
}
