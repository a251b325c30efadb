//! The stock Python client lists, watches and patches.

use anyhow::{Result, ensure};
use testkit::Server;
use tokio::process::Command;

const SCRIPT: &str = r#"
import sys
from kubernetes import client, config, watch
config.load_kube_config(sys.argv[1])
core = client.CoreV1Api()
assert "default" in [ns.metadata.name for ns in core.list_namespace().items]
body = client.V1ConfigMap(metadata=client.V1ObjectMeta(name="one", labels={"app": "py"}), data={"a": "1"})
created = core.create_namespaced_config_map("default", body)
assert created.metadata.uid and created.metadata.resource_version
core.patch_namespaced_config_map("one", "default", {"data": {"b": "2"}})
got = core.read_namespaced_config_map("one", "default")
assert got.data == {"a": "1", "b": "2"}, got.data
page = core.list_namespaced_config_map("default", label_selector="app=py", limit=1)
assert len(page.items) == 1
seen = []
stream = watch.Watch().stream(core.list_namespaced_config_map, "default", resource_version=created.metadata.resource_version, timeout_seconds=10)
for event in stream:
    seen.append(event["type"])
    if len(seen) == 1:
        core.delete_namespaced_config_map("one", "default")
    if event["type"] == "DELETED":
        break
assert seen == ["MODIFIED", "DELETED"], seen
try:
    core.read_namespaced_config_map("one", "default")
    raise AssertionError("still there")
except client.ApiException as error:
    assert error.status == 404 and error.reason == "Not Found", error
print("python is content")
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stock_python_client_lists_watches_and_patches() -> Result<()> {
    let python = std::env::var("FERRY_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let probe = Command::new(&python).args(["-c", "import kubernetes"]).output().await;
    if !probe.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: no Python with the kubernetes package (scripts/test installs one)");
        return Ok(());
    }
    let server = Server::start().await?;
    let output = Command::new(&python).args(["-c", SCRIPT]).arg(&server.kubeconfig).output().await?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    ensure!(output.status.success(), "{}\n{}{}", output.status, text(&output.stdout), text(&output.stderr));
    server.stop().await
}
