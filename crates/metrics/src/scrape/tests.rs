//! Cycles over small kubelets on loopback.

use super::*;
use crate::kubelet::{KubeletAddressing, KubeletTls};
use crate::record::ContainerRecord;
use base::clock::Clock;
use objects::meta::v1::ObjectMeta;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

struct Plain;

impl KubeletTls for Plain {
    fn config(&self, _node: &str) -> Result<Option<Arc<rustls::ClientConfig>>, String> {
        Ok(None)
    }
}

/// A node whose kubelet reports a second of CPU time per request; one that never answers if `hangs`.
async fn node(name: &str, hangs: bool) -> NodeRecord {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let port = listener.local_addr().expect("an address").port();
    let requests = Arc::new(AtomicU64::new(0));
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let requests = Arc::clone(&requests);
            tokio::spawn(async move {
                let mut request = vec![0; 4096];
                while stream.read(&mut request).await.is_ok_and(|length| length > 0) {
                    if hangs {
                        return std::future::pending().await;
                    }
                    let number = requests.fetch_add(1, Ordering::SeqCst) + 1;
                    // The clock of this node is years behind.
                    let page = format!(
                        "node_cpu_usage_seconds_total {number} {}\nnode_memory_working_set_bytes 7\n",
                        number * 10_000
                    );
                    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", page.len());
                    let _ = stream.write_all((head + &page).as_bytes()).await;
                }
            });
        }
    });
    NodeRecord {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        labels: [("name".into(), name.into())].into(),
        addresses: vec![("InternalIP".to_owned(), "127.0.0.1".to_owned())],
        kubelet_port: port,
        ..NodeRecord::default()
    }
}

fn scraper(nodes: Vec<NodeRecord>, selector: &str) -> Scraper {
    let (cache, resolution, clock) = (Cache::new(), Duration::from_secs(2), Clock::system());
    cache.replace(nodes);
    let timeout = Duration::from_millis(500);
    Scraper {
        nodes: cache,
        pods: Cache::new(),
        kubelets: Kubelets::new(KubeletAddressing::default(), Arc::new(Plain), timeout, clock.clone()),
        storage: Arc::new(Storage::new(resolution)),
        stats: None,
        resolution,
        selector: LabelSelector::parse(selector).expect("a selector"),
        metrics: ScrapeMetrics::new(&Metrics::new(&clock).expect("metrics"), resolution).expect("metrics"),
        clock,
        labelled: Mutex::default(),
        last_start: Mutex::default(),
        failing: Mutex::default(),
    }
}

#[tokio::test]
async fn node_that_hangs_costs_its_own_rows_only() {
    let scraper = scraper(vec![node("good", false).await, node("hung", true).await], "");
    scraper.cycle().await;
    assert_eq!(scraper.storage.node("good"), None, "one point");
    scraper.cycle().await;
    let used = scraper.storage.node("good").expect("usage");
    assert_eq!((used.cpu, used.window), (100_000_000, 10_000_000_000), "by the clock of the node");
    assert_eq!(scraper.storage.node("hung"), None);
    assert!(scraper.is_timely());
    let count = |success: &str| scraper.metrics.requests.with_label_values(&[success]).get();
    assert_eq!((count("true"), count("false"), scraper.metrics.nodes.get()), (2, 2, 1));
}

#[tokio::test]
async fn nodes_that_are_not_selected_or_gone_have_no_rows() {
    let scraper = scraper(vec![node("a", false).await, node("b", false).await], "name!=b");
    for _ in 0..2 {
        scraper.cycle().await;
    }
    assert!(scraper.storage.node("a").is_some() && scraper.storage.node("b").is_none());
    scraper.nodes.replace(Vec::new());
    scraper.cycle().await;
    assert!(scraper.storage.node("a").is_none());
}

#[tokio::test]
async fn figures_of_a_node_go_with_it() {
    let scraper = scraper(vec![node("a", false).await], "");
    for _ in 0..2 {
        scraper.cycle().await;
    }
    let seen = || {
        let families = [
            prometheus::core::Collector::collect(&scraper.metrics.durations),
            prometheus::core::Collector::collect(&scraper.metrics.last_requests),
        ];
        families.map(|family| family[0].get_metric().len())
    };
    assert_eq!(seen(), [1, 1]);
    assert_eq!(scraper.metrics.durations.with_label_values(&["a"]).get_sample_count(), 2);
    assert_eq!(scraper.metrics.points.with_label_values(&["node"]).get(), 1);
    scraper.nodes.replace(Vec::new());
    scraper.cycle().await;
    assert_eq!(seen(), [0, 0]);
}

#[test]
fn buckets_of_cycles_are_around_the_resolution() {
    assert_eq!(cycle_buckets(60.0)[10..], [10.0, 35.0, 60.0, 90.0, 120.0]);
    assert_eq!(cycle_buckets(10.0), BUCKETS);
    assert_eq!(cycle_buckets(7.0)[9..], [5.0, 7.0, 10.0]);
}

/// Kubelets on a thread of their own, whose pages are made to be as large as they can be: containers and volumes that
/// pods do not have, long names, statistics of a megabyte for one pod. Returns their port.
fn hostile_kubelets(pods: usize) -> u16 {
    let mut resource = String::from("node_cpu_usage_seconds_total 1 1000\nnode_memory_working_set_bytes 7\n");
    for pod in 0..pods {
        for container in 0..150 {
            let name = format!("{container:0>253}");
            for metric in ["cpu_usage_seconds_total", "memory_working_set_bytes"] {
                let _ = writeln!(
                    resource,
                    "container_{metric}{{container=\"{name}\",namespace=\"ns\",pod=\"pod-{pod}\"}} 1"
                );
            }
        }
    }
    let volumes: String =
        (0..3000).map(|number| format!("{{\"name\": \"{number:0>253}\", \"usedBytes\": 1}},")).collect();
    let of_pod = |pod: usize| {
        format!(
            "{{\"podRef\": {{\"name\": \"pod-{pod}\", \"namespace\": \"ns\"}}, \"volume\": [{volumes}{{\"name\": \"data\"}}]}}"
        )
    };
    let all: Vec<String> = (0..2).map(of_pod).collect();
    let summary = format!("{{\"node\": {{}}, \"pods\": [{}]}}", all.join(","));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("binds");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        use std::io::{Read as _, Write as _};
        let (resource, summary) = (Arc::new(resource), Arc::new(summary));
        while let Ok((mut stream, _)) = listener.accept() {
            let (resource, summary) = (Arc::clone(&resource), Arc::clone(&summary));
            std::thread::spawn(move || {
                let mut request = vec![0; 4096];
                while let Ok(length) = stream.read(&mut request) {
                    if length == 0 {
                        return;
                    }
                    let is_summary = request.starts_with(b"GET /stats/summary ");
                    let page = if is_summary { &summary } else { &resource };
                    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", page.len());
                    let _ =
                        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(page.as_bytes()));
                }
            });
        }
    });
    port
}

#[test]
fn hostile_kubelets_take_bounded_memory() {
    const NODES: usize = 40;
    const PODS: usize = 4;
    let port = hostile_kubelets(PODS);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut scraper = runtime.block_on(async {
        let node = node("template", false).await;
        let metadata = |name: String| ObjectMeta { name: Some(name), ..ObjectMeta::default() };
        let nodes = (0..NODES).map(|number| NodeRecord {
            metadata: metadata(format!("node-{number}")),
            kubelet_port: port,
            ..node.clone()
        });
        scraper(nodes.collect(), "")
    });
    scraper.stats = Some(Arc::new(Stats::default()));
    scraper.resolution = Duration::from_secs(60);
    let timeout = Duration::from_secs(60);
    scraper.kubelets =
        Kubelets::new(KubeletAddressing::default(), Arc::new(Plain), timeout, scraper.clock.clone());
    // All nodes report the same pods, which are bound to the first one.
    let containers: Box<[ContainerRecord]> =
        [ContainerRecord { name: "c".into(), ..ContainerRecord::default() }].into();
    let pods = (0..PODS).map(|number| PodRecord {
        metadata: ObjectMeta {
            name: Some(format!("pod-{number}")),
            namespace: Some("ns".to_owned()),
            ..ObjectMeta::default()
        },
        node: "node-0".to_owned(),
        containers: containers.clone(),
        volumes: ["data".into()].into(),
        ..PodRecord::default()
    });
    scraper.pods.replace(pods.collect());
    let ((), peak) = testbase::memory::measured(|| runtime.block_on(scraper.cycle()));
    assert_eq!(scraper.metrics.nodes.get(), i64::try_from(NODES).expect("a number"), "all were read");
    assert_eq!(scraper.storage.points().1, 0, "containers that pods do not have are left out");
    let filesystems = scraper.stats.as_ref().map(|stats| stats.pod("node-0", "ns", "pod-1").filesystems);
    assert_eq!(filesystems.map(|all| all.len()), Some(1), "volumes that the pod has are kept");
    println!("{} kB", peak >> 10);
    // Summaries have two megabytes each, and 80 MB together.
    assert!(peak < 24 << 20, "{peak} bytes");
}
