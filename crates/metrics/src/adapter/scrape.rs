//! Scrapes annotated pods and serves their metrics.

use super::api::{self, Described};
use super::page::{PageDecoder, PageError, PageLimits, ScrapeTarget, Series};
use super::rules::AdapterRules;
use super::values::{MemoryError, MemoryLimits, Values};
use crate::exposition::Format;
use crate::record::PodRecord;
use crate::serve::Answer;
use base::clock::Clock;
use base::errors::chain;
use base::http::{Authorities, Client, HttpError, Limits, Origin, OriginError, Trust};
use base::tasks::TaskGroup;
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use http::{Method, Request, StatusCode, Uri, header};
use http_body_util::Full;
use parking_lot::Mutex;
use rand::seq::SliceRandom as _;
use runtime::Recorder;
use rustls::ClientConfig;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, MissedTickBehavior};

/// Pods that are scraped at once; those that failed or were slow have a share of their own.
const AT_ONCE: usize = 64;
const SLOW_AT_ONCE: usize = 16;
/// Of these, pods of one namespace.
const AT_ONCE_OF_NAMESPACE: usize = 16;
/// Duration after which a scrape counts as slow.
const SLOW: Duration = Duration::from_secs(1);
/// Length of a page, at most.
const LONGEST_PAGE: usize = 16 << 20;
/// Memory that the values of any page may take while it is read; larger ones wait for one of few places.
const SMALL_PAGE: usize = 64 << 10;
const LARGE_PAGES: usize = 4;
/// Of these, pages of one namespace.
const LARGE_PAGES_OF_NAMESPACE: usize = 1;
/// Bytes of a page that are read ahead.
const READ_BUFFER: usize = 64 << 10;
const ACCEPT: &str = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";

/// Settings of the adapter.
#[derive(Clone, Debug)]
pub struct AdapterConfig {
    /// Time between two scrapes of a pod.
    pub interval: Duration,
    pub request_timeout: Duration,
    /// Series of one pod, at most.
    pub max_series_of_pod: usize,
    /// Memory of the values of one pod, of the pods of a namespace, and of all pods, in bytes, at most.
    pub max_bytes_of_pod: usize,
    pub max_bytes_of_namespace: usize,
    pub max_bytes: usize,
    pub rules: AdapterRules,
}

impl Default for AdapterConfig {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(15),
            request_timeout: Duration::from_secs(10),
            max_series_of_pod: 10_000,
            max_bytes_of_pod: 4 << 20,
            max_bytes_of_namespace: 16 << 20,
            max_bytes: 64 << 20,
            rules: AdapterRules::default(),
        }
    }
}

/// Reason why a pod's metrics are not served.
#[derive(Debug, thiserror::Error)]
enum PodError {
    #[error("request failed")]
    Http(#[from] HttpError),
    #[error("the address of the pod is not usable")]
    Origin(#[from] OriginError),
    #[error("the path is not usable")]
    Path(#[from] http::Error),
    #[error("request failed, status: {0}")]
    Status(StatusCode),
    #[error("the page is longer than {LONGEST_PAGE} bytes")]
    TooLong,
    #[error("no complete response within {0:?}")]
    Timeout(Duration),
    #[error(transparent)]
    Page(#[from] PageError),
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error("the address of the pod is not one that pods have")]
    Address,
}

impl PodError {
    /// The reason of its event.
    fn reason(&self) -> &'static str {
        match self {
            Self::Page(PageError::TooManySeries(_) | PageError::TooLarge(_))
            | Self::Memory(_)
            | Self::TooLong => "MetricsLimitExceeded",
            _ => "FailedMetricsScrape",
        }
    }
}

/// Scrapes annotated pods.
pub struct Adapter {
    config: AdapterConfig,
    described: Described,
    values: Values,
    http: Client,
    tls: Option<Arc<ClientConfig>>,
    /// Decides which addresses are connected to. Kubelets report addresses of pods, so a node that is taken over could
    /// name services of this machine otherwise.
    is_allowed: fn(IpAddr) -> bool,
    /// Places for pages whose values take much memory.
    large_pages: Semaphore,
    clock: Clock,
    recorder: Recorder,
    /// Set in the one process of a cluster that records events.
    leads: Arc<AtomicBool>,
    /// Pods whose last scrape failed, with the reason of the event.
    failing: Mutex<HashMap<(String, String), &'static str>>,
    /// Pods whose last scrape was slow.
    slow: Mutex<HashSet<(String, String)>>,
}

/// The time that is left of a request. Waits for a permit are not part of it.
struct TimeLeft {
    whole: Duration,
    left: Duration,
}

impl TimeLeft {
    async fn within<T>(&mut self, work: impl Future<Output = T>) -> Result<T, PodError> {
        let begun = Instant::now();
        let outcome = tokio::time::timeout(self.left, work).await;
        self.left = self.left.saturating_sub(begun.elapsed());
        outcome.map_err(|_| PodError::Timeout(self.whole))
    }
}

impl Adapter {
    /// Starts scraping in `tasks`.
    pub fn start(
        config: AdapterConfig,
        described: Described,
        recorder: Recorder,
        leads: Arc<AtomicBool>,
        clock: &Clock,
        tasks: &TaskGroup,
    ) -> Arc<Self> {
        let is_allowed = base::addresses::is_proxyable;
        Self::start_towards(is_allowed, config, described, recorder, leads, clock, tasks)
    }

    fn start_towards(
        is_allowed: fn(IpAddr) -> bool,
        config: AdapterConfig,
        described: Described,
        recorder: Recorder,
        leads: Arc<AtomicBool>,
        clock: &Clock,
        tasks: &TaskGroup,
    ) -> Arc<Self> {
        let timeout = config.request_timeout.min(config.interval);
        let limits = Limits {
            connect: timeout,
            response: timeout,
            silence: timeout,
            read_buffer: READ_BUFFER,
            ..Limits::default()
        };
        // Pods have certificates of their own making; nothing secret is sent to them.
        let trust = Trust { authorities: Authorities::Unverified, ..Trust::default() };
        let memory = MemoryLimits { total: config.max_bytes, namespace: config.max_bytes_of_namespace };
        let adapter = Arc::new(Self {
            values: Values::new(memory, config.rules.clone()),
            config,
            described,
            is_allowed,
            large_pages: Semaphore::new(LARGE_PAGES),
            http: Client::new(limits),
            tls: trust.config().ok(),
            clock: clock.clone(),
            recorder,
            leads,
            failing: Mutex::default(),
            slow: Mutex::default(),
        });
        let (running, group) = (Arc::clone(&adapter), tasks.clone());
        tasks.supervise("metrics-adapter", move || {
            let (running, group) = (Arc::clone(&running), group.clone());
            async move {
                group.until_stopped(running.run()).await;
            }
        });
        adapter
    }

    /// Answers a request for one of both groups whose user may make it.
    pub fn answer(&self, method: &Method, uri: &Uri) -> Answer {
        api::answer(&self.described, &self.values, method, uri)
    }

    async fn run(&self) {
        self.described.pods.synced().await;
        let mut ticks = tokio::time::interval(self.config.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.cycle().await;
        }
    }

    async fn cycle(&self) {
        let pods: Vec<Arc<PodRecord>> =
            self.described.pods.all().into_iter().filter(|pod| self.target(pod).is_some()).collect();
        let names: HashSet<(&str, &str)> = pods.iter().map(|pod| key(pod)).collect();
        self.values.retain(|namespace, name| names.contains(&(namespace, name)));
        self.failing.lock().retain(|(namespace, name), _| names.contains(&(namespace, name)));
        self.slow.lock().retain(|(namespace, name)| names.contains(&(namespace, name)));
        let is_slow = |pod: &Arc<PodRecord>| {
            let (namespace, name) = key(pod);
            let key = (namespace.to_owned(), name.to_owned());
            self.failing.lock().contains_key(&key) || self.slow.lock().contains(&key)
        };
        let (slow, sound): (Vec<_>, Vec<_>) = pods.iter().partition(|pod| is_slow(pod));
        // Pods that were not reached in an interval wait for the next one.
        let all =
            async { tokio::join!(self.scrape_all(&sound, AT_ONCE), self.scrape_all(&slow, SLOW_AT_ONCE)) };
        let _ = tokio::time::timeout(self.config.interval, all).await;
    }

    /// Scrapes pods in a random order, `at_once` of all and a share of them of each namespace. Permits are granted in the
    /// order of requests, so each namespace with waiting pods gets its turn.
    async fn scrape_all(&self, pods: &[&Arc<PodRecord>], at_once: usize) {
        let mut by_namespace: HashMap<&str, Vec<&Arc<PodRecord>>> = HashMap::new();
        for pod in pods {
            by_namespace.entry(key(pod).0).or_default().push(pod);
        }
        let permits = &Semaphore::new(at_once);
        let of_namespace = by_namespace.into_values().map(|mut pods| async move {
            pods.shuffle(&mut rand::rng());
            let large = &Semaphore::new(LARGE_PAGES_OF_NAMESPACE);
            let scrapes = futures_util::stream::iter(pods);
            let scrape = |pod: &Arc<PodRecord>| {
                let pod = Arc::clone(pod);
                async move {
                    let _permit = permits.acquire().await;
                    self.scrape(&pod, large).await;
                }
            };
            scrapes.for_each_concurrent(AT_ONCE_OF_NAMESPACE, scrape).await;
        });
        of_namespace.collect::<FuturesUnordered<_>>().collect::<()>().await;
    }

    async fn scrape(&self, pod: &PodRecord, large: &Semaphore) {
        let Some(target) = self.target(pod) else { return };
        let timeout = self.config.request_timeout.min(self.config.interval);
        let mut time = TimeLeft { whole: timeout, left: timeout };
        let outcome = self.fetch(pod, target, &mut time, large).await;
        let (namespace, name) = key(pod);
        let outcome = outcome.and_then(|page| {
            let at = self.clock.now().as_millisecond();
            Ok(self.values.store(namespace, name, at, page)?)
        });
        let known = (namespace.to_owned(), name.to_owned());
        if time.whole.saturating_sub(time.left) > SLOW {
            self.slow.lock().insert(known.clone());
        } else {
            self.slow.lock().remove(&known);
        }
        let Err(error) = outcome else {
            self.failing.lock().remove(&known);
            return;
        };
        self.values.remove(namespace, name);
        let reason = error.reason();
        // One event for each kind of failure, until a scrape succeeds again.
        if self.failing.lock().insert(known, reason) != Some(reason) {
            let place = format!("{}:{}{}", pod.ip, target.port, target.path);
            let note = format!("Metrics of {place} are not served: {}", chain(&error));
            tracing::info!(namespace, pod = name, reason, error = chain(&error), "failed to scrape pod");
            if self.leads.load(Ordering::Relaxed) {
                self.recorder.warning(pod, reason, note);
            }
        }
    }

    async fn fetch(
        &self,
        pod: &PodRecord,
        target: &ScrapeTarget,
        time: &mut TimeLeft,
        large: &Semaphore,
    ) -> Result<Series, PodError> {
        let ip: IpAddr = pod.ip.parse().map_err(|_| PodError::Address)?;
        if !(self.is_allowed)(ip) {
            return Err(PodError::Address);
        }
        let origin = match self.tls.as_ref().filter(|_| target.secure) {
            Some(tls) => Origin::secured(&pod.ip, target.port, Arc::clone(tls), None)?,
            None => Origin::plain(&pod.ip, target.port),
        };
        let request =
            Request::get(&target.path).header(header::ACCEPT, ACCEPT).body(Full::<Bytes>::default())?;
        let mut response = time.within(self.http.send(&origin, request)).await??;
        if response.status != StatusCode::OK {
            return Err(PodError::Status(response.status));
        }
        let format = Format::of_content_type(response.header(header::CONTENT_TYPE));
        let limits =
            PageLimits { series: self.config.max_series_of_pod, bytes: self.config.max_bytes_of_pod };
        let (mut decoder, mut length, mut place) = (PageDecoder::new(format, limits), 0_usize, None);
        while let Some(piece) = time.within(response.piece()).await?? {
            length = length.saturating_add(piece.len());
            if length > LONGEST_PAGE {
                return Err(PodError::TooLong);
            }
            decoder.push(&piece)?;
            if place.is_none() && decoder.bytes() > SMALL_PAGE {
                place = Some((large.acquire().await.ok(), self.large_pages.acquire().await.ok()));
                // Others wait for the permit.
                time.left = time.left.min(time.whole / 2);
            }
        }
        Ok(decoder.finish()?)
    }

    /// Address of a pod's metrics; `None` if it is not scraped.
    fn target<'a>(&'a self, pod: &'a PodRecord) -> Option<&'a ScrapeTarget> {
        let is_running = pod.is_running && !pod.ip.is_empty() && pod.metadata.deletion_timestamp.is_none();
        self.config.rules.target(pod).filter(|_| is_running)
    }
}

fn key(pod: &PodRecord) -> (&str, &str) {
    let metadata = &pod.metadata;
    (metadata.namespace.as_deref().unwrap_or_default(), metadata.name.as_deref().unwrap_or_default())
}

#[cfg(test)]
mod tests;
