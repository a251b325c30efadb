//! Scheduler and controllers as separate processes against another Ferry's API server over TCP: ordinary clients with
//! only the permissions that a new cluster grants to their users and service accounts.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http::Method;
use serde_json::{Value, json};
use testkit::{Server, eventually, free_address, get_page, service_account_token};
use tokio::process::{Child, Command};

const PATIENCE: Duration = Duration::from_secs(90);
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/team/deployments";
const PODS: &str = "/api/v1/namespaces/team/pods";

/// A component process; its standard error goes to a file.
struct Component {
    child: Child,
    log: std::path::PathBuf,
}

impl Component {
    fn start(role: &str, kubeconfig: &Path, flags: &[&str], directory: &Path) -> Result<Self> {
        let log = directory.join(format!("{role}.log"));
        let child = Command::new(env!("CARGO_BIN_EXE_ferry"))
            .args([role, "--kubeconfig"])
            .arg(kubeconfig)
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log)?)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("failed to start {role}"))?;
        Ok(Self { child, log })
    }

    /// Stops it and checks that no request was forbidden.
    async fn end(mut self) -> Result<()> {
        self.child.kill().await?;
        let log = std::fs::read_to_string(&self.log)?;
        let refused: Vec<&str> =
            log.lines().filter(|line| line.to_lowercase().contains("forbidden")).collect();
        ensure!(refused.is_empty(), "{refused:#?}");
        Ok(())
    }
}

async fn read(server: &Server, path: &str) -> Value {
    server.admin.get(path).await.expect("an answer").body
}

fn items(list: &Value) -> &[Value] {
    list["items"].as_array().map(Vec::as_slice).unwrap_or_default()
}

async fn create(server: &Server, path: &str, object: Value) -> Result<()> {
    let reply = server.admin.post(path, &object).await?;
    ensure!(reply.status == 201, "{path}: {} {}", reply.status, reply.body);
    Ok(())
}

/// Running pods, endpoints of the service, and status of the deployment.
async fn counts(server: &Server) -> (usize, usize, i64) {
    let pods = read(server, PODS).await;
    let running = items(&pods).iter().filter(|pod| pod["status"]["phase"] == "Running").count();
    let slices = read(server, "/apis/discovery.k8s.io/v1/namespaces/team/endpointslices").await;
    let endpoints =
        items(&slices).iter().filter_map(|slice| slice["endpoints"].as_array()).map(Vec::len).sum();
    let web = read(server, &format!("{DEPLOYMENTS}/web")).await;
    (running, endpoints, web["status"]["availableReplicas"].as_i64().unwrap_or(0))
}

/// Flags of the controller manager.
async fn controller_flags(server: &Server) -> [String; 8] {
    let pki = server.data_dir().join("pki");
    let file = |name: &str| pki.join(name).display().to_string();
    let key = async || pki.join("service-account.key").exists();
    eventually("a key of service accounts", PATIENCE, key, |there| *there).await;
    [
        "--root-ca-file".to_owned(),
        file("server-ca.crt"),
        "--service-account-private-key-file".to_owned(),
        file("service-account.key"),
        "--cluster-signing-cert-file".to_owned(),
        file("client-ca.crt"),
        "--cluster-signing-key-file".to_owned(),
        file("client-ca.key"),
    ]
}

/// The journal has a separate user for each controller.
async fn controllers_use_own_identities(server: &Server) -> Result<()> {
    let journal = read(server, "/debug/ferry/journal").await;
    let writes = journal["writes"].as_array().context("a journal")?;
    let by = |verb: &str, resource: &str, subresource: &str| {
        let found = writes.iter().find(|write| {
            write["verb"] == verb
                && write["object"].as_str().is_some_and(|object| object.starts_with(resource))
                && write["subresource"].as_str().unwrap_or_default() == subresource
        });
        found.and_then(|write| write["user"].as_str()).unwrap_or_default().to_owned()
    };
    let account = |name: &str| format!("system:serviceaccount:kube-system:{name}");
    assert_eq!(by("create", "pods/team/", ""), account("replicaset-controller"));
    assert_eq!(by("create", "pods/team/", "binding"), "system:kube-scheduler");
    assert_eq!(by("create", "replicasets.apps/team/", ""), account("deployment-controller"));
    assert_eq!(
        by("create", "endpointslices.discovery.k8s.io/team/", ""),
        account("endpointslice-controller")
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scheduler_and_controllers_are_ordinary_clients() -> Result<()> {
    let server = Server::start().await?;
    let directory = tempfile::tempdir()?;
    let flags = controller_flags(&server).await;
    let mut flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let (controllers_address, scheduler_address) = (free_address()?, free_address()?);
    let (controllers_port, scheduler_port) =
        (controllers_address.port().to_string(), scheduler_address.port().to_string());
    flags.extend(["--secure-port", &controllers_port]);
    let manager = server.kubeconfig_of("system:kube-controller-manager")?;
    let controllers = Component::start("controller-manager", &manager, &flags, directory.path())?;
    let scheduler = server.kubeconfig_of("system:kube-scheduler")?;
    let port = ["--secure-port", &scheduler_port];
    let scheduler = Component::start("scheduler", &scheduler, &port, directory.path())?;
    let nodes = ["--nodes", "3"];
    let nodes = Component::start("simulate", &server.kubeconfig, &nodes, directory.path())?;

    create(&server, "/api/v1/namespaces", json!({"metadata": {"name": "team"}})).await?;
    let service =
        json!({"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}});
    create(&server, "/api/v1/namespaces/team/services", service).await?;
    let deployment = json!({"metadata": {"name": "web"}, "spec": {
        "replicas": 5, "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": {
            "containers": [{"name": "c", "image": "image:1"}],
        }},
    }});
    create(&server, DEPLOYMENTS, deployment).await?;
    let seen = async || counts(&server).await;
    eventually("five pods run", PATIENCE, seen, |seen| *seen == (5, 5, 5)).await;

    // Each component serves health to every client, and metrics to permitted ones.
    let token = service_account_token(&server, "scraper", Some("system:monitoring")).await?;
    for (address, series) in [
        (
            scheduler_address,
            r#"scheduler_schedule_attempts_total{profile="default-scheduler",result="scheduled"}"#,
        ),
        (controllers_address, "workqueue_adds_total"),
    ] {
        let page = async || get_page(address, "/metrics", Some(&token)).await;
        eventually(series, PATIENCE, page, |(code, text)| *code == 200 && text.contains(series)).await;
        ensure!(get_page(address, "/metrics", None).await.0 == 403);
        ensure!(get_page(address, "/healthz", None).await == (200, "ok".to_owned()));
    }

    controllers_use_own_identities(&server).await?;

    // The server accepts a secret token signed with the configured key.
    let secret = json!({"metadata": {"name": "robot", "annotations": {"kubernetes.io/service-account.name": "default"}},
        "type": "kubernetes.io/service-account-token"});
    create(&server, "/api/v1/namespaces/team/secrets", secret).await?;
    let token =
        async || read(&server, "/api/v1/namespaces/team/secrets/robot").await["data"]["token"].clone();
    eventually("a token", PATIENCE, token, Value::is_string).await;

    let scale = json!({"spec": {"replicas": 2}});
    let merge = "application/merge-patch+json";
    server.admin.request(Method::PATCH, &format!("{DEPLOYMENTS}/web"), merge, scale.to_string()).await?;
    eventually("two pods run", PATIENCE, seen, |seen| *seen == (2, 2, 2)).await;

    server.admin.delete("/api/v1/namespaces/team").await?;
    let gone =
        async || server.admin.get("/api/v1/namespaces/team").await.map_or(0, |reply| reply.status.as_u16());
    eventually("the namespace is deleted with its objects", PATIENCE, gone, |status| *status == 404).await;

    scheduler.end().await?;
    controllers.end().await?;
    nodes.end().await?;
    server.stop().await
}
