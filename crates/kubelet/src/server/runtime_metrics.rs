//! Metrics that the runtime has of its own, beside those that are made of what it measures for everybody.

use std::collections::{BTreeMap, BTreeSet};

use cri::v1::{Metric, MetricDescriptor, MetricType, PodSandboxMetrics};

use super::metrics::Page;

/// Whose metrics: container (none for those of a pod), namespace and pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    pub container: String,
    pub namespace: String,
    pub pod: String,
}

/// Labels that every row has, whatever the runtime says.
const OURS: [&str; 5] = ["container", "id", "name", "namespace", "pod"];

/// Writes what is not on the page already. `owners` are by the id of a container or a sandbox; what belongs to nobody is
/// left out.
pub fn write(
    page: &mut Page,
    descriptors: &[MetricDescriptor],
    all: &[PodSandboxMetrics],
    owners: &BTreeMap<String, Owner>,
    written: &BTreeSet<&str>,
) {
    let mut rows: BTreeMap<&str, Vec<(&Owner, &str, &Metric)>> = BTreeMap::new();
    for pod in all {
        let of_pod = std::iter::once((&pod.pod_sandbox_id, &pod.metrics));
        let of_containers = pod.container_metrics.iter().map(|one| (&one.container_id, &one.metrics));
        for (id, metrics) in of_pod.chain(of_containers) {
            let Some(owner) = owners.get(id) else { continue };
            for metric in metrics {
                rows.entry(&metric.name).or_default().push((owner, id, metric));
            }
        }
    }
    for descriptor in descriptors.iter().filter(|one| !written.contains(one.name.as_str())) {
        let Some(rows) = rows.get(descriptor.name.as_str()) else { continue };
        let counts = rows.iter().all(|row| row.2.metric_type() == MetricType::Counter);
        let kind = if counts { "counter" } else { "gauge" };
        page.metric(&descriptor.name, kind, &descriptor.help);
        for (owner, id, metric) in rows {
            let own = [&owner.container, *id, *id, &owner.namespace, &owner.pod];
            let mut labels: Vec<(&str, &str)> = OURS.into_iter().zip(own).collect();
            let more = descriptor.label_keys.iter().map(String::as_str).zip(&metric.label_values);
            labels.extend(
                more.filter(|(key, _)| !OURS.contains(key)).map(|(key, value)| (key, value.as_str())),
            );
            page.row(&descriptor.name, &labels, metric.value.as_ref().map_or(0, |value| value.value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cri::v1::{ContainerMetrics, UInt64Value};

    #[test]
    fn rows_have_owners() {
        let descriptor = |name: &str, keys: &[&str]| MetricDescriptor {
            name: name.to_owned(),
            help: "Some.".to_owned(),
            label_keys: keys.iter().map(|&key| key.to_owned()).collect(),
        };
        let metric = |name: &str, labels: &[&str], value| Metric {
            name: name.to_owned(),
            metric_type: MetricType::Counter as i32,
            label_values: labels.iter().map(|&label| label.to_owned()).collect(),
            value: Some(UInt64Value { value }),
            timestamp: 0,
        };
        let all = [PodSandboxMetrics {
            pod_sandbox_id: "s".into(),
            metrics: vec![metric("packets", &["s", "p", "eth0"], 7)],
            container_metrics: vec![
                ContainerMetrics {
                    container_id: "c1".into(),
                    metrics: vec![metric("known", &[], 1), metric("periods", &["c1", "c"], 3)],
                },
                ContainerMetrics { container_id: "c2".into(), metrics: vec![metric("periods", &[], 9)] },
            ],
        }];
        let owner =
            |container: &str| Owner { container: container.into(), namespace: "n".into(), pod: "p".into() };
        let owners = BTreeMap::from([("s".to_owned(), owner("")), ("c1".to_owned(), owner("c"))]);
        let descriptors = [
            descriptor("known", &[]),
            descriptor("periods", &["id", "name"]),
            descriptor("packets", &["id", "name", "interface"]),
            descriptor("never", &[]),
        ];
        let mut page = Page::default();
        write(&mut page, &descriptors, &all, &owners, &BTreeSet::from(["known"]));
        assert_eq!(
            page.text(),
            "# HELP periods Some.\n# TYPE periods counter\n\
             periods{container=\"c\",id=\"c1\",name=\"c1\",namespace=\"n\",pod=\"p\"} 3\n\
             # HELP packets Some.\n# TYPE packets counter\n\
             packets{container=\"\",id=\"s\",name=\"s\",namespace=\"n\",pod=\"p\",interface=\"eth0\"} 7\n"
        );
    }
}
