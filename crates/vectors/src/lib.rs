//! Test vectors of rules that several crates implement on their own object models. Each implementation has a test that
//! runs all vectors of its rule. The expected results are those of Kubernetes v1.36 with its default feature gates.

use std::collections::BTreeMap;

use serde_json::Value;

/// Rows of one of the data files.
fn rows(text: &str) -> Vec<Value> {
    let rows: Value = serde_json::from_str(text).expect("valid JSON");
    let rows = rows.as_array().expect("a list").clone();
    assert!(!rows.is_empty());
    rows
}

fn text(row: &Value, field: &str) -> String {
    row[field].as_str().unwrap_or_else(|| panic!("{field} is missing in {row}")).to_owned()
}

fn flag(row: &Value, field: &str) -> bool {
    row[field].as_bool().unwrap_or_else(|| panic!("{field} is missing in {row}"))
}

fn texts(row: &Value, field: &str) -> BTreeMap<String, String> {
    let entries = row[field].as_object().unwrap_or_else(|| panic!("{field} is missing in {row}"));
    let text = |value: &Value| value.as_str().expect("a string").to_owned();
    entries.iter().map(|(name, value)| (name.clone(), text(value))).collect()
}

/// A label selector, labels, and whether they match. An invalid selector matches nothing.
pub struct Selector {
    pub name: String,
    /// A `LabelSelector`, or null.
    pub selector: Value,
    pub labels: BTreeMap<String, String>,
    pub matches: bool,
}

#[must_use]
pub fn selectors() -> Vec<Selector> {
    let read = |row: &Value| Selector {
        name: text(row, "name"),
        selector: row["selector"].clone(),
        labels: texts(row, "labels"),
        matches: flag(row, "matches"),
    };
    rows(include_str!("../data/selectors.json")).iter().map(read).collect()
}

/// A toleration and a taint.
pub struct Toleration {
    pub name: String,
    pub toleration: Value,
    pub taint: Value,
    pub tolerated: bool,
}

#[must_use]
pub fn tolerations() -> Vec<Toleration> {
    let read = |row: &Value| Toleration {
        name: text(row, "name"),
        toleration: row["toleration"].clone(),
        taint: row["taint"].clone(),
        tolerated: flag(row, "tolerated"),
    };
    rows(include_str!("../data/tolerations.json")).iter().map(read).collect()
}

/// Node selector and required node affinity of a pod spec, applied to [`NODE_NAME`] with [`node_labels`].
pub struct NodeAffinity {
    pub name: String,
    pub spec: Value,
    pub matches: bool,
}

pub const NODE_NAME: &str = "n1";

#[must_use]
pub fn node_labels() -> BTreeMap<String, String> {
    let labels = [("zone", "a"), ("disk", "ssd"), ("cpus", "8")];
    labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

#[must_use]
pub fn node_affinities() -> Vec<NodeAffinity> {
    let read = |row: &Value| NodeAffinity {
        name: text(row, "name"),
        spec: row["spec"].clone(),
        matches: flag(row, "matches"),
    };
    rows(include_str!("../data/node_affinity.json")).iter().map(read).collect()
}

/// A pod and its QoS class.
pub struct QosClass {
    pub name: String,
    pub pod: Value,
    pub class: String,
}

impl QosClass {
    /// The class is in the status: implementations that only know the spec do not apply.
    #[must_use]
    pub fn has_status(&self) -> bool {
        self.pod.get("status").is_some()
    }
}

#[must_use]
pub fn qos_classes() -> Vec<QosClass> {
    let read = |row: &Value| QosClass {
        name: text(row, "name"),
        pod: row["pod"].clone(),
        class: text(row, "class"),
    };
    rows(include_str!("../data/qos.json")).iter().map(read).collect()
}

/// Requests and limits of a whole pod.
pub struct PodResources {
    pub name: String,
    pub pod: Value,
    pub requests: BTreeMap<String, String>,
    /// Quota does not count the status of pod-level resources.
    pub quota_requests: BTreeMap<String, String>,
    pub limits: BTreeMap<String, String>,
}

impl PodResources {
    /// The result depends on the status: implementations that only know the spec do not apply.
    #[must_use]
    pub fn has_status(&self) -> bool {
        self.pod.get("status").is_some()
    }

    /// The pod only has resources of containers.
    #[must_use]
    pub fn has_only_containers(&self) -> bool {
        let spec = &self.pod["spec"];
        !self.has_status() && spec.get("resources").is_none() && spec.get("overhead").is_none()
    }
}

#[must_use]
pub fn pod_resources() -> Vec<PodResources> {
    let read = |row: &Value| PodResources {
        name: text(row, "name"),
        pod: row["pod"].clone(),
        requests: texts(row, "requests"),
        quota_requests: texts(row, if row.get("quota").is_some() { "quota" } else { "requests" }),
        limits: texts(row, "limits"),
    };
    rows(include_str!("../data/pod_resources.json")).iter().map(read).collect()
}

/// CPU requests of a pod, or of one of its containers, as the horizontal pod autoscaler counts them.
pub struct AutoscalerRequests {
    pub name: String,
    pub pod: Value,
    pub container: Option<String>,
    /// Milli-CPUs, or the error.
    pub milli_cpu: Result<i64, String>,
}

#[must_use]
pub fn autoscaler_requests() -> Vec<AutoscalerRequests> {
    let read = |row: &Value| AutoscalerRequests {
        name: text(row, "name"),
        pod: row["pod"].clone(),
        container: row["container"].as_str().map(str::to_owned),
        milli_cpu: row["milliCpu"].as_i64().ok_or_else(|| text(row, "error")),
    };
    rows(include_str!("../data/autoscaler_requests.json")).iter().map(read).collect()
}

/// Quota usage of an object.
pub struct QuotaUsage {
    pub name: String,
    pub group: String,
    pub resource: String,
    pub object: Value,
    pub used: BTreeMap<String, String>,
}

#[must_use]
pub fn quota_usages() -> Vec<QuotaUsage> {
    let read = |row: &Value| QuotaUsage {
        name: text(row, "name"),
        group: row["group"].as_str().unwrap_or_default().to_owned(),
        resource: text(row, "resource"),
        object: row["object"].clone(),
        used: texts(row, "used"),
    };
    let mut all: Vec<QuotaUsage> = rows(include_str!("../data/quota_usage.json")).iter().map(read).collect();
    all.extend(pod_resources().into_iter().map(of_pod));
    all
}

/// Pods are counted with their requests and limits, by the names that quotas have for them.
fn of_pod(resources: PodResources) -> QuotaUsage {
    let mut used: BTreeMap<String, String> =
        ["count/pods", "pods"].into_iter().map(|name| (name.to_owned(), "1".to_owned())).collect();
    let compute = |name: &str| matches!(name, "cpu" | "memory" | "ephemeral-storage");
    for (name, amount) in resources.quota_requests {
        if compute(&name) || name.starts_with("hugepages-") {
            used.insert(name.clone(), amount.clone());
        }
        used.insert(format!("requests.{name}"), amount);
    }
    for (name, amount) in resources.limits.into_iter().filter(|(name, _)| compute(name)) {
        used.insert(format!("limits.{name}"), amount);
    }
    QuotaUsage {
        name: resources.name,
        group: String::new(),
        resource: "pods".to_owned(),
        object: resources.pod,
        used,
    }
}

/// A quota scope and an object.
pub struct QuotaScope {
    pub name: String,
    pub resource: String,
    pub object: Value,
    /// A `ScopedResourceSelectorRequirement`.
    pub scope: Value,
    pub matches: bool,
}

#[must_use]
pub fn quota_scopes() -> Vec<QuotaScope> {
    let read = |row: &Value| QuotaScope {
        name: text(row, "name"),
        resource: text(row, "resource"),
        object: row["object"].clone(),
        scope: row["scope"].clone(),
        matches: flag(row, "matches"),
    };
    rows(include_str!("../data/quota_scopes.json")).iter().map(read).collect()
}

/// Phases of a pod, and whether it has finished; "" is a pod without a phase.
pub const PHASES: [(&str, bool); 6] = [
    ("", false),
    ("Pending", false),
    ("Running", false),
    ("Unknown", false),
    ("Succeeded", true),
    ("Failed", true),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    /// Names identify vectors in failures.
    #[test]
    fn names_are_unique() {
        let names: [Vec<String>; 7] = [
            super::selectors().into_iter().map(|row| row.name).collect(),
            super::tolerations().into_iter().map(|row| row.name).collect(),
            super::node_affinities().into_iter().map(|row| row.name).collect(),
            super::qos_classes().into_iter().map(|row| row.name).collect(),
            super::autoscaler_requests().into_iter().map(|row| row.name).collect(),
            super::quota_usages().into_iter().map(|row| row.name).collect(),
            super::quota_scopes().into_iter().map(|row| row.name).collect(),
        ];
        for list in names {
            let unique: BTreeSet<&String> = list.iter().collect();
            assert_eq!(unique.len(), list.len(), "{list:?}");
        }
    }
}
