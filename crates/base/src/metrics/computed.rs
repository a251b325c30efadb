//! Gauges whose rows a component computes from its caches when they are scraped.

use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Error, GaugeVec, Opts};

use crate::tasks::TaskGroup;

type Source = Box<dyn Fn(&GaugeVec) + Send + Sync>;

/// Gauges without rows until a component computes them.
#[derive(Clone)]
pub struct ComputedGauges {
    gauges: GaugeVec,
    source: Arc<Mutex<Option<(TaskGroup, Source)>>>,
}

impl ComputedGauges {
    pub fn new(name: &str, help: &str, labels: &[&str]) -> Result<Self, Error> {
        Ok(Self { gauges: GaugeVec::new(Opts::new(name, help), labels)?, source: Arc::default() })
    }

    /// Calls `source` at each scrape until `tasks` stops; it replaces an earlier source.
    pub fn compute(&self, tasks: &TaskGroup, source: impl Fn(&GaugeVec) + Send + Sync + 'static) {
        *self.source.lock() = Some((tasks.clone(), Box::new(source)));
    }
}

impl Collector for ComputedGauges {
    fn desc(&self) -> Vec<&Desc> {
        self.gauges.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        // Held while values are read, so that concurrent scrapes do not mix.
        let mut source = self.source.lock();
        self.gauges.reset();
        if source.as_ref().is_some_and(|(tasks, _)| tasks.is_stopping()) {
            *source = None;
        }
        if let Some((_, compute)) = &*source {
            compute(&self.gauges);
        }
        self.gauges.collect()
    }
}

impl std::fmt::Debug for ComputedGauges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ComputedGauges").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn rows_are_computed_until_the_tasks_stop() {
        let gauges = ComputedGauges::new("volumes", "Volumes.", &["plugin"]).expect("a name");
        let rows = || gauges.collect().iter().map(|family| family.get_metric().len()).sum::<usize>();
        assert_eq!(rows(), 0);
        let tasks = TaskGroup::new();
        gauges.compute(&tasks, |rows| rows.with_label_values(&["csi"]).set(3.0));
        assert_eq!((rows(), rows()), (1, 1));
        tasks.stop();
        assert_eq!(rows(), 0);
    }
}
