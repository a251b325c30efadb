//! Numbers and sizes of stored objects and the watch caches, read when scraped.

use crate::registry::{Registry, Storage};
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
    stored_events: IntCounterVec,
    cache_lists: [IntCounterVec; 3],
    store_lists: [IntCounterVec; 3],
    lists_evaluated: IntCounterVec,
    /// Allocated and available.
    addresses: [IntGaugeVec; 2],
    ports: [IntGaugeVec; 2],
}

/// Revisions are truncated to as many digits as a scraper reads exactly.
const MAX_REVISION: u64 = 1_000_000_000_000_000;

impl StoredObjects {
    pub fn new(registry: Arc<Registry>) -> Result<Self, Error> {
        let names = &["group", "resource"];
        let gauges = |name: &str, help: &str| IntGaugeVec::new(Opts::new(name, help), names);
        let counters = |name: &str, help: &str| IntCounterVec::new(Opts::new(name, help), names);
        let by_cidr = |name: &str, help: &str| IntGaugeVec::new(Opts::new(name, help), &["cidr"]);
        let single = |name: &str, help: &str| IntGaugeVec::new(Opts::new(name, help), &[]);
        let by_index = |name: &str, help: &str| {
            IntCounterVec::new(Opts::new(name, help), &["group", "resource", "index"])
        };
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
            stored_events: counters(
                "apiserver_storage_events_received_total",
                "Number of etcd events received split by kind.",
            )?,
            cache_lists: [
                by_index("apiserver_cache_list_total", "Number of LIST requests served from watch cache")?,
                by_index(
                    "apiserver_cache_list_fetched_objects_total",
                    "Number of objects read from watch cache in the course of serving a LIST request",
                )?,
                counters(
                    "apiserver_cache_list_returned_objects_total",
                    "Number of objects returned for a LIST request from watch cache",
                )?,
            ],
            store_lists: [
                counters("apiserver_storage_list_total", "Number of LIST requests served from storage")?,
                counters(
                    "apiserver_storage_list_fetched_objects_total",
                    "Number of objects read from storage in the course of serving a LIST request",
                )?,
                counters(
                    "apiserver_storage_list_returned_objects_total",
                    "Number of objects returned for a LIST request from storage",
                )?,
            ],
            addresses: [
                by_cidr(
                    "kube_apiserver_clusterip_allocator_allocated_ips",
                    "Gauge measuring the number of allocated IPs for Services",
                )?,
                by_cidr(
                    "kube_apiserver_clusterip_allocator_available_ips",
                    "Gauge measuring the number of available IPs for Services",
                )?,
            ],
            ports: [
                single(
                    "kube_apiserver_nodeport_allocator_allocated_ports",
                    "Gauge measuring the number of allocated NodePorts for Services",
                )?,
                single(
                    "kube_apiserver_nodeport_allocator_available_ports",
                    "Gauge measuring the number of available NodePorts for Services",
                )?,
            ],
            lists_evaluated: counters(
                "apiserver_storage_list_evaluated_objects_total",
                "Number of objects tested in the course of serving a LIST request from storage",
            )?,
        })
    }

    fn refresh(&self) {
        // Resources that are no longer served have no rows.
        for gauges in self.addresses.iter().chain(&self.ports) {
            gauges.reset();
        }
        self.registry.services.show(self.addresses.each_ref(), self.ports.each_ref());
        for gauges in [&self.objects, &self.objects_by_name, &self.bytes, &self.revision] {
            gauges.reset();
        }
        let lists = self.cache_lists.iter().chain(&self.store_lists);
        let all = [&self.initializations, &self.events, &self.stored_events, &self.lists_evaluated];
        for counters in all.into_iter().chain(lists) {
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
            // The watch cache is the only receiver.
            self.stored_events.with_label_values(&labels).inc_by(counts.events);
            self.show_lists(storage, labels);
        }
        if let Some(bytes) = self.registry.store.health().size_bytes {
            self.size.with_label_values(&["etcd-0"]).set(i64::try_from(bytes).unwrap_or(i64::MAX));
        }
    }

    /// Lists that have not been requested have no rows.
    fn show_lists(&self, storage: &Storage, labels: [&str; 2]) {
        let [group, resource] = labels;
        let [lists, fetched, returned] = storage.lists.cache.read();
        if lists > 0 {
            let [all, read, sent] = &self.cache_lists;
            all.with_label_values(&[group, resource, ""]).inc_by(lists);
            read.with_label_values(&[group, resource, ""]).inc_by(fetched);
            sent.with_label_values(&labels).inc_by(returned);
        }
        let numbers = storage.lists.store.read();
        if numbers[0] > 0 {
            for (counters, number) in self.store_lists.iter().zip(numbers) {
                counters.with_label_values(&labels).inc_by(number);
            }
            self.lists_evaluated.with_label_values(&labels).inc_by(numbers[1]);
        }
    }

    fn collectors(&self) -> [&dyn Collector; 19] {
        let [allocated_addresses, available_addresses] = &self.addresses;
        let [allocated_ports, available_ports] = &self.ports;
        let [lists, fetched, returned] = &self.cache_lists;
        let [stored_lists, stored_fetched, stored_returned] = &self.store_lists;
        [
            allocated_addresses,
            available_addresses,
            allocated_ports,
            available_ports,
            lists,
            fetched,
            returned,
            stored_lists,
            stored_fetched,
            stored_returned,
            &self.stored_events,
            &self.lists_evaluated,
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
