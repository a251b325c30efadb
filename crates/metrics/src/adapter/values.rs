//! The last two pages of every scraped pod, and the values that they give.

use super::page::{COUNTER, Labels, Metric, Series, size};
use super::rules::{AdapterRules, ValueKind};
use machinery::selector::LabelSelector;
use parking_lot::RwLock;
use std::collections::{BTreeSet, HashMap};

const RATE: &str = "_per_second";

/// Pods by namespace and name.
type PodKey = (Box<str>, Box<str>);

/// A value of a metric.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricValue {
    pub value: f64,
    /// Milliseconds since the epoch.
    pub at: i64,
    /// Seconds that a rate is an average of.
    pub window: Option<i64>,
}

#[derive(Debug)]
struct PodPages {
    at: i64,
    last: Series,
    /// Time and counters of the page before.
    before: Option<(i64, Series)>,
    /// Memory of both pages.
    bytes: usize,
}

/// Memory of the pages of pods, at most.
#[derive(Clone, Copy, Debug)]
pub struct MemoryLimits {
    pub total: usize,
    /// Of the pods of one namespace: none uses up the memory of all.
    pub namespace: usize,
}

/// Reason why a page is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    #[error("the metrics of all pods together take more than {0} bytes")]
    Total(usize),
    #[error("the metrics of the pods of the namespace take more than {0} bytes")]
    Namespace(usize),
}

/// Pages of all pods.
#[derive(Debug)]
pub struct Values {
    stored: RwLock<Stored>,
    limits: MemoryLimits,
    rules: AdapterRules,
}

#[derive(Debug, Default)]
struct Stored {
    pods: HashMap<PodKey, PodPages>,
    /// Sums of the bytes of pods.
    total: usize,
    namespaces: HashMap<Box<str>, usize>,
}

impl Stored {
    fn remove(&mut self, key: &PodKey) -> Option<PodPages> {
        let pages = self.pods.remove(key)?;
        self.subtract(&key.0, pages.bytes);
        Some(pages)
    }

    fn subtract(&mut self, namespace: &str, bytes: usize) {
        self.total = self.total.saturating_sub(bytes);
        if let Some(sum) = self.namespaces.get_mut(namespace) {
            *sum = sum.saturating_sub(bytes);
            if *sum == 0 {
                self.namespaces.remove(namespace);
            }
        }
    }

    fn insert(&mut self, key: PodKey, pages: PodPages, limits: MemoryLimits) -> Result<(), MemoryError> {
        let total = self.total.saturating_add(pages.bytes);
        let own = self.namespaces.get(&key.0).copied().unwrap_or(0).saturating_add(pages.bytes);
        if own > limits.namespace {
            return Err(MemoryError::Namespace(limits.namespace));
        }
        if total > limits.total {
            return Err(MemoryError::Total(limits.total));
        }
        self.total = total;
        self.namespaces.insert(key.0.clone(), own);
        self.pods.insert(key, pages);
        Ok(())
    }
}

fn key(namespace: &str, name: &str) -> PodKey {
    (namespace.into(), name.into())
}

/// The name of the rate of a counter.
fn rate_name(counter: &str) -> String {
    format!("{}{RATE}", counter.strip_suffix(COUNTER).unwrap_or(counter))
}

impl Values {
    pub fn new(limits: MemoryLimits, rules: AdapterRules) -> Self {
        Self { stored: RwLock::default(), limits, rules }
    }

    pub fn rules(&self) -> &AdapterRules {
        &self.rules
    }

    /// Stores a page that was read at `at`, in milliseconds. A page beyond the limits is not stored, and the pod has no
    /// values then.
    pub fn store(&self, namespace: &str, name: &str, at: i64, page: Series) -> Result<(), MemoryError> {
        let mut stored = self.stored.write();
        let key = key(namespace, name);
        // Rates need counters of the page before only.
        let before = stored.remove(&key).filter(|known| known.at < at).map(|mut known| {
            known.last.retain(|name, metric| metric.is_counter || self.rules.has_rate(name));
            (known.at, known.last)
        });
        let bytes = size(&page).saturating_add(before.as_ref().map_or(0, |(_, before)| size(before)));
        stored.insert(key, PodPages { at, last: page, before, bytes }, self.limits)
    }

    pub fn remove(&self, namespace: &str, name: &str) {
        self.stored.write().remove(&key(namespace, name));
    }

    pub fn retain(&self, is_present: impl Fn(&str, &str) -> bool) {
        let mut stored = self.stored.write();
        let is_gone = |(namespace, name): &&PodKey| !is_present(namespace, name);
        let gone: Vec<PodKey> = stored.pods.keys().filter(is_gone).cloned().collect();
        for key in &gone {
            stored.remove(key);
        }
    }

    /// Names of the metrics of all pods.
    pub fn names(&self) -> BTreeSet<String> {
        let stored = self.stored.read();
        let mut names = BTreeSet::new();
        for (name, metric) in stored.pods.values().flat_map(|pod| &pod.last) {
            if !names.contains(&**name) {
                names.insert(name.to_string());
            }
            if metric.is_counter {
                names.insert(rate_name(name));
            }
        }
        let is_there = |series: &str| stored.pods.values().any(|pod| pod.last.contains_key(series));
        let configured = self.rules.metrics().filter(|(_, rule)| is_there(&rule.series));
        names.extend(configured.map(|(name, _)| name.to_owned()));
        names
    }

    /// The value of a pod's series of a metric that a selector of their labels chooses, together.
    pub fn of_pod(
        &self,
        namespace: &str,
        name: &str,
        metric: &str,
        selector: &LabelSelector,
    ) -> Option<MetricValue> {
        let stored = self.stored.read();
        let series = stored.pods.get(&key(namespace, name))?.series(metric, &self.rules)?;
        let selected = series.rows.iter().filter(|(labels, _)| matches(selector, labels));
        let value = self.rules.aggregation(metric).of(selected.map(|(_, value)| *value))?;
        Some(MetricValue { value, at: series.at, window: series.window })
    }

    /// The series of a metric in a namespace that a selector chooses, with their labels and pods, in their order. `None`
    /// if they are more than `limit`.
    pub fn of_namespace(
        &self,
        namespace: &str,
        metric: &str,
        selector: &LabelSelector,
        limit: usize,
    ) -> Option<Vec<(String, Labels, MetricValue)>> {
        let stored = self.stored.read();
        let own = stored.pods.iter().filter(|((ns, _), _)| &**ns == namespace);
        let mut found: Vec<(String, Labels, MetricValue)> = Vec::new();
        for ((_, pod), pages) in own {
            let Some(series) = pages.series(metric, &self.rules) else { continue };
            let (at, window) = (series.at, series.window);
            for (labels, value) in series.rows.into_iter().filter(|(labels, _)| matches(selector, labels)) {
                if found.len() >= limit {
                    return None;
                }
                found.push((pod.to_string(), labels.clone(), MetricValue { value, at, window }));
            }
        }
        found.sort_by(|one, other| (&one.0, &one.1).cmp(&(&other.0, &other.1)));
        Some(found)
    }

    /// The value of all series of a metric in a namespace that a selector chooses, together.
    pub fn total_of_namespace(
        &self,
        namespace: &str,
        metric: &str,
        selector: &LabelSelector,
    ) -> Option<MetricValue> {
        let stored = self.stored.read();
        let own = stored.pods.iter().filter(|((ns, _), _)| &**ns == namespace);
        let (mut values, mut newest) = (Vec::new(), None);
        for series in own.filter_map(|(_, pages)| pages.series(metric, &self.rules)) {
            let before = values.len();
            values.extend(
                series.rows.iter().filter(|(labels, _)| matches(selector, labels)).map(|(_, value)| *value),
            );
            if values.len() > before {
                newest = newest.max(Some((series.at, series.window)));
            }
        }
        let (at, window) = newest?;
        let value = self.rules.aggregation(metric).of(values.into_iter())?;
        Some(MetricValue { value, at, window })
    }
}

fn matches(selector: &LabelSelector, labels: &Labels) -> bool {
    selector.is_empty() || selector.matches(&**labels)
}

/// Values of the series of one metric of a pod.
struct Found<'a> {
    rows: Vec<(&'a Labels, f64)>,
    at: i64,
    window: Option<i64>,
}

impl PodPages {
    /// The series of a served name: by its rule, else by its own name, else the rate of a counter.
    fn series(&self, metric: &str, rules: &AdapterRules) -> Option<Found<'_>> {
        if let Some(rule) = rules.metric(metric) {
            return match rule.value {
                ValueKind::Plain => self.plain(&rule.series),
                ValueKind::Rate => self.rate(&rule.series),
            };
        }
        if let Some(found) = self.plain(metric) {
            return Some(found);
        }
        let stem = metric.strip_suffix(RATE)?;
        let total = format!("{stem}{COUNTER}");
        let is_counter = |name: &&str| self.last.get(*name).is_some_and(|metric| metric.is_counter);
        self.rate([&*total, stem].into_iter().find(is_counter)?)
    }

    fn plain(&self, name: &str) -> Option<Found<'_>> {
        let Metric { rows, .. } = self.last.get(name)?;
        let rows = rows.iter().map(|(labels, value)| (labels, *value)).collect();
        Some(Found { rows, at: self.at, window: None })
    }

    fn rate(&self, name: &str) -> Option<Found<'_>> {
        let (last, (before, old)) = (self.last.get(name)?, self.before.as_ref()?);
        let milliseconds = self.at.checked_sub(*before).filter(|span| *span > 0)?;
        let old: HashMap<&Labels, f64> =
            old.get(name)?.rows.iter().map(|(labels, value)| (labels, *value)).collect();
        #[expect(clippy::cast_precision_loss, reason = "a span of milliseconds is far below 2^52")]
        let seconds = milliseconds as f64 / 1000.0;
        let rate = |(labels, value): &'_ (Labels, f64)| {
            // A counter that was reset counts from zero.
            let before = old.get(labels)?;
            let grown = if value < before { *value } else { value - before };
            Some(grown / seconds)
        };
        let rows = last.rows.iter().filter_map(|row| Some((&row.0, rate(row)?))).collect();
        Some(Found { rows, at: self.at, window: Some(milliseconds.div_euclid(1000).max(1)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(rows: &[(&str, &str, f64)]) -> Series {
        let mut series = Series::new();
        for (name, code, value) in rows {
            let labels: Labels = vec![("code".into(), (*code).into())].into();
            let metric = series.entry((*name).into()).or_default();
            metric.is_counter = name.ends_with(COUNTER);
            metric.rows.push((labels, *value));
        }
        series
    }

    fn values() -> Values {
        Values::new(MemoryLimits { total: 1 << 20, namespace: 1 << 20 }, AdapterRules::default())
    }

    fn everything() -> LabelSelector {
        LabelSelector::All(Vec::new())
    }

    #[test]
    fn series_of_a_pod_are_summed() {
        let values = values();
        values.store("ns", "p", 1000, page(&[("q", "200", 2.0), ("q", "500", 3.0)])).expect("stored");
        let of = |selector: &LabelSelector| values.of_pod("ns", "p", "q", selector).map(|found| found.value);
        assert_eq!(of(&everything()), Some(5.0));
        assert_eq!(of(&LabelSelector::parse("code=500").expect("a selector")), Some(3.0));
        assert_eq!(of(&LabelSelector::parse("code=404").expect("a selector")), None);
        assert_eq!(values.of_pod("ns", "p", "other", &everything()), None);
        let all = |limit| values.of_namespace("ns", "q", &everything(), limit).map(|found| found.len());
        assert_eq!((all(2), all(1)), (Some(2), None));
        assert_eq!(values.of_namespace("other", "q", &everything(), 1), Some(Vec::new()));
        let total = values.total_of_namespace("ns", "q", &everything());
        assert_eq!(total.map(|found| found.value), Some(5.0));
    }

    #[test]
    fn rate_of_a_counter_is_between_two_pages() {
        let values = values();
        let store =
            |at, value| values.store("ns", "p", at, page(&[("r_total", "200", value)])).expect("stored");
        let rate = || values.of_pod("ns", "p", "r_per_second", &everything());
        store(10_000, 100.0);
        assert_eq!(rate(), None);
        store(20_000, 150.0);
        assert_eq!(rate(), Some(MetricValue { value: 5.0, at: 20_000, window: Some(10) }));
        // The process of the pod was restarted.
        store(30_000, 20.0);
        assert_eq!(rate().map(|found| found.value), Some(2.0));
        assert_eq!(values.names().into_iter().collect::<Vec<_>>(), ["r_per_second", "r_total"]);
        values.remove("ns", "p");
        assert_eq!(rate(), None);
    }

    #[test]
    fn rules_name_rates_and_averages() {
        let rules = AdapterRules::parse(
            b"{apiVersion: metrics.ferry.dev/v1alpha1, kind: MetricsAdapterConfiguration, metrics: [
              {series: busy_sum, name: busy, value: rate, aggregation: average}, {series: q, aggregation: average}]}",
        );
        let values = Values::new(MemoryLimits { total: 1 << 20, namespace: 1 << 20 }, rules.expect("valid"));
        let rows = |sum: f64| {
            page(&[
                ("busy_sum", "200", sum),
                ("busy_sum", "500", sum * 3.0),
                ("q", "200", 1.0),
                ("q", "500", 2.0),
            ])
        };
        values.store("ns", "p", 10_000, rows(10.0)).expect("stored");
        values.store("ns", "p", 20_000, rows(20.0)).expect("stored");
        let of = |metric: &str| values.of_pod("ns", "p", metric, &everything()).map(|found| found.value);
        assert_eq!((of("busy"), of("q"), of("busy_sum")), (Some(2.0), Some(1.5), Some(80.0)));
        let total = values.total_of_namespace("ns", "q", &everything());
        assert_eq!(total.map(|found| found.value), Some(1.5));
        assert!(values.names().contains("busy"));
    }

    #[test]
    fn memory_is_bounded_in_all_and_by_namespace() {
        let one = || page(&[("q_total", "200", 2.0), ("q_total", "500", 3.0)]);
        let bytes = size(&one());
        let limits = MemoryLimits { total: bytes * 5, namespace: bytes * 3 };
        let values = Values::new(limits, AdapterRules::default());
        values.store("a", "1", 1, one()).expect("stored");
        values.store("a", "2", 1, one()).expect("stored");
        values.store("a", "2", 2, one()).expect("replaces its own; the page before remains for rates");
        assert_eq!(values.store("a", "3", 1, one()), Err(MemoryError::Namespace(bytes * 3)));
        values.store("b", "1", 1, one()).expect("another namespace has its share");
        values.store("b", "2", 1, one()).expect("stored");
        assert_eq!(values.store("c", "1", 1, one()), Err(MemoryError::Total(bytes * 5)));
        values.retain(|namespace, _| namespace != "a");
        values.store("c", "1", 1, one()).expect("memory of pods that are gone is free");
        values.remove("b", "1");
        values.remove("b", "2");
        values.remove("c", "1");
        let stored = values.stored.read();
        assert!(stored.total == 0 && stored.namespaces.is_empty());
    }
}
