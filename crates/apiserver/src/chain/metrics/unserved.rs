//! Removal of the series of resources that are no longer served: clients that create and delete definitions of custom
//! resources must not add series for ever.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use prometheus::core::{Collector, MetricVec, MetricVecBuilder};

use crate::registry::Catalogue;

/// Changes of the catalogue between two removals, if no one reads the metrics.
const CHANGES: usize = 32;

/// Counts changes of the catalogue, as requests see them.
#[derive(Debug, Default)]
pub struct CatalogueChanges {
    /// Generation of the last catalogue.
    last: AtomicU64,
    changes: AtomicUsize,
}

impl CatalogueChanges {
    /// Reports whether enough changes have been seen for a removal.
    pub fn are_due(&self, catalogue: &Catalogue) -> bool {
        self.see(catalogue.generation)
    }

    fn see(&self, generation: u64) -> bool {
        // Requests that began earlier have an older catalogue.
        if self.last.fetch_max(generation, Ordering::Relaxed) >= generation {
            return false;
        }
        let is_due = self.changes.fetch_add(1, Ordering::Relaxed) >= CHANGES;
        if is_due {
            self.changes.store(0, Ordering::Relaxed);
        }
        is_due
    }

    /// Reports whether there were changes since the last removal.
    pub fn take(&self) -> bool {
        self.changes.swap(0, Ordering::Relaxed) > 0
    }
}

/// Reports whether a resource is served by this server.
pub fn is_served(catalogue: &Catalogue, group: &str, version: &str, resource: &str) -> bool {
    if catalogue.served(group, version, resource).is_some() {
        return true;
    }
    let mut versions = catalogue.discovery.versions_of(group).iter().filter(|shown| shown.version == version);
    versions.any(|shown| shown.resources.iter().any(|row| row.name == resource))
}

/// Removes the series whose labels `group`, `version` and `resource` name no served resource.
pub fn retain_served<T: MetricVecBuilder>(series: &MetricVec<T>, catalogue: &Catalogue) {
    for family in series.collect() {
        for metric in family.get_metric() {
            let labels: HashMap<&str, &str> =
                metric.get_label().iter().map(|label| (label.name(), label.value())).collect();
            let label = |name: &str| labels.get(name).copied().unwrap_or_default();
            let (group, version, resource) = (label("group"), label("version"), label("resource"));
            // Pages have no version.
            if !version.is_empty() && !is_served(catalogue, group, version, resource) {
                let _ = series.remove(&labels);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_server::TestServer;
    use prometheus::{IntCounterVec, Opts};

    #[tokio::test]
    async fn series_of_removed_definitions_are_removed() {
        let server = TestServer::start();
        let catalogue = server.chain.rest.registry.catalogue();
        let labels = ["verb", "group", "version", "resource"];
        let series = IntCounterVec::new(Opts::new("requests", "Requests."), &labels).expect("a name");
        for number in 0..1000 {
            let group = format!("g{number}.example.com");
            series.with_label_values(&["GET", &group, "v1", "widgets"]).inc();
        }
        for (group, version, resource) in
            [("", "v1", "pods"), ("authentication.k8s.io", "v1", "tokenreviews"), ("", "", "statusz")]
        {
            series.with_label_values(&["GET", group, version, resource]).inc();
        }
        retain_served(&series, &catalogue);
        let left = series.collect().iter().map(|family| family.get_metric().len()).sum::<usize>();
        assert_eq!(left, 3);
    }

    #[test]
    fn removal_is_due_after_many_changes_or_before_a_scrape() {
        let changes = CatalogueChanges::default();
        assert!((0..1000).all(|_| !changes.see(1)), "an unchanged catalogue");
        assert!(changes.take() && !changes.take());
        let due = (2..102).filter(|generation| changes.see(*generation)).count();
        assert_eq!(due, 3);
        assert!(!changes.see(5), "an older catalogue");
    }
}
