//! Numbers and sizes of stored objects and the watch caches, read when scraped.

use crate::registry::Registry;
use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Error, IntCounterVec, IntGaugeVec, Opts};
use std::collections::HashSet;
use std::sync::Arc;

/// Reads the watch caches and the store.
pub struct StoredObjects {
    registry: Arc<Registry>,
    /// Held while values are read, so that concurrent scrapes do not mix.
    reading: Mutex<()>,
    objects: IntGaugeVec,
    objects_by_name: IntGaugeVec,
    bytes: IntGaugeVec,
    size: IntGaugeVec,
    revision: IntGaugeVec,
    initializations: IntCounterVec,
    events: IntCounterVec,
}

/// Revisions are truncated to as many digits as a scraper reads exactly.
const MAX_REVISION: u64 = 1_000_000_000_000_000;

impl StoredObjects {
    pub fn new(registry: Arc<Registry>) -> Result<Self, Error> {
        let names = &["group", "resource"];
        let gauges = |name: &str, help: &str| IntGaugeVec::new(Opts::new(name, help), names);
        let counters = |name: &str, help: &str| IntCounterVec::new(Opts::new(name, help), names);
        Ok(Self {
            registry,
            reading: Mutex::default(),
            objects: gauges(
                "apiserver_resource_objects",
                "Number of stored objects at the time of last check split by kind.",
            )?,
            objects_by_name: IntGaugeVec::new(
                Opts::new(
                    "apiserver_storage_objects",
                    "[DEPRECATED, consider using apiserver_resource_objects instead] Number of stored objects at the time of last check split by kind.",
                ),
                &["resource"],
            )?,
            bytes: gauges(
                "apiserver_resource_size_estimate_bytes",
                "Estimated size of stored objects in database. Estimate is based on sum of last observed sizes of serialized objects.",
            )?,
            size: IntGaugeVec::new(
                Opts::new(
                    "apiserver_storage_size_bytes",
                    "Size of the storage database file physically allocated in bytes.",
                ),
                &["storage_cluster_id"],
            )?,
            revision: gauges(
                "apiserver_watch_cache_resource_version",
                "Current resource version of watch cache broken by resource type. This is truncated to the 15 least significant digits.",
            )?,
            initializations: counters(
                "apiserver_watch_cache_initializations_total",
                "Counter of watch cache initializations broken by resource type.",
            )?,
            events: counters(
                "apiserver_watch_cache_events_received_total",
                "Counter of events received in watch cache broken by resource type.",
            )?,
        })
    }

    fn refresh(&self) {
        // Resources that are no longer served have no rows.
        for gauges in [&self.objects, &self.objects_by_name, &self.bytes, &self.revision] {
            gauges.reset();
        }
        for counters in [&self.initializations, &self.events] {
            counters.reset();
        }
        let catalogue = self.registry.catalogue();
        let mut seen = HashSet::new();
        for served in catalogue.all() {
            let storage = &served.storage;
            // Several versions share a storage.
            if !seen.insert(Arc::as_ptr(storage)) || !storage.cache.is_filled() {
                continue;
            }
            let (group, resource) = (storage.kind.group(), storage.kind.resource());
            let (labels, size) = ([group, resource], storage.cache.size());
            self.objects.with_label_values(&labels).set(clamped(size.objects));
            self.bytes.with_label_values(&labels).set(clamped(size.bytes));
            let name = machinery::status::qualified(group, resource);
            self.objects_by_name.with_label_values(&[&*name]).set(clamped(size.objects));
            let counts = storage.cache.counts();
            let revision = i64::try_from(counts.revision % MAX_REVISION).unwrap_or_default();
            self.revision.with_label_values(&labels).set(revision);
            self.initializations.with_label_values(&labels).inc_by(counts.fills);
            self.events.with_label_values(&labels).inc_by(counts.events);
        }
        if let Some(bytes) = self.registry.store.health().size_bytes {
            self.size.with_label_values(&["etcd-0"]).set(i64::try_from(bytes).unwrap_or(i64::MAX));
        }
    }

    fn collectors(&self) -> [&dyn Collector; 7] {
        [
            &self.objects,
            &self.objects_by_name,
            &self.bytes,
            &self.size,
            &self.revision,
            &self.initializations,
            &self.events,
        ]
    }
}

fn clamped(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl Collector for StoredObjects {
    fn desc(&self) -> Vec<&Desc> {
        self.collectors().into_iter().flat_map(|one| one.desc()).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let _reading = self.reading.lock();
        self.refresh();
        self.collectors().into_iter().flat_map(|one| one.collect()).collect()
    }
}
