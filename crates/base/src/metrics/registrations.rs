//! Descriptions of registered families and the counters of registrations.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{MetricFamily, MetricType};
use prometheus::{Error, IntCounterVec, Opts};

use super::stability::stability;

/// Name, type, labels and buckets of a family.
#[derive(Clone, Debug, PartialEq)]
pub struct RegisteredFamily {
    pub name: String,
    /// `counter`, `gauge`, `histogram`, `summary` or `untyped`; empty for a collector that has no rows yet.
    pub kind: &'static str,
    /// Sorted.
    pub labels: Vec<String>,
    /// Upper bounds of a histogram without infinity, where known.
    pub buckets: Option<Vec<f64>>,
}

/// A collector that both the registry and the descriptions use.
#[derive(Clone)]
pub struct Registered(Arc<dyn Collector>);

impl Registered {
    pub fn new(collector: impl Collector + 'static) -> Self {
        Self(Arc::new(collector))
    }
}

impl Collector for Registered {
    fn desc(&self) -> Vec<&Desc> {
        self.0.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.0.collect()
    }
}

/// Registered collectors, and Kubernetes' counters of them.
pub struct Registrations {
    collectors: Mutex<Vec<Registered>>,
    buckets: Mutex<HashMap<String, Vec<f64>>>,
    registered: IntCounterVec,
    hidden: IntCounterVec,
    disabled: IntCounterVec,
}

impl Registrations {
    pub fn new() -> Result<Self, Error> {
        let counters =
            |name: &str, help: &str, labels: &[&str]| IntCounterVec::new(Opts::new(name, help), labels);
        let registrations = Self {
            collectors: Mutex::default(),
            buckets: Mutex::default(),
            registered: counters(
                "registered_metrics_total",
                "The count of registered metrics broken by stability level and deprecation version.",
                &["stability_level", "deprecated_version"],
            )?,
            hidden: counters("hidden_metrics_total", "The count of hidden metrics.", &[])?,
            disabled: counters("disabled_metrics_total", "The count of disabled metrics.", &[])?,
        };
        // No metric is hidden or disabled: there are no flags for it.
        for none in [&registrations.hidden, &registrations.disabled] {
            none.with_label_values::<&str>(&[]);
        }
        Ok(registrations)
    }

    pub fn own(&self) -> [IntCounterVec; 3] {
        [self.registered.clone(), self.hidden.clone(), self.disabled.clone()]
    }

    pub fn set_buckets(&self, name: &str, buckets: &[f64]) {
        if !buckets.is_empty() {
            self.buckets.lock().insert(name.to_owned(), buckets.to_vec());
        }
    }

    pub fn add(&self, collector: Registered) {
        for desc in collector.desc() {
            let (level, deprecated) = stability(&desc.fq_name);
            self.registered.with_label_values(&[level, deprecated]).inc();
        }
        self.collectors.lock().push(collector);
    }

    pub fn families(&self) -> Vec<RegisteredFamily> {
        let collectors = self.collectors.lock().clone();
        collectors.iter().flat_map(|collector| self.described(collector)).collect()
    }

    fn described(&self, collector: &Registered) -> Vec<RegisteredFamily> {
        let families = collector.collect();
        let describe = |desc: &Desc| {
            let family = families.iter().find(|family| family.name() == desc.fq_name);
            let mut labels = desc.variable_labels.clone();
            labels.extend(desc.const_label_pairs.iter().map(|pair| pair.name().to_owned()));
            labels.sort();
            RegisteredFamily {
                name: desc.fq_name.clone(),
                kind: family.map_or("", kind),
                labels,
                buckets: self.buckets.lock().get(&desc.fq_name).cloned().or_else(|| family.and_then(bounds)),
            }
        };
        collector.desc().into_iter().map(describe).collect()
    }
}

fn kind(family: &MetricFamily) -> &'static str {
    match family.get_field_type() {
        MetricType::COUNTER => "counter",
        MetricType::GAUGE => "gauge",
        MetricType::HISTOGRAM => "histogram",
        MetricType::SUMMARY => "summary",
        MetricType::UNTYPED => "untyped",
    }
}

/// Bounds of a family with a sample.
fn bounds(family: &MetricFamily) -> Option<Vec<f64>> {
    let first = family.get_metric().first().filter(|_| kind(family) == "histogram")?;
    let bounds = first.get_histogram().get_bucket().iter().map(|bucket| bucket.upper_bound());
    Some(bounds.filter(|bound| bound.is_finite()).collect())
}

impl fmt::Debug for Registrations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registrations").finish_non_exhaustive()
    }
}
