//! The component: caches, scraper and API of one process.

use crate::adapter::{Adapter, AdapterConfig, Described};
use crate::health;
use crate::history::{self, History, HistoryConfig, HistoryPoint, SeriesKey};
use crate::kubelet::{KubeletAddressing, KubeletTls, Kubelets};
use crate::record::{NodeRecord, PodRecord, ServiceRecord};
use crate::scrape::{ScrapeMetrics, Scraper, freshness};
use crate::serve::{Answer, Api, refusal};
use crate::sinks::{DEFAULT_QUEUE_SIZE, SinkConfig, Sinks, collect};
use crate::stats::Stats;
use crate::storage::Storage;
use base::clock::Clock;
use base::metrics::{Metrics, MetricsError};
use base::tasks::TaskGroup;
use client::Client;
use http::{HeaderMap, Method, Uri};
use machinery::selector::LabelSelector;
use machinery::status::Status;
use objects::core::v1::Namespace;
use parking_lot::Mutex;
use runtime::{Cache, Informers, Recorder};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::MissedTickBehavior;

/// Settings of the component.
#[derive(Clone, Debug)]
pub struct ResourceMetricsConfig {
    /// Time between two scrapes of a node.
    pub resolution: Duration,
    /// Time for one request to a kubelet.
    pub request_timeout: Duration,
    pub addressing: KubeletAddressing,
    /// Nodes to scrape.
    pub node_selector: LabelSelector,
    /// Monitoring systems that everything is pushed to.
    pub sinks: Vec<SinkConfig>,
    /// Directory of the queues of sinks.
    pub sink_directory: PathBuf,
    /// Size of the queue of each sink on disk, in bytes, at most.
    pub sink_queue_size: u64,
    /// Local history of usage; none is kept if absent.
    pub history: Option<HistoryConfig>,
    /// Metrics of annotated pods; they are not scraped if absent.
    pub adapter: Option<AdapterConfig>,
}

impl Default for ResourceMetricsConfig {
    fn default() -> Self {
        Self {
            resolution: Duration::from_secs(15),
            request_timeout: Duration::from_secs(10),
            addressing: KubeletAddressing::default(),
            node_selector: LabelSelector::All(Vec::new()),
            sinks: Vec::new(),
            sink_directory: PathBuf::new(),
            sink_queue_size: DEFAULT_QUEUE_SIZE,
            history: None,
            adapter: None,
        }
    }
}

/// Scrapes kubelets and answers requests for `metrics.k8s.io`.
pub struct ResourceMetrics {
    api: Api,
    scraper: Scraper,
    adapter: Option<Arc<Adapter>>,
    history: Option<Arc<History>>,
    sinks: Option<Sinks>,
    /// Statistics and namespaces; empty without a sink.
    stats: Arc<Stats>,
    namespaces: Cache<Namespace>,
    leads: Arc<AtomicBool>,
}

impl ResourceMetrics {
    /// Starts caches and scraper in `tasks`.
    pub fn start(
        config: ResourceMetricsConfig,
        client: Client,
        tls: Arc<dyn KubeletTls>,
        metrics: &Metrics,
        clock: &Clock,
        tasks: &TaskGroup,
    ) -> Result<Arc<Self>, MetricsError> {
        let informers = Informers::new(client.clone(), tasks);
        let (pods, nodes) = (informers.of::<PodRecord>(), informers.of::<NodeRecord>());
        let storage = Arc::new(Storage::new(config.resolution));
        let (stats, has_sinks) = (Arc::new(Stats::default()), !config.sinks.is_empty());
        let namespaces = if has_sinks { informers.of::<Namespace>() } else { Cache::new() };
        let timeout = config.request_timeout.min(config.resolution);
        let kubelets = Kubelets::new(config.addressing, tls, timeout, clock.clone());
        let scraper = Scraper {
            nodes: nodes.clone(),
            pods: pods.clone(),
            kubelets,
            storage: Arc::clone(&storage),
            stats: has_sinks.then(|| Arc::clone(&stats)),
            resolution: config.resolution,
            selector: config.node_selector,
            metrics: ScrapeMetrics::new(metrics, config.resolution)?,
            clock: clock.clone(),
            last_start: Mutex::default(),
            failing: Mutex::default(),
            labelled: Mutex::default(),
        };
        let leads = Arc::new(AtomicBool::new(true));
        let adapter = config.adapter.map(|config| {
            let recorder = Recorder::new(client, "ferry-metrics", clock.clone(), tasks);
            let described = Described { pods: pods.clone(), services: informers.of::<ServiceRecord>() };
            Adapter::start(config, described, recorder, Arc::clone(&leads), clock, tasks)
        });
        let freshness = freshness(metrics)?;
        let api = Api { storage, pods, nodes, clock: clock.clone(), freshness };
        let history = config.history.and_then(|config| {
            let directory = config.directory.display().to_string();
            let opened = History::open(config).map(Arc::new);
            opened
                .inspect_err(
                    |error| tracing::error!(directory, %error, "failed to open the history of usage"),
                )
                .ok()
        });
        let sinks = if config.sinks.is_empty() {
            None
        } else {
            let (directory, size) = (&config.sink_directory, config.sink_queue_size);
            Some(Sinks::start(config.sinks, directory, size, metrics, tasks)?)
        };
        let component = Arc::new(Self { api, scraper, adapter, history, sinks, stats, namespaces, leads });
        let (running, group) = (Arc::clone(&component), tasks.clone());
        tasks.supervise("metrics-scraper", move || {
            let (running, group) = (Arc::clone(&running), group.clone());
            async move {
                tokio::select! {
                    () = running.run() => {}
                    () = group.stopping() => running.flush().await,
                }
            }
        });
        Ok(component)
    }

    /// Scrapes forever.
    async fn run(&self) {
        self.api.nodes.synced().await;
        self.api.pods.synced().await;
        let mut ticks = tokio::time::interval(self.scraper.resolution);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.scraper.cycle().await;
            self.record().await;
            if let Some(sinks) = &self.sinks
                && self.leads.load(Ordering::Relaxed)
            {
                sinks.push(collect::snapshot(&self.api, &self.stats, &self.namespaces));
            }
        }
    }

    /// Adds the present usage to the history.
    async fn record(&self) {
        let Some(history) = &self.history else { return };
        let now = self.api.clock.now().as_second();
        let point = |cpu: u64, memory| HistoryPoint { at: now, cpu: cpu.div_ceil(1_000_000), memory };
        let nodes = self.api.nodes.all().into_iter().filter_map(|node| {
            let name = node.metadata.name.as_deref()?;
            let used = self.api.storage.node(name)?;
            Some((SeriesKey::Node(name.into()), point(used.cpu, used.memory)))
        });
        let pods = self.api.pods.all().into_iter().filter_map(|pod| {
            let (namespace, name) = (pod.metadata.namespace.as_deref()?, pod.metadata.name.as_deref()?);
            let (cpu, memory) = self.api.storage.pod(&pod.node, namespace, name)?.total();
            let key = SeriesKey::Pod { namespace: namespace.into(), name: name.into() };
            Some((key, point(cpu, memory)))
        });
        if history.record(now, nodes.chain(pods)) {
            self.flush().await;
        }
    }

    /// Appends the history in memory to its file.
    async fn flush(&self) {
        let Some(history) = self.history.clone() else { return };
        let now = self.api.clock.now().as_second();
        let flushed = tokio::task::spawn_blocking(move || history.flush(now)).await;
        if let Ok(Err(error)) = flushed {
            tracing::warn!(%error, "failed to write the history of usage");
        }
    }

    /// Answers a request for the history of usage whose user may make it. Reads the disk.
    pub fn answer_history(&self, method: &Method, uri: &Uri) -> Answer {
        match &self.history {
            Some(history) => {
                history::answer(history, &self.api.pods, self.api.clock.now().as_second(), method, uri)
            }
            None => refusal(&Status::no_such_path()),
        }
    }

    /// Reports whether a history of usage is kept.
    pub fn has_history(&self) -> bool {
        self.history.is_some()
    }

    /// Sets whether this process, of several that serve a cluster, pushes to sinks and records events. A process alone
    /// does both. History is kept by every process, so that each can answer for it.
    pub fn set_leading(&self, leads: bool) {
        self.leads.store(leads, Ordering::Relaxed);
    }

    /// Reports whether only one of several processes should do a part of the work.
    pub fn needs_leader(&self) -> bool {
        self.sinks.is_some() || self.adapter.is_some()
    }

    /// The adapter, if it is configured.
    pub fn adapter(&self) -> Option<&Arc<Adapter>> {
        self.adapter.as_ref()
    }

    /// Answers a request whose user may make it.
    pub fn answer(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Answer {
        self.api.answer(method, uri, headers)
    }

    /// Answers `/healthz`, `/livez` and `/readyz`; `None` for other paths.
    pub fn health(&self, uri: &Uri) -> Option<Answer> {
        health::answer(uri, |check| match check {
            "metric-storage-ready" => self.api.storage.is_ready(),
            "metric-informer-sync" | "metadata-informer-sync" => {
                self.api.nodes.is_synced() && self.api.pods.is_synced()
            }
            "metric-collection-timely" => self.scraper.is_timely(),
            _ => true,
        })
    }
}
