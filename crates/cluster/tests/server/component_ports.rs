//! HTTPS ports of controllers and scheduler, and the permissions that their pages require.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use base::clock::Clock;
use base::tasks::TaskGroup;
use base::zpages::PageSettings;
use cluster::{ComponentPort, Components, SchedulerConfiguration, SecurePort};
use serde_json::json;
use testkit::{Server, free_address, get_page as get, service_account_token as token};

const LIMIT: Duration = Duration::from_secs(60);

fn port(component: &'static str, address: SocketAddr, pages: PageSettings) -> ComponentPort {
    let port = SecurePort { listen: address, serving: None, cert_dir: None, pair_name: component };
    ComponentPort { component, port, needed: true, pages }
}

/// Pages of a component that runs alone: those of Kubernetes' component, with its own metrics only.
async fn pages_are_of(component: &str, address: SocketAddr, token: &str) -> Result<()> {
    let ready = || get(address, "/readyz", Some(token));
    testkit::eventually("readiness", LIMIT, ready, |(code, _)| *code == 200).await;
    let page = async |path: &str| {
        let (code, text) = get(address, path, Some(token)).await;
        ensure!(code == 200, "{component} {path}: {code} {text}");
        Ok(text)
    };
    let metrics = page("/metrics").await?;
    let is_scheduler = component == "kube-scheduler";
    for (series, wanted) in [
        ("kubernetes_build_info{", true),
        ("rest_client_requests_total{", true),
        ("leader_election_master_status{", true),
        ("scheduler_pending_pods{", is_scheduler),
        ("workqueue_depth{", !is_scheduler),
        ("apiserver_", false),
        ("authentication_", false),
        ("aggregator_", false),
        ("metrics_server_", false),
    ] {
        ensure!(metrics.contains(&format!("\n{series}")) == wanted, "{component}: {series}: {metrics}");
    }
    let verbose = page("/readyz?verbose").await?;
    ensure!(verbose.contains("[+]leaderElection ok\n[+]"), "{verbose}");
    ensure!(
        verbose.contains("[+]informer-sync ok\n") && verbose.ends_with("readyz check passed\n"),
        "{verbose}"
    );
    let slis = page("/metrics/slis").await?;
    let row = "kubernetes_healthcheck{name=\"informer-sync\",type=\"readyz\"} 1";
    ensure!(slis.lines().any(|line| line == row), "{slis}");
    ensure!(page("/healthz/leaderElection").await? == "ok");
    ensure!(page("/statusz").await?.contains(&format!("{component} statusz")));
    ensure!(page("/flagz").await?.contains(&format!("{component} flagz")));
    let configz = page("/configz").await?;
    let kind = if is_scheduler { "KubeSchedulerConfiguration" } else { "KubeControllerManagerConfiguration" };
    ensure!(configz.contains(kind), "{configz}");
    ensure!(get(address, "/debug/pprof/cmdline", Some(token)).await.0 == 404, "profiling is disabled");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn standalone_components_serve_their_own_pages() -> Result<()> {
    let server = Server::start().await?;
    let token = token(&server, "operator", Some("cluster-admin")).await?;
    let pages = PageSettings { profiling: false };
    let tasks = TaskGroup::new();
    let alone = |component, controllers: &[&str], scheduler: bool, address| Components {
        controllers: controllers.iter().map(|name| (*name).to_owned()).collect(),
        scheduler: scheduler.then(SchedulerConfiguration::default),
        leader_election: true,
        ports: vec![port(component, address, pages)],
        ..Components::default()
    };
    let (for_scheduler, for_controllers) = (free_address()?, free_address()?);
    let scheduler = alone("kube-scheduler", &[], true, for_scheduler);
    let controllers = alone("kube-controller-manager", &["job-controller"], false, for_controllers);
    let clock = Clock::system();
    let check = async {
        let outcome = async {
            pages_are_of("kube-scheduler", for_scheduler, &token).await?;
            pages_are_of("kube-controller-manager", for_controllers, &token).await
        };
        let outcome = outcome.await;
        tasks.stop();
        outcome
    };
    let (first, second, checked) = tokio::join!(
        cluster::run_alone(&scheduler, &server.kubeconfig, &clock, &tasks),
        cluster::run_alone(&controllers, &server.kubeconfig, &clock, &tasks),
        check
    );
    checked?;
    first?;
    second?;
    server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn component_ports_serve_metrics_to_authorized_users_only() -> Result<()> {
    let address = free_address()?;
    let server = Server::start_with(|config| {
        config.components.ports = vec![port("kube-controller-manager", address, PageSettings::default())];
    })
    .await?;
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "scrapers"}, "rules": [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]});
    server.admin.post("/apis/rbac.authorization.k8s.io/v1/clusterroles", &role).await?;
    let scraper = token(&server, "scraper", Some("scrapers")).await?;
    let stranger = token(&server, "stranger", None).await?;

    let scrape = || get(address, "/metrics", Some(&scraper));
    let (_, page) = testkit::eventually("the page of metrics", LIMIT, scrape, |(code, _)| *code == 200).await;
    ensure!(page.contains("process_cpu_seconds_total") && !page.contains("\napiserver_"), "{page}");
    ensure!(get(address, "/healthz", None).await == (200, "ok".to_owned()));
    for (path, token, code) in [
        ("/metrics", None, 403),
        ("/metrics", Some(&*stranger), 403),
        ("/metrics", Some("invalid"), 401),
        ("/debug/pprof/", Some(&*scraper), 403),
        ("/debug/pprof/profile?seconds=600", None, 403),
    ] {
        let (got, page) = get(address, path, token).await;
        ensure!(got == code, "{path} with token {token:?}: {got} {page}");
    }
    server.stop().await
}
