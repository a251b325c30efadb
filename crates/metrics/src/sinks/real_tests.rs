//! Payloads for real servers, where they are installed: `prometheus` and `influxd`. Remote write 2.0 and OTLP need
//! Prometheus 3, which `FERRY_PROMETHEUS` may name.

use super::config::SinkConfig;
use super::snapshot::{Snapshot, example};
use super::worker::Sinks;
use base::clock::Clock;
use base::http::{Client, Limits, Origin};
use base::metrics::Metrics;
use base::tasks::TaskGroup;
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A server that ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server on a free port of loopback; `None` if it is not installed.
fn start(program: &str, arguments: impl Fn(u16) -> Vec<String>) -> Option<(Server, u16)> {
    let port =
        std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
    let mut command = Command::new(program);
    command.args(arguments(port)).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match command.spawn() {
        Ok(child) => Some((Server(child), port)),
        Err(_) => {
            println!("skipped: {program} is not installed");
            None
        }
    }
}

/// Repeats the request until the response contains the expected text.
async fn until(port: u16, method: &str, path: &str, wanted: &str) {
    let client = Client::new(Limits::default());
    let begun = Instant::now();
    loop {
        let request =
            Request::builder().method(method).uri(path).body(Full::<Bytes>::default()).expect("a request");
        let last = match client.send(&Origin::plain("127.0.0.1", port), request).await {
            Ok(response) => match response.bytes(1 << 20).await {
                Ok(text) if String::from_utf8_lossy(&text).contains(wanted) => return,
                other => format!("{other:?}"),
            },
            Err(error) => error.to_string(),
        };
        assert!(begun.elapsed() < Duration::from_secs(60), "{path}: last seen: {last}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Sends an example of now, as long as the sinks are kept.
fn push(sink: &str, directory: &Path, tasks: &TaskGroup) -> Sinks {
    let metrics = Metrics::new(&Clock::system()).expect("metrics");
    let sinks =
        Sinks::start(vec![SinkConfig::parse(sink).expect("a sink")], directory, 1 << 20, &metrics, tasks);
    let sinks = sinks.expect("starts");
    let at = Clock::system().now().as_millisecond();
    sinks.push(Snapshot { at, ..example() });
    sinks
}

/// Starts a Prometheus with its data in `directory`.
fn start_prometheus(
    program: &str,
    directory: &Path,
    configuration: &str,
    flags: &[&str],
) -> Option<(Server, u16)> {
    let config = directory.join("prometheus.yml");
    std::fs::write(&config, configuration).expect("a file");
    let data = directory.join("data");
    start(program, |port| {
        let own = [
            format!("--config.file={}", config.display()),
            format!("--storage.tsdb.path={}", data.display()),
            format!("--web.listen-address=127.0.0.1:{port}"),
            "--web.enable-remote-write-receiver".to_owned(),
        ];
        own.into_iter().chain(flags.iter().map(|flag| (*flag).to_owned())).collect()
    })
}

const CPU_OF_B: &str = "/api/v1/query?query=heapster_cpu_usage_rate%7Btype%3D%22pod_container%22%2Ccontainer_name%3D%22b%20b%22%7D";

#[tokio::test]
async fn prometheus_accepts_remote_write() {
    let directory = tempfile::tempdir().expect("a directory");
    let Some((_server, port)) = start_prometheus("prometheus", directory.path(), "global: {}\n", &[]) else {
        return;
    };
    let tasks = TaskGroup::new();
    // The sink waits for the server by itself.
    let _sinks = push(&format!("prometheus:http://127.0.0.1:{port}/api/v1/write"), directory.path(), &tasks);
    until(port, "GET", CPU_OF_B, "\"20\"").await;
    let _ = tasks.drain(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn prometheus_3_accepts_remote_write_2_and_otlp() {
    let Ok(program) = std::env::var("FERRY_PROMETHEUS") else {
        println!("partly skipped: Prometheus 3 is not here (FERRY_PROMETHEUS)");
        return;
    };
    let directory = tempfile::tempdir().expect("a directory");
    // By default it drops the attributes that distinguish containers.
    let configuration = "otlp: {promote_all_resource_attributes: true}\n";
    let flags = ["--web.enable-otlp-receiver"];
    let Some((_server, port)) = start_prometheus(&program, directory.path(), configuration, &flags) else {
        return;
    };
    let tasks = TaskGroup::new();
    let base = format!("http://127.0.0.1:{port}/api/v1");
    let _sinks = push(&format!("prometheus:{base}/write?version=2"), directory.path(), &tasks);
    until(port, "GET", CPU_OF_B, "\"20\"").await;
    let _otlp = push(&format!("otlp:{base}/otlp/v1/metrics"), directory.path(), &tasks);
    let query = "/api/v1/query?query=container_cpu_usage%7Bk8s_container_name%3D%22b%20b%22%7D";
    until(port, "GET", query, "\"0.02\"").await;
    let _ = tasks.drain(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn influxdb_accepts_line_protocol() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = directory.path().join("influxdb.conf");
    let started = start("influxd", |port| {
        let part = |name: &str| directory.path().join(name).display().to_string();
        let text = format!(
            "reporting-disabled = true\nbind-address = \"127.0.0.1:0\"\n[meta]\ndir = \"{}\"\n[data]\ndir = \"{}\"\n\
             wal-dir = \"{}\"\n[http]\nbind-address = \"127.0.0.1:{port}\"\n",
            part("meta"),
            part("data"),
            part("wal")
        );
        std::fs::write(&config, text).expect("a file");
        vec!["-config".to_owned(), config.display().to_string()]
    });
    let Some((_server, port)) = started else { return };
    until(port, "POST", "/query?q=CREATE%20DATABASE%20k8s", "results").await;
    let tasks = TaskGroup::new();
    let _sinks = push(&format!("influxdb:http://127.0.0.1:{port}?db=k8s"), directory.path(), &tasks);
    let query = "/query?db=k8s&q=SELECT%20value,container_name%20FROM%20%22cpu%2Fusage_rate%22%20WHERE%20type%3D'pod_container'";
    until(port, "GET", query, "20,\"b b\"").await;
    let _ = tasks.drain(Duration::from_secs(5)).await;
}
