//! A session of a stock kubectl with common commands.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::{Kubectl, Server};
use tokio::io::{AsyncBufReadExt, BufReader};

const MANIFEST: &str = "\
apiVersion: v1
kind: ConfigMap
metadata:
  name: greeting
  labels: {app: demo}
data:
  hello: world
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: web, image: nginx}
";

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(' ').filter(|word| !word.is_empty())
}

/// Runs a command line and checks that its output contains a text.
async fn expect(kubectl: &Kubectl, line: &str, want: &str) -> Result<String> {
    let out = kubectl.run(words(line)).await?;
    ensure!(out.contains(want), "kubectl {line}: {want:?} is not in\n{out}");
    Ok(out)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stock_kubectl_session_succeeds() -> Result<()> {
    let server = Server::start().await?;
    let Some(kubectl) = Kubectl::find(&server.kubeconfig)? else { return Ok(()) };

    expect(&kubectl, "version", "Server Version: v1.36").await?;
    expect(&kubectl, "get namespaces", "kube-system").await?;
    let resources = expect(&kubectl, "api-resources", "deployments").await?;
    ensure!(resources.lines().count() > 50, "few resources:\n{resources}");
    expect(&kubectl, "api-versions", "apps/v1").await?;

    let out = kubectl.run_with_input(["apply", "-f", "-"], MANIFEST).await?;
    ensure!(
        out.contains("configmap/greeting created") && out.contains("deployment.apps/web created"),
        "{out}"
    );
    let out = kubectl.run_with_input(["apply", "-f", "-"], MANIFEST).await?;
    ensure!(out.contains("configmap/greeting unchanged"), "{out}");
    let changed = MANIFEST.replace("hello: world", "hello: ferry");
    let out =
        kubectl.run_with_input(["apply", "--server-side", "--force-conflicts", "-f", "-"], &changed).await?;
    ensure!(out.contains("configmap/greeting serverside-applied"), "{out}");
    expect(&kubectl, "get configmap greeting -o jsonpath={.data.hello}", "ferry").await?;

    expect(&kubectl, "get deployment web", "0/2").await?;
    expect(&kubectl, "get deployment web -o wide", "nginx").await?;
    expect(&kubectl, "get deployment web -o yaml", "replicas: 2").await?;
    expect(&kubectl, "scale deployment web --replicas=3", "scaled").await?;
    expect(&kubectl, "get deployment web -o jsonpath={.spec.replicas}", "3").await?;
    expect(&kubectl, "set image deployment/web web=nginx:2", "image updated").await?;
    expect(&kubectl, "label configmap greeting tier=front", "labeled").await?;
    expect(&kubectl, "annotate configmap greeting note=yes", "annotated").await?;
    expect(&kubectl, "get configmap -l tier=front -o name", "configmap/greeting").await?;
    expect(&kubectl, "patch configmap greeting --type=merge -p {\"data\":{\"more\":\"1\"}}", "patched")
        .await?;
    expect(&kubectl, "patch deployment web -p {\"spec\":{\"paused\":true}}", "patched").await?;
    expect(&kubectl, "describe configmap greeting", "more:").await?;
    expect(&kubectl, "explain deployment.spec.replicas", "integer").await?;
    expect(&kubectl, "create namespace other", "created").await?;
    expect(&kubectl, "create configmap two -n other --from-literal=a=b", "created").await?;
    expect(&kubectl, "get configmap -A", "other").await?;
    expect(&kubectl, "wait --for=jsonpath={.data.a}=b configmap/two -n other --timeout=10s", "condition met")
        .await?;
    diff(&kubectl).await?;
    watch(&kubectl).await?;
    expect(&kubectl, "delete configmap greeting --wait=true", "deleted").await?;
    expect(&kubectl, "delete deployment web", "deleted").await?;
    ensure!(kubectl.run(words("get configmap greeting")).await.is_err(), "still there");
    expect(&kubectl, "get --raw /readyz", "ok").await?;
    server.stop().await
}

/// `kubectl diff` exits with 1 if there is a difference.
async fn diff(kubectl: &Kubectl) -> Result<()> {
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), MANIFEST.replace("hello: world", "hello: diff"))?;
    let output = kubectl.command(["diff", "-f"]).arg(file.path()).output().await?;
    let text = String::from_utf8_lossy(&output.stdout);
    if output.status.code() == Some(1) && text.contains("+  hello: diff") {
        return Ok(());
    }
    let error = String::from_utf8_lossy(&output.stderr);
    if error.contains("executable file not found") {
        eprintln!("partly skipped: no diff on PATH");
        return Ok(());
    }
    anyhow::bail!("kubectl diff: {}\n{text}{error}", output.status)
}

/// A watch prints a change immediately.
async fn watch(kubectl: &Kubectl) -> Result<()> {
    let mut child = kubectl
        .command(words("get configmap greeting --watch -o jsonpath={.metadata.labels.seen}{\"\\n\"}"))
        .stdout(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("a pipe")?).lines();
    lines.next_line().await?;
    kubectl.run(words("label configmap greeting seen=now")).await?;
    let seen = tokio::time::timeout(Duration::from_secs(20), async {
        while let Some(line) = lines.next_line().await? {
            if line == "now" {
                return Ok::<_, anyhow::Error>(true);
            }
        }
        Ok(false)
    });
    ensure!(seen.await.context("the watch showed nothing")??, "the watch ended");
    child.kill().await?;
    Ok(())
}
