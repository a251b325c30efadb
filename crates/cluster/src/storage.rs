//! Opens the configured store.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use apiserver::StoreOverride;
use base::metrics::{Collector, Desc, IntGauge, MetricFamily, Metrics, MetricsError};
use base::readiness::{Probes, Readiness};
use base::tasks::TaskGroup;
use parking_lot::Mutex;
use store::embedded::DEFAULT_QUOTA_BYTES;
use store::{Embedded, EmbeddedOptions, Etcd, EtcdOptions, EtcdTls, Prefixed, Store};

use crate::config::DEFAULT_PREFIX;
use crate::{ClusterError, Config, EtcdConfig, EtcdOverride, StoreConfig, encryption};

/// Check interval of the store's state.
const CHECK: Duration = Duration::from_secs(1);

/// Directory of the embedded store in the data directory.
pub(crate) const DIRECTORY: &str = "store";

/// Opens the store; the embedded one blocks while it reads its files, so it is opened off the async threads.
pub async fn open(
    data_dir: &Path,
    config: &StoreConfig,
    quota_bytes: u64,
) -> Result<Arc<dyn Store>, ClusterError> {
    match config {
        StoreConfig::Embedded => {
            let options = EmbeddedOptions { quota_bytes, ..EmbeddedOptions::new(data_dir.join(DIRECTORY)) };
            let opened = tokio::task::spawn_blocking(|| Embedded::open(options)).await;
            match opened {
                Ok(store) => Ok(Arc::new(store.map_err(ClusterError::Store)?)),
                Err(panic) => std::panic::resume_unwind(panic.into_panic()),
            }
        }
        StoreConfig::Etcd(etcd) => connect(etcd, &etcd.endpoints).await,
    }
}

/// Connects to members of the configured etcd cluster, or of another one.
async fn connect(etcd: &EtcdConfig, endpoints: &[String]) -> Result<Arc<dyn Store>, ClusterError> {
    let mut options = EtcdOptions::new(endpoints.iter().cloned());
    options.tls = tls(etcd)?;
    let store: Arc<dyn Store> = Arc::new(Etcd::connect(options).await.map_err(ClusterError::Store)?);
    Ok(match etcd.prefix.as_str() {
        DEFAULT_PREFIX => store,
        prefix => Arc::new(Prefixed::new(store, DEFAULT_PREFIX, prefix)),
    })
}

/// Connects to the etcd clusters of single resources; resources with the same members share a connection.
pub(crate) async fn open_overrides(
    config: &Config,
    tasks: &TaskGroup,
) -> Result<Vec<StoreOverride>, ClusterError> {
    let StoreConfig::Etcd(etcd) = &config.store else { return Ok(Vec::new()) };
    let mut stores: Vec<(Vec<String>, Arc<dyn Store>)> = Vec::new();
    let mut overrides = Vec::new();
    for EtcdOverride { group, resource, endpoints } in &etcd.overrides {
        let mut members = endpoints.clone();
        members.sort();
        let known = stores.iter().find(|(known, _)| *known == members).map(|(_, store)| Arc::clone(store));
        let store = match known {
            Some(store) => store,
            None => {
                let store = encryption::wrap(config, connect(etcd, endpoints).await?, tasks)?;
                stores.push((members, Arc::clone(&store)));
                store
            }
        };
        overrides.push(StoreOverride { group: group.clone(), resource: resource.clone(), store });
    }
    Ok(overrides)
}

/// Rejects a data directory whose embedded store is missing: starting would create a new, empty cluster with the old
/// certificates. The kubeconfig and the encryption key are written after the first start has opened the store, so
/// they distinguish such a directory from one whose first start was interrupted.
pub(crate) fn require(config: &Config) -> Result<(), ClusterError> {
    if config.store != StoreConfig::Embedded {
        return Ok(());
    }
    let store = config.data_dir.join(DIRECTORY);
    let has_cluster =
        config.pki().exists() && (config.kubeconfig().exists() || config.encryption_file().exists());
    let failed = |source| ClusterError::DataDirectory { path: store.clone(), source };
    if !has_cluster || Embedded::exists(&store).map_err(failed)? {
        return Ok(());
    }
    Err(ClusterError::StoreMissing { data_dir: config.data_dir.clone(), store })
}

/// Reports the state of the store: a check of `/livez` and `/readyz`, metrics, and the stop of the control plane,
/// with an error, once its store has failed and the grace period is over. A restart recovers the state on disk.
pub(crate) fn observe(
    store: &Arc<dyn Store>,
    readiness: &Readiness,
    metrics: &Metrics,
) -> Result<(), ClusterError> {
    let checked = Arc::clone(store);
    readiness.register_extra("store", Probes::ALL, move || checked.health().failure.map_or(Ok(()), Err));
    metrics
        .register(StoreCollector::new(Arc::clone(store)).map_err(ClusterError::Metrics)?)
        .map_err(ClusterError::Metrics)
}

/// Stops `tasks` once the store has failed and `grace` is over; the returned cell holds the reason.
pub(crate) fn end_when_failed(
    store: Arc<dyn Store>,
    grace: Duration,
    tasks: &TaskGroup,
) -> Arc<Mutex<Option<String>>> {
    let place: Arc<Mutex<Option<String>>> = Arc::default();
    let (reason, group) = (Arc::clone(&place), tasks.clone());
    tasks.supervise("store-health", move || {
        let (store, reason, group) = (Arc::clone(&store), Arc::clone(&reason), group.clone());
        async move {
            let failure = async {
                loop {
                    if let Some(failure) = store.health().failure {
                        return failure;
                    }
                    tokio::time::sleep(CHECK).await;
                }
            };
            let Some(failure) = group.until_stopped(failure).await else { return };
            tracing::error!(failure, ?grace, "store failure, shutting down after a grace period");
            group.until_stopped(tokio::time::sleep(grace)).await;
            *reason.lock() = Some(failure);
            group.stop();
        }
    });
    place
}

/// Reads the store's statistics when scraped.
struct StoreCollector {
    store: Arc<dyn Store>,
    size: IntGauge,
    quota: IntGauge,
    exceeded: IntGauge,
    failed: IntGauge,
}

impl StoreCollector {
    fn new(store: Arc<dyn Store>) -> Result<Self, MetricsError> {
        Ok(Self {
            store,
            size: IntGauge::new("ferry_store_size_bytes", "Total size of all keys and values in the store.")?,
            quota: IntGauge::new("ferry_store_quota_bytes", "Size limit of the store.")?,
            exceeded: IntGauge::new(
                "ferry_store_quota_exceeded",
                "1 if the store has reached its size limit and rejects writes other than deletes.",
            )?,
            failed: IntGauge::new(
                "ferry_store_failed",
                "1 if the store has failed and rejects all writes until a restart.",
            )?,
        })
    }

    fn gauges(&self) -> [&IntGauge; 4] {
        [&self.exceeded, &self.failed, &self.quota, &self.size]
    }
}

impl Collector for StoreCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.gauges().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let health = self.store.health();
        let number = |bytes: Option<u64>| i64::try_from(bytes.unwrap_or(0)).unwrap_or(i64::MAX);
        self.size.set(number(health.size_bytes));
        self.quota.set(number(health.quota_bytes));
        self.exceeded.set(health.quota_exceeded.into());
        self.failed.set(health.failure.is_some().into());
        self.gauges().into_iter().flat_map(Collector::collect).collect()
    }
}

fn tls(etcd: &EtcdConfig) -> Result<Option<EtcdTls>, ClusterError> {
    let read = |path: &PathBuf| {
        std::fs::read(path).map_err(|source| ClusterError::ReadFile { path: path.clone(), source })
    };
    let Some(ca) = &etcd.ca_file else { return Ok(None) };
    let identity = match &etcd.identity_files {
        Some((certificate, key)) => Some((read(certificate)?, read(key)?)),
        None => None,
    };
    Ok(Some(EtcdTls { ca: read(ca)?, identity }))
}

/// Opens the embedded store of an existing cluster, never creating one.
pub(crate) async fn open_existing(data_dir: &Path) -> Result<Arc<dyn Store>, ClusterError> {
    let path = data_dir.join(DIRECTORY);
    std::fs::read_dir(&path).map_err(|source| ClusterError::DataDirectory { path, source })?;
    open(data_dir, &StoreConfig::Embedded, DEFAULT_QUOTA_BYTES).await
}
