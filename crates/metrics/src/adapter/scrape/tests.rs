//! Cycles over small servers on loopback.

use super::*;
use client::{Call, Transport, TransportError};
use http_body_util::BodyExt as _;
use objects::meta::v1::ObjectMeta;
use runtime::Cache;
use std::sync::atomic::AtomicUsize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

/// An API server that notes the bodies of requests.
struct Events(mpsc::UnboundedSender<String>);

impl Transport for Events {
    fn call(&self, request: Request<Bytes>) -> Call<'_> {
        let _ = self.0.send(String::from_utf8_lossy(request.body()).into_owned());
        Box::pin(async {
            let body = Full::new(Bytes::from_static(b"{}")).map_err(|never| match never {}).boxed_unsync();
            Ok::<_, TransportError>(http::Response::new(body))
        })
    }
}

fn leads(leads: bool) -> Arc<AtomicBool> {
    Arc::new(AtomicBool::new(leads))
}

/// A pod whose page is this; one that never answers if it is empty.
async fn pod(name: &str, page: String) -> PodRecord {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let page = page.clone();
            tokio::spawn(async move {
                let mut request = vec![0; 4096];
                let _ = stream.read(&mut request).await;
                if page.is_empty() {
                    return std::future::pending().await;
                }
                let head =
                    format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", page.len());
                let _ = stream.write_all((head + &page).as_bytes()).await;
            });
        }
    });
    PodRecord {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some("ns".to_owned()),
            ..ObjectMeta::default()
        },
        ip: "127.0.0.1".to_owned(),
        is_running: true,
        scrape: Some(Box::new(ScrapeTarget { port, path: "/metrics".to_owned(), secure: false })),
        ..PodRecord::default()
    }
}

#[tokio::test]
async fn pod_beyond_its_limits_or_silent_gets_an_event_and_costs_itself_only() {
    let flood: String = (0..2000).map(|number| format!("s{{l=\"{number}\"}} 1\n")).collect();
    let pods = Cache::new();
    let all = vec![
        pod("flood", flood).await,
        pod("good", "jobs 7\n".to_owned()).await,
        pod("hung", String::new()).await,
        pod("wrong", "<html>secret".to_owned()).await,
    ];
    pods.replace(all);
    let (sender, mut events) = mpsc::unbounded_channel();
    let (tasks, clock) = (TaskGroup::new(), Clock::system());
    let client = client::Client::new(Arc::new(Events(sender)), "test");
    let recorder = Recorder::new(client, "test", clock.clone(), &tasks);
    let config = AdapterConfig {
        request_timeout: Duration::from_millis(300),
        max_series_of_pod: 1000,
        // Cycles are those of the test.
        interval: Duration::from_secs(3600),
        ..AdapterConfig::default()
    };
    let described = Described { pods, services: Cache::new() };
    let adapter = Adapter::start_towards(|_| true, config, described, recorder, leads(true), &clock, &tasks);
    let everything = machinery::selector::LabelSelector::All(Vec::new());
    for _ in 0..2 {
        adapter.cycle().await;
        let value = |name: &str, metric: &str| adapter.values.of_pod("ns", name, metric, &everything);
        assert_eq!(value("good", "jobs").map(|found| found.value), Some(7.0));
        assert!(value("flood", "s").is_none());
    }
    let mut notes = Vec::new();
    while notes.len() < 3 {
        let text = tokio::time::timeout(Duration::from_secs(30), events.recv()).await.expect("in time");
        let event: serde_json::Value = serde_json::from_str(&text.expect("an event")).expect("JSON");
        let texts = ["reason", "note"].map(|field| event[field].as_str().unwrap_or_default().to_owned());
        notes.push((event["regarding"]["name"].as_str().unwrap_or_default().to_owned(), texts));
    }
    notes.sort();
    let names: Vec<&str> = notes.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["flood", "hung", "wrong"], "one event each: {notes:?}");
    assert_eq!(notes[0].1[0], "MetricsLimitExceeded");
    assert!(notes[0].1[1].contains("more than 1000 series"), "{notes:?}");
    assert_eq!(notes[1].1[0], "FailedMetricsScrape");
    assert!(notes[2].1[1].contains("line 1") && !notes[2].1[1].contains("secret"), "{notes:?}");
    let _ = tasks.drain(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn address_of_this_machine_is_not_connected_to() {
    let pods = Cache::new();
    let own = pod("own", "jobs 7\n".to_owned()).await;
    let metadata = PodRecord {
        ip: "169.254.169.254".to_owned(),
        metadata: ObjectMeta { name: Some("metadata".to_owned()), ..own.metadata.clone() },
        ..own.clone()
    };
    let name = PodRecord {
        ip: "localhost".to_owned(),
        metadata: ObjectMeta { name: Some("name".to_owned()), ..own.metadata.clone() },
        ..own.clone()
    };
    pods.replace(vec![own, metadata, name]);
    let (sender, mut events) = mpsc::unbounded_channel();
    let (tasks, clock) = (TaskGroup::new(), Clock::system());
    let client = client::Client::new(Arc::new(Events(sender)), "test");
    let recorder = Recorder::new(client, "test", clock.clone(), &tasks);
    let config = AdapterConfig { interval: Duration::from_secs(3600), ..AdapterConfig::default() };
    let described = Described { pods, services: Cache::new() };
    let adapter = Adapter::start(config, described, recorder, leads(true), &clock, &tasks);
    adapter.cycle().await;
    assert!(adapter.values.names().is_empty());
    for _ in 0..3 {
        let text = tokio::time::timeout(Duration::from_secs(30), events.recv()).await.expect("in time");
        assert!(text.expect("an event").contains("not one that pods have"));
    }
    let _ = tasks.drain(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn process_that_does_not_lead_records_no_events() {
    let pods = Cache::new();
    pods.replace(vec![pod("wrong", "no page".to_owned()).await]);
    let (sender, mut events) = mpsc::unbounded_channel();
    let (tasks, clock) = (TaskGroup::new(), Clock::system());
    let client = client::Client::new(Arc::new(Events(sender)), "test");
    let recorder = Recorder::new(client, "test", clock.clone(), &tasks);
    let config = AdapterConfig { interval: Duration::from_secs(3600), ..AdapterConfig::default() };
    let described = Described { pods, services: Cache::new() };
    let adapter = Adapter::start_towards(|_| true, config, described, recorder, leads(false), &clock, &tasks);
    adapter.cycle().await;
    assert_eq!(adapter.failing.lock().len(), 1);
    let _ = tasks.drain(Duration::from_secs(5)).await;
    assert!(events.try_recv().is_err());
}

/// A server for the pods of a namespace: counts its open connections, and writes `start` of each page and no more until
/// the test ends.
async fn unfinished(namespace: &str, count: usize, start: String) -> (Vec<PodRecord>, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let port = listener.local_addr().expect("an address").port();
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::Relaxed);
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 10 << 20);
            let _ = stream.write_all((head + &start).as_bytes()).await;
            open.push(stream);
        }
    });
    let template = pod("template", "jobs 1\n".to_owned()).await;
    let pods = (0..count).map(|number| {
        let metadata = ObjectMeta {
            name: Some(format!("{namespace}-{number}")),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        };
        let scrape = Some(Box::new(ScrapeTarget { port, path: "/metrics".to_owned(), secure: false }));
        PodRecord { metadata, scrape, ..template.clone() }
    });
    (pods.collect(), connections)
}

/// Runs a cycle over pods that never finish and one of another namespace, and returns when that one has values.
async fn cycle_until_other_tenant_is_served(mut all: Vec<PodRecord>, page: String) {
    all.push(pod("served", page).await);
    let pods = Cache::new();
    pods.replace(all);
    let (sender, _events) = mpsc::unbounded_channel();
    let (tasks, clock) = (TaskGroup::new(), Clock::system());
    let client = client::Client::new(Arc::new(Events(sender)), "test");
    let recorder = Recorder::new(client, "test", clock.clone(), &tasks);
    let hour = Duration::from_secs(3600);
    let config = AdapterConfig { request_timeout: hour, interval: hour, ..AdapterConfig::default() };
    let described = Described { pods, services: Cache::new() };
    let adapter = Adapter::start_towards(|_| true, config, described, recorder, leads(true), &clock, &tasks);
    let everything = machinery::selector::LabelSelector::All(Vec::new());
    let served = async {
        while adapter.values.of_pod("ns", "served", "jobs", &everything).is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        () = adapter.cycle() => panic!("the pods that never finish have finished"),
        served = tokio::time::timeout(Duration::from_secs(60), served) => {
            served.expect("the pod of another namespace is served");
        }
    }
    let _ = tasks.drain(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn slow_pods_of_a_namespace_do_not_delay_others() {
    let (pods, connections) = unfinished("greedy", 200, String::new()).await;
    cycle_until_other_tenant_is_served(pods, "jobs 7\n".to_owned()).await;
    let connections = connections.load(Ordering::Relaxed);
    assert!(connections <= 2 * AT_ONCE_OF_NAMESPACE, "{connections} pods of a namespace at once");
}

#[tokio::test]
async fn large_pages_of_a_namespace_do_not_delay_others() {
    let large: String = (0..3000).map(|number| format!("s{{l=\"{number}\"}} 1\n")).collect();
    let (pods, _) = unfinished("greedy", LARGE_PAGES, large.clone()).await;
    cycle_until_other_tenant_is_served(pods, large + "jobs 7\n").await;
}
