//! LimitRanger: applies the default resources of a namespace's limit ranges to containers and enforces their bounds.

use super::{Attributes, Operation, Plugin};
use crate::registry::Registry;
use api::pod_spec::resources::quantity;
use api::pod_spec::totals::container_totals;
use api::value::Fields;
use async_trait::async_trait;
use machinery::quantity::Quantity;
use machinery::status::Result;
use machinery::{Map, Value, meta};
use std::collections::BTreeMap;

const ANNOTATION: &str = "kubernetes.io/limit-ranger";
/// Larger values overflow in thousandths.
const MAX_MILLI: i64 = i64::MAX / 1000;

type Amounts = BTreeMap<String, Quantity>;

pub struct LimitRanger;

#[async_trait]
impl Plugin for LimitRanger {
    fn name(&self) -> &'static str {
        "LimitRanger"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        match attributes.operation {
            Operation::Create => attributes.is("", "pods") || attributes.is("", "persistentvolumeclaims"),
            Operation::Update => {
                attributes.is("", "persistentvolumeclaims") || attributes.is_subresource("", "pods", "resize")
            }
            Operation::Delete | Operation::Connect => false,
        }
    }

    async fn mutate(
        &self,
        registry: &Registry,
        attributes: &Attributes<'_>,
        object: Option<&mut Value>,
        old: Option<&Value>,
    ) -> Result<()> {
        let Some(pod) = object.filter(|_| attributes.served.kind.resource() == "pods") else {
            return Ok(());
        };
        if old.is_some_and(|old| meta::deletion_timestamp(old).is_some()) {
            return Ok(());
        }
        for range in ranges(registry, attributes).await? {
            fill(pod, &range);
        }
        Ok(())
    }

    async fn validate(
        &self,
        registry: &Registry,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<()> {
        let Some(object) = object else { return Ok(()) };
        if old.is_some_and(|old| meta::deletion_timestamp(old).is_some()) {
            return Ok(());
        }
        for range in ranges(registry, attributes).await? {
            let found = match attributes.served.kind.resource() {
                "pods" => check_pod(object, &range),
                _ => check_claim(object, &range),
            };
            if !found.is_empty() {
                return Err(attributes.forbidden(machinery::status::aggregate_texts(&found)));
            }
        }
        Ok(())
    }
}

async fn ranges(registry: &Registry, attributes: &Attributes<'_>) -> Result<Vec<Value>> {
    registry.find_all(("", "v1", "limitranges"), attributes.context.namespace, "").await
}

fn limits<'a>(range: &'a Value, kind: &'a str) -> impl Iterator<Item = &'a Value> {
    range.field("spec").items("limits").iter().filter(move |limit| limit.text("type") == kind)
}

/// Sets missing requests and limits of containers, and records that in an annotation.
fn fill(pod: &mut Value, range: &Value) {
    let mut requests = Map::new();
    let mut maxima = Map::new();
    for limit in limits(range, "Container") {
        requests.extend(limit.entries("defaultRequest").cloned().unwrap_or_default());
        maxima.extend(limit.entries("default").cloned().unwrap_or_default());
    }
    let mut notes = Vec::new();
    for (list, what) in [("containers", "container"), ("initContainers", "init container")] {
        for container in pod.child_mut("spec").items_mut(list) {
            let name = container.text("name").to_owned();
            for (field, defaults, word) in [("requests", &requests, "request"), ("limits", &maxima, "limit")]
            {
                let missing: Vec<&str> = defaults
                    .keys()
                    .map(String::as_str)
                    .filter(|key| !container.field("resources").field(field).has(key))
                    .collect();
                if missing.is_empty() {
                    continue;
                }
                let resources = container.child_mut("resources").child_mut(field);
                for key in &missing {
                    resources.set(key, defaults[*key].clone());
                }
                notes.push(format!("{} {word} for {what} {name}", missing.join(", ")));
            }
        }
    }
    if !notes.is_empty() {
        let note = format!("LimitRanger plugin set: {}", notes.join("; "));
        pod.child_mut("metadata").child_mut("annotations").set(ANNOTATION, note);
    }
}

fn check_claim(claim: &Value, range: &Value) -> Vec<String> {
    let requests = amounts(claim.at("spec.resources.requests"));
    let mut found = Vec::new();
    for limit in limits(range, "PersistentVolumeClaim") {
        let subject = Subject { kind: limit.text("type"), requests: &requests, limits: &Amounts::new() };
        found
            .extend(amounts(limit.field("min")).iter().filter_map(|(name, least)| subject.min(name, *least)));
        found.extend(
            amounts(limit.field("max")).iter().filter_map(|(name, most)| subject.max_request(name, *most)),
        );
    }
    found
}

fn check_pod(pod: &Value, range: &Value) -> Vec<String> {
    let spec = pod.field("spec");
    let mut found = Vec::new();
    for limit in range.field("spec").items("limits") {
        match limit.text("type") {
            "Container" => {
                for container in spec.items("containers").iter().chain(spec.items("initContainers")) {
                    let resources = container.field("resources");
                    let requests = amounts(resources.field("requests"));
                    let limits = amounts(resources.field("limits"));
                    Subject { kind: "Container", requests: &requests, limits: &limits }
                        .check(limit, &mut found);
                }
            }
            "Pod" => {
                let requests = pod_amounts(spec, "requests");
                let limits = pod_amounts(spec, "limits");
                Subject { kind: "Pod", requests: &requests, limits: &limits }.check(limit, &mut found);
            }
            _ => {}
        }
    }
    found
}

/// Requests or limits of the pod: pod-level resources override the containers' for CPU and memory.
fn pod_amounts(spec: &Value, list: &str) -> Amounts {
    let mut total = container_totals(spec, list);
    for (name, amount) in amounts(spec.field("resources").field(list)) {
        if matches!(name.as_str(), "cpu" | "memory") {
            total.insert(name, amount);
        }
    }
    total
}

fn amounts(list: &Value) -> Amounts {
    let entries = list.as_object().into_iter().flatten();
    entries.map(|(name, value)| (name.clone(), quantity(value))).collect()
}

/// Requests and limits that are checked against a limit.
struct Subject<'a> {
    kind: &'a str,
    requests: &'a Amounts,
    limits: &'a Amounts,
}

impl Subject<'_> {
    fn check(&self, limit: &Value, found: &mut Vec<String>) {
        found.extend(amounts(limit.field("min")).iter().filter_map(|(name, least)| self.min(name, *least)));
        found.extend(amounts(limit.field("max")).iter().filter_map(|(name, most)| self.max(name, *most)));
        let ratios = amounts(limit.field("maxLimitRequestRatio"));
        found.extend(ratios.iter().filter_map(|(name, most)| self.ratio(name, *most)));
    }

    /// Request, limit and bound at the same precision.
    fn values(&self, name: &str, bound: Quantity) -> (i64, i64, i64) {
        let request = self.requests.get(name).copied().unwrap_or_default();
        let limit = self.limits.get(name).copied().unwrap_or_default();
        let all = [request, limit, bound];
        let [request, limit, bound] = if all.iter().all(|amount| amount.value() <= MAX_MILLI) {
            all.map(|amount| amount.milli_value())
        } else {
            all.map(|amount| amount.value())
        };
        (request, limit, bound)
    }

    fn min(&self, name: &str, least: Quantity) -> Option<String> {
        let (request, limit, bound) = self.values(name, least);
        let start = format!("minimum {name} usage per {} is {least}", self.kind);
        let Some(requested) = self.requests.get(name) else {
            return Some(format!("{start}.  No request is specified"));
        };
        if request < bound {
            return Some(format!("{start}, but request is {requested}"));
        }
        let allowed = self.limits.get(name).filter(|_| limit < bound)?;
        Some(format!("{start}, but limit is {allowed}"))
    }

    fn max_request(&self, name: &str, most: Quantity) -> Option<String> {
        let (request, _, bound) = self.values(name, most);
        let start = format!("maximum {name} usage per {} is {most}", self.kind);
        match self.requests.get(name) {
            None => Some(format!("{start}.  No request is specified")),
            Some(requested) if request > bound => Some(format!("{start}, but request is {requested}")),
            Some(_) => None,
        }
    }

    fn max(&self, name: &str, most: Quantity) -> Option<String> {
        let (request, limit, bound) = self.values(name, most);
        let start = format!("maximum {name} usage per {} is {most}", self.kind);
        let Some(allowed) = self.limits.get(name) else {
            return Some(format!("{start}.  No limit is specified"));
        };
        if limit > bound {
            return Some(format!("{start}, but limit is {allowed}"));
        }
        let requested = self.requests.get(name).filter(|_| request > bound)?;
        Some(format!("{start}, but request is {requested}"))
    }

    fn ratio(&self, name: &str, most: Quantity) -> Option<String> {
        let (request, limit, _) = self.values(name, most);
        let start = format!("{name} max limit to request ratio per {} is {most}", self.kind);
        if request == 0 {
            return Some(format!("{start}, but no request is specified or request is 0"));
        }
        if limit == 0 {
            return Some(format!("{start}, but no limit is specified or limit is 0"));
        }
        #[expect(clippy::cast_precision_loss, reason = "a ratio is an approximation")]
        let ratio = limit as f64 / request as f64;
        (ratio > most.as_f64()).then(|| format!("{start}, but provided ratio is {ratio:.6}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn range(limit: Value) -> Value {
        json!({"spec": {"limits": [limit]}})
    }

    #[test]
    fn container_defaults_are_set_and_annotated() {
        let range = range(
            json!({"type": "Container", "default": {"cpu": "1", "memory": "1Gi"}, "defaultRequest": {"cpu": "500m"}}),
        );
        let mut pod = json!({"spec": {"containers": [
            {"name": "a", "resources": {"limits": {"cpu": "2"}}},
            {"name": "b", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2", "memory": "2Gi"}}},
        ]}});
        fill(&mut pod, &range);
        assert_eq!(
            pod["spec"]["containers"][0]["resources"],
            json!({"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "500m"}})
        );
        assert_eq!(
            pod["metadata"]["annotations"][ANNOTATION],
            "LimitRanger plugin set: cpu request for container a; memory limit for container a"
        );
    }

    #[test]
    fn limit_violations_have_kubernetes_messages() {
        let pod = json!({"spec": {"containers": [
            {"name": "a", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "4"}}},
        ]}});
        for (limit, want) in [
            (json!({"min": {"cpu": "2"}}), "minimum cpu usage per Container is 2, but request is 1"),
            (
                json!({"min": {"memory": "1Gi"}}),
                "minimum memory usage per Container is 1Gi.  No request is specified",
            ),
            (json!({"max": {"cpu": "3"}}), "maximum cpu usage per Container is 3, but limit is 4"),
            (
                json!({"max": {"memory": "1Gi"}}),
                "maximum memory usage per Container is 1Gi.  No limit is specified",
            ),
            (
                json!({"maxLimitRequestRatio": {"cpu": "3"}}),
                "cpu max limit to request ratio per Container is 3, but provided ratio is 4.000000",
            ),
        ] {
            let mut limit = limit;
            limit["type"] = "Container".into();
            assert_eq!(check_pod(&pod, &range(limit)), [want]);
        }
        let claim = json!({"spec": {"resources": {"requests": {"storage": "10Gi"}}}});
        let range = range(json!({"type": "PersistentVolumeClaim", "max": {"storage": "5Gi"}}));
        assert_eq!(
            check_claim(&claim, &range),
            ["maximum storage usage per PersistentVolumeClaim is 5Gi, but request is 10Gi"]
        );
    }
}
