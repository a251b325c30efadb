//! The task of each sink.

use super::BATCH;
use super::config::{SinkConfig, SinkKind};
use super::encode::encode;
use super::queue::DiskQueue;
use super::snapshot::Snapshot;
use super::transport::{Accepted, Deliver, SendError, Transport};
use base::backoff::Backoff;
use base::clock::deadline_after;
use base::metrics::{Metrics, MetricsError};
use base::tasks::TaskGroup;
use parking_lot::Mutex;
use prometheus::IntCounterVec;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Snapshots between the scraper and a worker: more than the cycles of one attempt to send give.
const BACKLOG: usize = 64;
/// Memory of these snapshots, at most, unless there is only one.
const BACKLOG_SIZE: usize = 4 << 20;
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(300)).with_jitter(0.8, 1.2);

/// All sinks.
#[derive(Clone)]
pub struct Sinks(Arc<[Sink]>);

struct Sink {
    sender: mpsc::Sender<Waiting>,
    /// Memory of the snapshots that wait.
    backlog: Arc<AtomicUsize>,
    dropped: Dropped,
}

/// A snapshot that waits for a worker.
struct Waiting {
    snapshot: Arc<Snapshot>,
    size: usize,
    backlog: Arc<AtomicUsize>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.backlog.fetch_sub(self.size, Ordering::Relaxed);
    }
}

impl Sink {
    /// Hands a snapshot to the worker. One that is behind by too much misses it.
    fn push(&self, snapshot: &Arc<Snapshot>, size: usize) {
        let before = self.backlog.fetch_add(size, Ordering::Relaxed);
        let backlog = Arc::clone(&self.backlog);
        let waiting = Waiting { snapshot: Arc::clone(snapshot), size, backlog };
        let fits = before == 0 || before.saturating_add(size) <= BACKLOG_SIZE;
        if !fits || self.sender.try_send(waiting).is_err() {
            self.dropped.add(snapshot.parts(BATCH).count(), "the sink is behind");
        }
    }
}

/// Counts payloads that are given up; the first of a row is logged.
#[derive(Clone)]
struct Dropped {
    name: Arc<str>,
    counters: IntCounterVec,
    is_dropping: Arc<AtomicBool>,
}

impl Dropped {
    fn add(&self, number: usize, reason: &str) {
        if number == 0 {
            return;
        }
        let counter = self.counters.with_label_values(&[&*self.name, "dropped"]);
        counter.inc_by(u64::try_from(number).unwrap_or(0));
        if !self.is_dropping.swap(true, Ordering::Relaxed) {
            tracing::warn!(sink = &*self.name, payloads = number, reason, "dropping sink payloads");
        }
    }

    fn ended(&self) {
        if self.is_dropping.swap(false, Ordering::Relaxed) {
            tracing::info!(sink = &*self.name, "sink payloads are accepted again");
        }
    }
}

impl Sinks {
    /// Starts a worker for each sink. Their queues are below `directory`, each of `limit` bytes at most.
    pub fn start(
        configs: Vec<SinkConfig>,
        directory: &Path,
        limit: u64,
        metrics: &Metrics,
        tasks: &TaskGroup,
    ) -> Result<Self, MetricsError> {
        let counters = metrics.counters(
            "ferry_metrics_sink_payloads_total",
            "Payloads by sink and outcome: sent, queued, dropped, rejected, partly_rejected.",
            &["sink", "outcome"],
        )?;
        let sinks = configs.into_iter().map(|config| {
            let name = Arc::<str>::from(config.name());
            let dropped = Dropped { name, counters: counters.clone(), is_dropping: Arc::default() };
            let kind = config.kind.clone();
            start_worker(kind, move || Transport::new(config.clone()), directory, limit, dropped, tasks)
        });
        Ok(Self(sinks.collect()))
    }

    /// Hands a snapshot to all sinks.
    pub fn push(&self, snapshot: Snapshot) {
        let (size, snapshot) = (snapshot.size(), Arc::new(snapshot));
        self.0.iter().for_each(|sink| sink.push(&snapshot, size));
    }
}

/// Starts the worker of a sink, whose queue is below `directory`.
fn start_worker<T: Deliver>(
    kind: SinkKind,
    transport: impl Fn() -> T + Send + Sync + 'static,
    directory: &Path,
    limit: u64,
    dropped: Dropped,
    tasks: &TaskGroup,
) -> Sink {
    let (sender, receiver) = mpsc::channel(BACKLOG);
    let receiver = Arc::new(tokio::sync::Mutex::new(receiver));
    let queue = directory.join(&*dropped.name);
    let (given_up, group, transport) = (dropped.clone(), tasks.clone(), Arc::new(transport));
    tasks.supervise(format!("metrics-sink {}", dropped.name), move || {
        let (kind, queue, given_up) = (kind.clone(), queue.clone(), given_up.clone());
        let (receiver, group, transport) = (Arc::clone(&receiver), group.clone(), Arc::clone(&transport));
        async move {
            let name = Arc::clone(&given_up.name);
            let mut receiver = receiver.lock().await;
            match Worker::new(kind, transport(), &queue, limit, given_up) {
                Ok(mut worker) => tokio::select! {
                    () = worker.run(&mut receiver) => {}
                    () = group.stopping() => worker.save(&mut receiver).await,
                },
                Err(error) => {
                    tracing::error!(sink = &*name, %error, "failed to open the queue of a sink")
                }
            }
        }
    });
    Sink { sender, backlog: Arc::default(), dropped }
}

struct Worker<T> {
    name: Arc<str>,
    kind: SinkKind,
    transport: T,
    /// Shared with threads that wait for the disk.
    queue: Arc<Mutex<DiskQueue>>,
    dropped: Dropped,
    /// Delay before the next attempt; zero while payloads are accepted.
    retry: Backoff,
    next: Instant,
    /// The snapshot that is being sent, and the number of its parts that are sent or in the queue: a stop must not lose
    /// the others.
    current: Option<(Waiting, usize)>,
}

impl<T: Deliver> Worker<T> {
    fn new(kind: SinkKind, transport: T, queue: &Path, limit: u64, dropped: Dropped) -> io::Result<Self> {
        let queue = Arc::new(Mutex::new(DiskQueue::open(queue.to_owned(), limit)?));
        let (name, next) = (Arc::clone(&dropped.name), Instant::now());
        Ok(Self { name, kind, transport, queue, dropped, retry: RETRY, next, current: None })
    }

    fn count(&self, outcome: &str) {
        self.dropped.counters.with_label_values(&[&*self.name, outcome]).inc();
    }

    /// Uses the queue on a thread that may wait for the disk.
    async fn on_disk<R: Send + 'static>(
        &self,
        act: impl FnOnce(&mut DiskQueue) -> R + Send + 'static,
    ) -> Option<R> {
        let queue = Arc::clone(&self.queue);
        tokio::task::spawn_blocking(move || act(&mut queue.lock())).await.ok()
    }

    async fn run(&mut self, receiver: &mut mpsc::Receiver<Waiting>) {
        loop {
            let is_waiting = !self.queue.lock().is_empty();
            tokio::select! {
                waiting = receiver.recv() => {
                    let Some(waiting) = waiting else { return };
                    self.current = Some((waiting, 0));
                    while let Some(payload) = self.next_part() {
                        if !self.queue.lock().is_empty() || !self.attempt(&payload).await {
                            self.keep(payload).await;
                        }
                        self.part_is_done();
                    }
                },
                () = tokio::time::sleep_until(self.next), if is_waiting => self.drain_one().await,
            }
        }
    }

    /// Encodes the next part of the snapshot; `None` after the last one.
    fn next_part(&mut self) -> Option<Vec<u8>> {
        let (waiting, done) = self.current.as_ref()?;
        let encoded = waiting.snapshot.parts(BATCH).nth(*done).map(|part| encode(&self.kind, part));
        if encoded.is_none() {
            self.current = None;
        }
        encoded
    }

    fn part_is_done(&mut self) {
        if let Some((_, done)) = &mut self.current {
            *done = done.saturating_add(1);
        }
    }

    /// Writes what has not been sent to the queue.
    async fn save(&mut self, receiver: &mut mpsc::Receiver<Waiting>) {
        loop {
            while let Some(payload) = self.next_part() {
                self.keep(payload).await;
                self.part_is_done();
            }
            let Ok(waiting) = receiver.try_recv() else { return };
            self.current = Some((waiting, 0));
        }
    }

    async fn keep(&self, payload: Vec<u8>) {
        match self.on_disk(move |queue| queue.push(&payload)).await {
            Some(Ok(dropped)) => {
                self.count("queued");
                self.dropped.add(dropped, "the queue is full");
            }
            Some(Err(error)) => {
                self.dropped.add(1, "failed to write the sink queue");
                tracing::warn!(sink = &*self.name, %error, "failed to queue a payload");
            }
            None => self.dropped.add(1, "the process ends"),
        }
    }

    async fn drain_one(&mut self) {
        let Some((payload, dropped)) = self.on_disk(DiskQueue::front).await else { return };
        self.dropped.add(dropped, "failed to read a queued payload");
        let Some(payload) = payload else { return };
        if self.attempt(&payload).await {
            match self.on_disk(DiskQueue::pop).await {
                Some(Err(error)) => {
                    tracing::warn!(sink = &*self.name, %error, "failed to remove a payload from its queue");
                }
                _ => {
                    if self.queue.lock().is_empty() {
                        self.dropped.ended();
                    }
                }
            }
        }
    }

    /// Sends a payload. Returns whether it is done with: sent, or refused once and for all.
    async fn attempt(&mut self, payload: &[u8]) -> bool {
        match self.transport.send(payload).await {
            Ok(accepted) => {
                if let Accepted::Part(message) = accepted {
                    tracing::warn!(sink = &*self.name, message, "the sink rejected a part of a payload");
                    self.count("partly_rejected");
                }
                if !self.retry.is_reset() {
                    tracing::info!(
                        sink = &*self.name,
                        waiting = self.queue.lock().len(),
                        bytes = self.queue.lock().size(),
                        "sink is available again"
                    );
                }
                self.retry.reset();
                self.next = Instant::now();
                self.count("sent");
                true
            }
            Err(SendError::Never(error)) => {
                tracing::warn!(sink = &*self.name, error, "the sink rejected a payload");
                self.count("rejected");
                true
            }
            Err(SendError::Later(error, after)) => {
                if self.retry.is_reset() {
                    tracing::warn!(
                        sink = &*self.name,
                        error,
                        "failed to send to a sink; payloads wait on disk"
                    );
                }
                self.next = deadline_after(self.retry.next_delay().max(after));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::snapshot::example;
    use super::super::wire;
    use super::*;
    use base::clock::Clock;
    use prost::Message as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, UdpSocket};

    /// A server that answers with `statuses` in turn, then always with the last one. Sends every request to the channel.
    async fn server(statuses: &'static [u16]) -> (u16, mpsc::Receiver<(String, Vec<u8>)>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let port = listener.local_addr().expect("an address").port();
        let (sender, receiver) = mpsc::channel(100);
        tokio::spawn(async move {
            for number in 0_usize.. {
                let Ok((mut stream, _)) = listener.accept().await else { return };
                let mut bytes = Vec::new();
                let (head, body) = loop {
                    let mut piece = vec![0; 65_536];
                    let length = stream.read(&mut piece).await.unwrap_or(0);
                    bytes.extend_from_slice(&piece[..length]);
                    let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
                        continue;
                    };
                    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
                    let length = head
                        .split("content-length: ")
                        .nth(1)
                        .and_then(|rest| rest.split("\r\n").next()?.parse().ok());
                    if bytes.len() >= end + 4 + length.unwrap_or(0) {
                        break (head, bytes[end + 4..].to_vec());
                    }
                };
                let status = statuses.get(number).or(statuses.last()).copied().unwrap_or(204);
                let _ = sender.send((head, body)).await;
                let answer = format!("HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        (port, receiver)
    }

    fn start(sinks: &[String], directory: &Path, tasks: &TaskGroup) -> Sinks {
        let configs = sinks.iter().map(|text| SinkConfig::parse(text).expect("a sink")).collect();
        let metrics = Metrics::new(&Clock::system()).expect("metrics");
        Sinks::start(configs, directory, 1 << 20, &metrics, tasks).expect("starts")
    }

    async fn next(requests: &mut mpsc::Receiver<(String, Vec<u8>)>) -> (String, Vec<u8>) {
        tokio::time::timeout(Duration::from_secs(60), requests.recv())
            .await
            .expect("in time")
            .expect("a request")
    }

    #[tokio::test]
    async fn sinks_over_http_get_their_formats() {
        let directory = tempfile::tempdir().expect("a directory");
        let tasks = TaskGroup::new();
        let token = directory.path().join("token");
        std::fs::write(&token, "secret\n").expect("a file");
        let token = token.display();
        for (sink, path, header, wanted) in [
            (
                "influxdb:http://127.0.0.1:PORT?db=k8s&user=u&pw=p".to_owned(),
                "post /write?db=k8s&precision=ms ",
                "basic dtpw",
                "cpu/usage_rate,",
            ),
            (
                format!("influxdb2:http://127.0.0.1:PORT?org=o&bucket=b&token-file={token}"),
                "post /api/v2/write?org=o&bucket=b&precision=ms ",
                "token secret",
                "memory/working_set,",
            ),
            (
                "prometheus:http://127.0.0.1:PORT/api/v1/write".to_owned(),
                "post /api/v1/write ",
                "remote-write-version: 0.1.0",
                "heapster_",
            ),
            (
                "prometheus:http://127.0.0.1:PORT?version=2".to_owned(),
                "post /api/v1/write ",
                "proto=io.prometheus.write.v2.request",
                "heapster_",
            ),
            (
                "otlp:http://127.0.0.1:PORT".to_owned(),
                "post /v1/metrics ",
                "application/x-protobuf",
                "k8s.node.cpu.usage",
            ),
        ] {
            let (port, mut requests) = server(&[204]).await;
            let sinks = start(&[sink.replace("PORT", &port.to_string())], directory.path(), &tasks);
            sinks.push(example());
            let (head, body) = next(&mut requests).await;
            assert!(head.starts_with(path) && head.contains(header), "{sink}: {head}");
            assert!(String::from_utf8_lossy(&body).contains(wanted), "{sink}");
        }
        let _ = tasks.drain(Duration::from_secs(5)).await;
    }

    #[tokio::test]
    async fn payloads_wait_on_disk_until_the_server_accepts_them() {
        let directory = tempfile::tempdir().expect("a directory");
        let (port, mut requests) = server(&[503, 503, 204]).await;
        let sink = [format!("influxdb:http://127.0.0.1:{port}")];
        let tasks = TaskGroup::new();
        let sinks = start(&sink, directory.path(), &tasks);
        let at = |at: i64| Snapshot { at, ..example() };
        sinks.push(at(1));
        next(&mut requests).await;
        sinks.push(at(2));
        // A restart before the server has recovered.
        let _ = tasks.drain(Duration::from_secs(5)).await;
        let tasks = TaskGroup::new();
        let sinks = start(&sink, directory.path(), &tasks);
        let mut order = Vec::new();
        while order.last() != Some(&2) {
            let (_, body) = next(&mut requests).await;
            let text = String::from_utf8_lossy(&body).into_owned();
            order.push(
                text.lines()
                    .next()
                    .and_then(|line| line.rsplit(' ').next()?.parse::<i64>().ok())
                    .expect("a time"),
            );
        }
        assert!(order.is_sorted() && order.contains(&1), "{order:?}");
        sinks.push(at(3));
        assert!(String::from_utf8_lossy(&next(&mut requests).await.1).contains(" 3\n"));
        let _ = tasks.drain(Duration::from_secs(5)).await;
    }

    #[tokio::test]
    async fn rejected_payload_does_not_block_others() {
        let directory = tempfile::tempdir().expect("a directory");
        let (port, mut requests) = server(&[400, 204]).await;
        let tasks = TaskGroup::new();
        let sinks = start(&[format!("otlp:http://127.0.0.1:{port}")], directory.path(), &tasks);
        sinks.push(Snapshot { at: 1000, ..example() });
        sinks.push(Snapshot { at: 2000, ..example() });
        for time in [1_000_000_000, 2_000_000_000] {
            let request = wire::MetricsRequest::decode(&*next(&mut requests).await.1).expect("decodes");
            let gauge = request.resources[0].scopes[0].metrics[0].gauge.clone().expect("a gauge");
            assert_eq!(gauge.points[0].time, time);
        }
        let _ = tasks.drain(Duration::from_secs(5)).await;
    }

    #[tokio::test]
    async fn sinks_without_http_get_lines() {
        let directory = tempfile::tempdir().expect("a directory");
        let (datagrams, listener) = (
            UdpSocket::bind("127.0.0.1:0").await.expect("binds"),
            TcpListener::bind("127.0.0.1:0").await.expect("binds"),
        );
        let port = |address: io::Result<std::net::SocketAddr>| address.expect("an address").port();
        let file = directory.path().join("usage.log");
        let tasks = TaskGroup::new();
        let sinks = start(
            &[
                format!("statsd:127.0.0.1:{}", port(datagrams.local_addr())),
                format!("graphite:127.0.0.1:{}", port(listener.local_addr())),
                format!("file:{}", file.display()),
            ],
            directory.path(),
            &tasks,
        );
        sinks.push(example());
        let mut datagram = vec![0; 2000];
        let length = datagrams.recv(&mut datagram).await.expect("a datagram");
        assert!(length <= 1400 && String::from_utf8_lossy(&datagram[..length]).contains("|g\n"));
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let mut text = String::new();
        stream.read_to_string(&mut text).await.expect("text");
        assert!(text.contains("nodes.n1.cpu.usage_rate 900 1767225600\n"), "{text}");
        let begun = Instant::now();
        while std::fs::read_to_string(&file).unwrap_or_default().is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(30));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(std::fs::read_to_string(&file).expect("a file").contains("nodename=n1,type=node value=900i"));
        let _ = tasks.drain(Duration::from_secs(5)).await;
    }

    /// A server that is down until a moment, and then notes the times of payloads.
    #[derive(Clone)]
    struct Down {
        until: Instant,
        attempts: Arc<AtomicUsize>,
        received: Arc<Mutex<Vec<i64>>>,
    }

    impl Deliver for Down {
        async fn send(&self, payload: &[u8]) -> Result<Accepted, SendError> {
            tokio::time::sleep(Duration::from_millis(100)).await;
            if Instant::now() < self.until {
                self.attempts.fetch_add(1, Ordering::Relaxed);
                return Err(SendError::Later("down".to_owned(), Duration::ZERO));
            }
            let text = String::from_utf8_lossy(payload);
            let time = text.lines().next().and_then(|line| line.rsplit(' ').next()?.parse().ok());
            self.received.lock().push(time.expect("a time"));
            Ok(Accepted::Whole)
        }
    }

    /// Pushes the cycles of 90 minutes to a server that is down for the first hour, with a restart after half of it.
    /// Returns the server, and the number of payloads that were dropped.
    async fn hour_without_a_server(limit: u64) -> (Down, u64) {
        let directory = tempfile::tempdir().expect("a directory");
        let until = Instant::now() + Duration::from_secs(3600);
        let server = Down { until, attempts: Arc::default(), received: Arc::default() };
        let counters =
            IntCounterVec::new(prometheus::Opts::new("payloads", "Payloads."), &["sink", "outcome"]);
        let counters = counters.expect("counters");
        let begin = |tasks: &TaskGroup| {
            let (server, name) = (server.clone(), "down".into());
            let dropped = Dropped { name, counters: counters.clone(), is_dropping: Arc::default() };
            start_worker(SinkKind::File, move || server.clone(), directory.path(), limit, dropped, tasks)
        };
        let mut tasks = TaskGroup::new();
        let mut sink = begin(&tasks);
        for cycle in 0..360 {
            if cycle == 120 {
                let _ = tasks.drain(Duration::from_secs(5)).await;
                tasks = TaskGroup::new();
                sink = begin(&tasks);
            }
            sink.push(&Arc::new(Snapshot { at: cycle, ..example() }), 1000);
            tokio::time::sleep(Duration::from_secs(15)).await;
        }
        let _ = tasks.drain(Duration::from_secs(5)).await;
        let dropped = counters.with_label_values(&["down", "dropped"]).get();
        (server, dropped)
    }

    #[tokio::test(start_paused = true)]
    async fn cycles_of_an_hour_without_a_server_arrive_in_order() {
        let (server, dropped) = hour_without_a_server(1 << 20).await;
        assert_eq!(*server.received.lock(), (0..360).collect::<Vec<i64>>());
        assert_eq!(dropped, 0);
        let attempts = server.attempts.load(Ordering::Relaxed);
        assert!((10..60).contains(&attempts), "the delay between attempts grows to minutes: {attempts}");
    }

    #[tokio::test(start_paused = true)]
    async fn oldest_cycles_are_dropped_beyond_the_size_of_the_queue() {
        let (server, dropped) = hour_without_a_server(30_000).await;
        let received = server.received.lock().clone();
        assert!(received.is_sorted() && received.last() == Some(&359), "{received:?}");
        assert!(dropped > 0 && received.len() > 120, "{dropped} dropped, {} received", received.len());
        assert_eq!(u64::try_from(received.len()).expect("a number") + dropped, 360);
    }

    #[tokio::test(start_paused = true)]
    async fn backlog_of_a_sink_is_bounded() {
        let directory = tempfile::tempdir().expect("a directory");
        let counters =
            IntCounterVec::new(prometheus::Opts::new("payloads", "Payloads."), &["sink", "outcome"]);
        let counters = counters.expect("counters");
        let dropped =
            Dropped { name: "hung".into(), counters: counters.clone(), is_dropping: Arc::default() };
        let tasks = TaskGroup::new();
        struct Hung;
        impl Deliver for Hung {
            async fn send(&self, _: &[u8]) -> Result<Accepted, SendError> {
                std::future::pending().await
            }
        }
        let sink = start_worker(SinkKind::File, || Hung, directory.path(), 1 << 20, dropped, &tasks);
        let snapshot = Arc::new(example());
        let before = Arc::strong_count(&snapshot);
        for _ in 0..20 {
            sink.push(&snapshot, BACKLOG_SIZE / 4);
            tokio::task::yield_now().await;
        }
        assert_eq!(Arc::strong_count(&snapshot) - before, 4);
        assert_eq!(counters.with_label_values(&["hung", "dropped"]).get(), 16);
        let _ = tasks.drain(Duration::from_secs(5)).await;
        assert_eq!(sink.backlog.load(Ordering::Relaxed), 0, "a stop writes what waits to the queue");
    }
}
