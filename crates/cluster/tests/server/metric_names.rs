//! Metrics of API server, controllers, scheduler and proxy beside Kubernetes' lists: types, labels, buckets and levels.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Result, ensure};
use base::clock::Clock;
use base::metrics::{DEFAULT_BUCKETS, Metrics, RegisteredFamily, stability};
use base::zpages::PageSettings;
use cluster::{ComponentPort, SchedulerConfiguration, SecurePort};
use proxy::metrics::ProxyMetrics;
use serde_json::Value;
use testkit::{Server, free_address, get_page, service_account_token};

const LIMIT: Duration = Duration::from_secs(60);

/// Components whose metrics are compared here.
const COMPONENTS: [&str; 4] = ["kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler"];

/// Metrics of level STABLE and BETA that are not served, with the reason.
const NOT_APPLICABLE: [(&str, &str); 3] = [
    (
        "apiserver_validation_declarative_validation_mismatch_total",
        "objects are validated by one implementation, so there is no other result to compare with",
    ),
    (
        "apiserver_validation_declarative_validation_panic_total",
        "objects are validated by one implementation; a panic fails the request and is logged",
    ),
    (
        "scheduler_permit_wait_duration_seconds",
        "no plugin has the extension point Permit, so no pod waits for a permission",
    ),
];

/// Families of a page, for registries that the test cannot read.
fn families_of(page: &str) -> Vec<RegisteredFamily> {
    let mut kinds: BTreeMap<&str, &str> = BTreeMap::new();
    let mut labels: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for line in page.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            kinds.insert(name, kind);
        } else if let Some((name, rest)) = line.split_once('{').filter(|_| !line.starts_with('#')) {
            let names = rest.split("\",").filter_map(|pair| pair.split_once("=\""));
            labels.entry(name).or_default().extend(names.map(|(label, _)| label.to_owned()));
        }
    }
    let family = |(name, kind): (&str, &str)| RegisteredFamily {
        name: name.to_owned(),
        kind: if kind == "counter" { "counter" } else { "gauge" },
        labels: labels.get(name).into_iter().flatten().cloned().collect(),
        buckets: None,
    };
    kinds.into_iter().map(family).collect()
}

fn texts(value: &Value) -> Vec<&str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Differences between a family and its fact.
fn differences(fact: &Value, family: &RegisteredFamily) -> Vec<String> {
    let mut found = Vec::new();
    let kind = match fact["type"].as_str().unwrap_or_default() {
        "Custom" => family.kind,
        "Counter" => "counter",
        "Gauge" => "gauge",
        "Summary" => "summary",
        _ => "histogram",
    };
    // The type of a collector without rows is unknown.
    if !family.kind.is_empty() && family.kind != kind {
        found.push(format!("{} is a {} instead of a {kind}", family.name, family.kind));
    }
    let labels = texts(&fact["labels"]);
    let mut own: Vec<&str> = family.labels.iter().map(String::as_str).collect();
    own.sort_unstable();
    let mut wanted = labels.clone();
    wanted.sort_unstable();
    if own != wanted {
        found.push(format!("{} has the labels {own:?} instead of {wanted:?}", family.name));
    }
    // Those of a collector without rows are unknown.
    if let (true, Some(own)) = (kind == "histogram", &family.buckets) {
        let listed = fact["buckets"].as_array().into_iter().flatten();
        let listed: Vec<f64> = listed.filter_map(Value::as_f64).collect();
        let wanted = if listed.is_empty() { DEFAULT_BUCKETS.to_vec() } else { listed };
        let is_same = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-9 * b.abs();
        if own.len() != wanted.len() || !own.iter().zip(&wanted).all(is_same) {
            found.push(format!("{} has the buckets {own:?} instead of {wanted:?}", family.name));
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_match_those_of_kubernetes() -> Result<()> {
    let address = free_address()?;
    let server = Server::start_with(|config| {
        config.components.controllers = vec!["*".to_owned()];
        config.components.scheduler = Some(SchedulerConfiguration::default());
        config.components.leader_election = true;
        config.components.ports = vec![ComponentPort {
            component: "kube-scheduler",
            port: SecurePort { listen: address, serving: None, cert_dir: None, pair_name: "kube-scheduler" },
            needed: true,
            pages: PageSettings::default(),
        }];
    })
    .await?;
    let pod = serde_json::json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {
        "containers": [{"name": "c", "image": "c", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}}]}});
    let token = service_account_token(&server, "scraper", Some("cluster-admin")).await?;
    testkit::eventually(
        "a pod is created",
        LIMIT,
        || server.admin.post("/api/v1/namespaces/default/pods", &pod),
        Result::is_ok,
    )
    .await?;
    let resources = testkit::eventually(
        "the scheduler knows the pod",
        LIMIT,
        || get_page(address, "/metrics/resources", Some(&token)),
        |(code, page)| *code == 200 && page.contains("kube_pod_resource_limit{"),
    )
    .await;
    // Each health check counts its results.
    get_page(address, "/readyz", Some(&token)).await;
    let slis = get_page(address, "/metrics/slis", Some(&token)).await;
    let proxy = Metrics::new(&Clock::system())?;
    ProxyMetrics::new(&proxy)?;
    let mut served: BTreeMap<String, RegisteredFamily> = BTreeMap::new();
    let pages = [families_of(&resources.1), families_of(&slis.1)].into_iter().flatten();
    for family in server.metrics.families().into_iter().chain(proxy.families()).chain(pages) {
        served.insert(family.name.clone(), family);
    }
    server.stop().await?;

    let facts: BTreeMap<String, Value> = reference::METRICS.values().into_iter().collect();
    let (mut problems, mut compared) = (Vec::new(), 0);
    for (name, fact) in &facts {
        let (level, deprecated) =
            (fact["stability"].as_str(), fact["deprecated"].as_str().unwrap_or_default());
        if (level.unwrap_or("ALPHA"), deprecated) != stability(name) {
            problems.push(format!("{name} is {level:?}, deprecated by {deprecated:?}"));
        }
        let components = texts(&fact["components"]);
        let concerns = components.is_empty() || components.iter().any(|name| COMPONENTS.contains(name));
        let reason = NOT_APPLICABLE.iter().find(|(known, _)| known == name);
        match served.get(name) {
            Some(_) if reason.is_some() => problems.push(format!("{name} is served though not applicable")),
            Some(family) => {
                compared += 1;
                problems.extend(differences(fact, family));
            }
            None if concerns && level != Some("ALPHA") && reason.is_none() => {
                problems.push(format!("{name} ({level:?}) is not served"));
            }
            None => {}
        }
    }
    for (name, reason) in NOT_APPLICABLE {
        ensure!(facts.contains_key(name), "{name} is not a metric of Kubernetes ({reason})");
    }
    ensure!(problems.is_empty(), "{} of {compared} differ:\n{}", problems.len(), problems.join("\n"));
    ensure!(compared > 250, "only {compared} families are compared");
    Ok(())
}
