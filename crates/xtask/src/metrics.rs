//! Writes the facts about Kubernetes' metrics: `metrics.gz` of the `reference` crate.
//!
//! Reads the two lists below `test/instrumentation` of a Kubernetes source tree. Both are written by a program of Kubernetes
//! as YAML sequences of mappings with scalars and sequences; the list of stable metrics takes precedence.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};

const LISTS: [&str; 2] = ["testdata/stable-metrics-list.yaml", "documentation/documentation-list.yaml"];

/// Fields of a metric as in the lists; those of text that continues on further lines are cut off.
type Metric = BTreeMap<String, Vec<String>>;

pub fn generate(root: &Path, arguments: &[String]) -> Result<()> {
    let [directory] = arguments else {
        bail!("name the directory test/instrumentation of a Kubernetes source tree")
    };
    let mut facts: BTreeMap<String, Map<String, Value>> = BTreeMap::new();
    for list in LISTS {
        let path = Path::new(directory).join(list);
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))?;
        for metric in parse(&text)? {
            let fact = facts.entry(name(&metric)?).or_default();
            for (field, value) in fields(&metric)? {
                fact.entry(field).or_insert(value);
            }
        }
    }
    let records = facts.into_iter().map(|(name, fact)| (name, Value::Object(fact))).collect();
    crate::reference::write(root, reference::METRICS, records)
}

/// Metrics of a list.
fn parse(text: &str) -> Result<Vec<Metric>> {
    let mut metrics: Vec<Metric> = Vec::new();
    let mut current = String::new();
    for line in text.lines().filter(|line| !line.trim_start().starts_with('#')) {
        let (is_first, line) = match line.strip_prefix("- ") {
            Some(rest) => (true, rest),
            None => (false, line.strip_prefix("  ").unwrap_or(line)),
        };
        if is_first {
            metrics.push(Metric::new());
        }
        let Some(metric) = metrics.last_mut() else { bail!("a field before any metric: {line}") };
        if let Some(item) = line.strip_prefix("- ") {
            metric.entry(current.clone()).or_default().push(unquoted(item).to_owned());
        } else if let Some((field, value)) = line.split_once(':').filter(|_| !line.starts_with(' ')) {
            field.clone_into(&mut current);
            let value = unquoted(value.trim());
            let values = metric.entry(current.clone()).or_default();
            if !value.is_empty() {
                values.push(value.to_owned());
            }
        } else if current == "constLabels" {
            let label = line.split(':').next().unwrap_or_default().trim();
            metric.entry(current.clone()).or_default().push(label.to_owned());
        }
    }
    Ok(metrics)
}

fn unquoted(text: &str) -> &str {
    text.trim_matches(['"', '\''])
}

fn name(metric: &Metric) -> Result<String> {
    let part = |field: &str| metric.get(field).and_then(|values| values.first()).map(String::as_str);
    let name = part("name").context("a metric without name")?;
    let parts = [part("namespace"), part("subsystem"), Some(name)];
    Ok(parts.into_iter().flatten().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("_"))
}

fn fields(metric: &Metric) -> Result<Vec<(String, Value)>> {
    let mut fields = Vec::new();
    let values = |field: &str| metric.get(field).filter(|values| !values.is_empty());
    for (field, fact) in
        [("type", "type"), ("stabilityLevel", "stability"), ("deprecatedVersion", "deprecated")]
    {
        if let Some(value) = values(field) {
            fields.push((fact.to_owned(), json!(value[0])));
        }
    }
    let mut labels: Vec<&String> =
        ["labels", "constLabels"].into_iter().filter_map(values).flatten().collect();
    labels.sort();
    if !labels.is_empty() {
        fields.push(("labels".to_owned(), json!(labels)));
    }
    if let Some(buckets) = values("buckets") {
        let parse = |text: &String| text.parse::<f64>().with_context(|| format!("bucket {text}"));
        fields.push(("buckets".to_owned(), json!(buckets.iter().map(parse).collect::<Result<Vec<_>>>()?)));
    }
    if let Some(endpoints) = values("componentEndpoints") {
        let component = |text: &String| text.strip_prefix("component: ").map(str::to_owned);
        let mut components: Vec<String> = endpoints.iter().filter_map(component).collect();
        components.sort();
        components.dedup();
        fields.push(("components".to_owned(), json!(components)));
    }
    Ok(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "\
- name: wait_seconds
  subsystem: scheduler
  namespace: ferry
  help: 'Time: until the pod
    is bound.'
  type: Histogram
  stabilityLevel: BETA
  deprecatedVersion: 1.2.0
  labels:
  - result
  - cause
  constLabels:
    phase: executing
  buckets:
  - 0.5
  - 1e+06
  componentEndpoints:
  - component: kube-scheduler
    endpoint: /metrics
  - component: kubelet
    endpoint: /metrics
- name: plain
  help: \"\"
  type: Gauge
  stabilityLevel: ALPHA
";

    #[test]
    fn list_is_read() {
        let metrics = parse(LIST).expect("a list");
        let names: Vec<_> = metrics.iter().map(|metric| name(metric).expect("a name")).collect();
        assert_eq!(names, ["ferry_scheduler_wait_seconds", "plain"]);
        let facts: Map<String, Value> = fields(&metrics[0]).expect("fields").into_iter().collect();
        let want = json!({"type": "Histogram", "stability": "BETA", "deprecated": "1.2.0",
            "labels": ["cause", "phase", "result"], "buckets": [0.5, 1e6],
            "components": ["kube-scheduler", "kubelet"]});
        assert_eq!(Value::Object(facts), want);
        let plain: Map<String, Value> = fields(&metrics[1]).expect("fields").into_iter().collect();
        assert_eq!(Value::Object(plain), json!({"type": "Gauge", "stability": "ALPHA"}));
    }
}
