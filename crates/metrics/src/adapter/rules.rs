//! The configuration file of the adapter: further pods to scrape, and how series are served.

use super::page::ScrapeTarget;
use crate::record::PodRecord;
use machinery::selector::LabelSelector;
use serde::Deserialize;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

const API_VERSION: &str = "metrics.ferry.dev/v1alpha1";
const KIND: &str = "MetricsAdapterConfiguration";
/// Entries of each list, at most.
const MAX_ENTRIES: usize = 1000;

/// Reason why a configuration is not usable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdapterRulesError {
    #[error("not YAML or JSON: {0}")]
    Decode(String),
    #[error("expected apiVersion {API_VERSION} and kind {KIND}")]
    Kind,
    #[error("more than {MAX_ENTRIES} entries in {0}")]
    TooMany(&'static str),
    #[error("pods[{index}]: {reason}")]
    Pods { index: usize, reason: String },
    #[error("metrics[{index}]: {reason}")]
    Metrics { index: usize, reason: String },
}

/// The value of a metric: that of its series, or its growth per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ValueKind {
    #[default]
    Plain,
    Rate,
}

/// The value of several series together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Aggregation {
    #[default]
    Sum,
    Average,
}

impl Aggregation {
    /// The value of these together; `None` if there are none.
    pub fn of(self, values: impl Iterator<Item = f64>) -> Option<f64> {
        let (mut sum, mut count) = (0.0, 0.0);
        for value in values {
            sum += value;
            count += 1.0;
        }
        match self {
            _ if count == 0.0 => None,
            Self::Sum => Some(sum),
            Self::Average => Some(sum / count),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    api_version: String,
    kind: String,
    #[serde(default)]
    annotations: Option<bool>,
    #[serde(default)]
    pods: Vec<PodsEntry>,
    #[serde(default)]
    metrics: Vec<MetricEntry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PodsEntry {
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    selector: String,
    port: u16,
    #[serde(default)]
    path: Option<String>,
    #[serde(default)]
    scheme: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct MetricEntry {
    series: String,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    value: ValueKind,
    #[serde(default)]
    aggregation: Aggregation,
}

/// Pods that are scraped without annotations.
#[derive(Clone, Debug)]
struct SelectedPods {
    /// Of all namespaces if empty.
    namespace: String,
    selector: LabelSelector,
    target: ScrapeTarget,
}

/// A served metric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricRule {
    /// The series of pages that its value is from.
    pub series: Box<str>,
    pub value: ValueKind,
    pub aggregation: Aggregation,
}

/// Rules of the adapter. Without a file, annotated pods are scraped and their series are served by their names.
#[derive(Clone, Debug)]
pub struct AdapterRules {
    annotations: bool,
    pods: Vec<SelectedPods>,
    /// By served name.
    metrics: Arc<BTreeMap<Box<str>, MetricRule>>,
    /// Series that a rule serves as a rate.
    rates: Arc<HashSet<Box<str>>>,
}

impl Default for AdapterRules {
    fn default() -> Self {
        Self { annotations: true, pods: Vec::new(), metrics: Arc::default(), rates: Arc::default() }
    }
}

impl AdapterRules {
    /// Rules of a file in YAML or JSON.
    pub fn parse(text: &[u8]) -> Result<Self, AdapterRulesError> {
        let decoded = machinery::codec::yaml::decode(text);
        let decoded = decoded.map_err(|error| AdapterRulesError::Decode(error.to_string()))?;
        if let Some(objection) = decoded.strict.first() {
            return Err(AdapterRulesError::Decode(objection.to_string()));
        }
        let file: File = serde_json::from_value(decoded.value)
            .map_err(|error| AdapterRulesError::Decode(error.to_string()))?;
        if file.api_version != API_VERSION || file.kind != KIND {
            return Err(AdapterRulesError::Kind);
        }
        for (list, length) in [("pods", file.pods.len()), ("metrics", file.metrics.len())] {
            if length > MAX_ENTRIES {
                return Err(AdapterRulesError::TooMany(list));
            }
        }
        let pods =
            file.pods.into_iter().enumerate().map(|(index, entry)| {
                entry.rule().map_err(|reason| AdapterRulesError::Pods { index, reason })
            });
        let pods = pods.collect::<Result<_, _>>()?;
        let (mut metrics, mut rates) = (BTreeMap::new(), HashSet::new());
        for (index, entry) in file.metrics.into_iter().enumerate() {
            let refused = |reason: &str| AdapterRulesError::Metrics { index, reason: reason.to_owned() };
            let name = entry.name.unwrap_or_else(|| entry.series.clone());
            if entry.series.is_empty() || name.is_empty() {
                return Err(refused("series and name must not be empty"));
            }
            if name.contains('/') {
                return Err(refused("a name must not contain a slash"));
            }
            let series: Box<str> = entry.series.into();
            if entry.value == ValueKind::Rate {
                rates.insert(series.clone());
            }
            let rule = MetricRule { series, value: entry.value, aggregation: entry.aggregation };
            if metrics.insert(name.into(), rule).is_some() {
                return Err(refused("two entries have the same name"));
            }
        }
        Ok(Self {
            annotations: file.annotations.unwrap_or(true),
            pods,
            metrics: Arc::new(metrics),
            rates: Arc::new(rates),
        })
    }

    /// The place of a pod's metrics: that of its annotations, or else of the first entry that selects it.
    pub fn target<'a>(&'a self, pod: &'a PodRecord) -> Option<&'a ScrapeTarget> {
        let annotated = pod.scrape.as_deref().filter(|_| self.annotations);
        annotated.or_else(|| {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            let selects = |rule: &&SelectedPods| {
                (rule.namespace.is_empty() || rule.namespace == namespace)
                    && (rule.selector.is_empty() || rule.selector.matches(&*pod.labels))
            };
            self.pods.iter().find(selects).map(|rule| &rule.target)
        })
    }

    /// The rule of a served name.
    pub fn metric(&self, name: &str) -> Option<&MetricRule> {
        self.metrics.get(name)
    }

    /// Served names and their rules.
    pub fn metrics(&self) -> impl Iterator<Item = (&str, &MetricRule)> {
        self.metrics.iter().map(|(name, rule)| (&**name, rule))
    }

    /// Reports whether the rate of a series is served by a rule.
    pub fn has_rate(&self, series: &str) -> bool {
        self.rates.contains(series)
    }

    /// The value of several series of a metric together.
    pub fn aggregation(&self, name: &str) -> Aggregation {
        self.metric(name).map(|rule| rule.aggregation).unwrap_or_default()
    }
}

impl PodsEntry {
    fn rule(self) -> Result<SelectedPods, String> {
        let selector = LabelSelector::parse(&self.selector).map_err(|error| error.to_string())?;
        let secure = match self.scheme.as_deref() {
            None | Some("http") => false,
            Some("https") => true,
            Some(_) => return Err("scheme must be http or https".to_owned()),
        };
        let path = self.path.unwrap_or_else(|| "/metrics".to_owned());
        if self.port == 0 || !path.starts_with('/') || path.len() > 1024 {
            return Err("port must not be 0, and path must begin with a slash".to_owned());
        }
        let target = ScrapeTarget { port: self.port, path, secure };
        Ok(SelectedPods { namespace: self.namespace, selector, target })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use objects::meta::v1::ObjectMeta;

    fn parse(body: &str) -> Result<AdapterRules, AdapterRulesError> {
        AdapterRules::parse(format!("apiVersion: {API_VERSION}\nkind: {KIND}\n{body}").as_bytes())
    }

    fn pod(namespace: &str, app: &str, annotated: Option<u16>) -> PodRecord {
        let target = |port| Box::new(ScrapeTarget { port, path: "/metrics".to_owned(), secure: false });
        PodRecord {
            metadata: ObjectMeta { namespace: Some(namespace.to_owned()), ..ObjectMeta::default() },
            labels: [("app".into(), app.into())].into(),
            scrape: annotated.map(target),
            ..PodRecord::default()
        }
    }

    #[test]
    fn selected_pods_are_scraped_without_annotations() {
        let rules = parse(
            "pods:\n- {namespace: shop, selector: app=web, port: 8080}\n\
             - {selector: 'app in (queue)', port: 9100, path: /m, scheme: https}\n",
        )
        .expect("valid");
        let port = |pod: PodRecord| rules.target(&pod).map(|target| (target.port, target.secure));
        assert_eq!(port(pod("shop", "web", None)), Some((8080, false)));
        assert_eq!(port(pod("other", "web", None)), None);
        assert_eq!(port(pod("other", "queue", None)), Some((9100, true)));
        assert_eq!(port(pod("shop", "web", Some(7))), Some((7, false)), "annotations have precedence");
        let without = parse("annotations: false").expect("valid");
        assert_eq!(without.target(&pod("shop", "web", Some(7))), None);
        assert!(AdapterRules::default().target(&pod("shop", "web", Some(7))).is_some());
    }

    #[test]
    fn metrics_have_a_name_a_value_and_an_aggregation() {
        let rules = parse(
            "metrics:\n- {series: t_seconds_sum, name: busy, value: rate, aggregation: average}\n- {series: jobs}\n",
        )
        .expect("valid");
        let rule = rules.metric("busy").expect("a rule");
        assert_eq!((&*rule.series, rule.value), ("t_seconds_sum", ValueKind::Rate));
        assert_eq!(
            (rules.aggregation("busy"), rules.aggregation("jobs")),
            (Aggregation::Average, Aggregation::Sum)
        );
        assert!(rules.has_rate("t_seconds_sum") && !rules.has_rate("jobs"));
    }

    #[test]
    fn wrong_configurations_are_refused() {
        for (body, part) in [
            ("pods:\n- {selector: 'a=', port: 0}", "port must not be 0"),
            ("pods:\n- {selector: '=', port: 1}", "pods[0]"),
            ("pods:\n- {port: 1, scheme: ftp}", "scheme must be"),
            ("pods:\n- {port: 70000}", "not YAML or JSON"),
            ("metrics:\n- {series: a}\n- {series: b, name: a}", "metrics[1]: two entries"),
            ("metrics:\n- {series: ''}", "must not be empty"),
            ("metrics:\n- {series: a, name: a/b}", "slash"),
            ("metrics:\n- {series: a, value: median}", "not YAML or JSON"),
            ("unknown: 1", "unknown"),
        ] {
            let error = parse(body).expect_err(body).to_string();
            assert!(error.contains(part), "{body}: {error}");
        }
        assert_eq!(AdapterRules::parse(b"{apiVersion: v1, kind: Pod}").err(), Some(AdapterRulesError::Kind));
    }
}
