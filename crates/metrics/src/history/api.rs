//! The API `usage.ferry.dev/v1alpha1`: summaries of the history of nodes and pods.

use super::advice::{FEWEST_POINTS, advise};
use super::ring::{History, SeriesKey};
use super::summary::{Quantiles, Spans};
use crate::record::{Amount, PodRecord};
use crate::serve::{Answer, Query, ServedResource, json_reply, refusal};
use http::{Method, Uri};
use machinery::quantity::{Format, Quantity};
use machinery::status::{Result, Status};
use runtime::Cache;
use serde_json::{Value, json};
use std::collections::BTreeMap;

pub const HISTORY_GROUP: &str = "usage.ferry.dev";
pub const HISTORY_VERSION: &str = "v1alpha1";
pub const HISTORY_RESOURCES: [ServedResource; 2] = [
    ServedResource { name: "nodes", kind: "NodeUsage", namespaced: false, verbs: &["list"] },
    ServedResource { name: "pods", kind: "PodUsage", namespaced: true, verbs: &["list"] },
];

/// Points of a sparkline, by default and at most.
const POINTS: usize = 48;
const MAX_POINTS: usize = 500;
/// Points of all sparklines of a response together, at most, as far as each has one. More series have coarser ones.
const MAX_ALL_POINTS: usize = 240_000;
/// Steps of advised requests: 5 thousandths of a core, a mebibyte.
const CPU_STEP: u64 = 5;
const MEMORY_STEP: u64 = 1 << 20;

/// Answers a request whose user may make it. Reads the disk.
pub fn answer(history: &History, pods: &Cache<PodRecord>, now: i64, method: &Method, uri: &Uri) -> Answer {
    let outcome = match *method {
        Method::GET | Method::HEAD => read(history, pods, now, uri),
        _ => Err(Status::method_not_allowed(HISTORY_GROUP, "pods", &method.as_str().to_ascii_lowercase())),
    };
    outcome.map_or_else(|status| refusal(&status), |body| json_reply(&body))
}

struct Summary {
    cpu: (Quantiles, Spans),
    memory: (Quantiles, Spans),
    count: u64,
}

fn read(history: &History, pods: &Cache<PodRecord>, now: i64, uri: &Uri) -> Result<Value> {
    let base = format!("/apis/{HISTORY_GROUP}/{HISTORY_VERSION}/");
    let parts: Vec<&str> = uri.path().strip_prefix(&base).unwrap_or_default().split('/').collect();
    let (is_pods, namespace) = match parts.as_slice() {
        ["nodes"] => (false, ""),
        ["pods"] => (true, ""),
        ["namespaces", ns, "pods"] => (true, *ns),
        _ => return Err(Status::no_such_path()),
    };
    let query = Query::parse(uri.query());
    let number = |name: &str, usual: i64| match query.text(name) {
        "" => Ok(usual),
        text => text.parse::<i64>().ok().filter(|number| *number > 0).ok_or_else(|| {
            Status::bad_request(format!("Invalid value: {text:?}: {name} must be a number above 0"))
        }),
    };
    let since = now.saturating_sub(number("sinceSeconds", 3600)?);
    let points = usize::try_from(number("points", i64::try_from(POINTS).unwrap_or(1))?).unwrap_or(MAX_POINTS);
    let mut empty = Spans::new(since, now, points.min(MAX_POINTS));
    let mut found: BTreeMap<SeriesKey, Summary> = BTreeMap::new();
    let is_wanted = |key: &SeriesKey| match key {
        SeriesKey::Node(_) => !is_pods,
        SeriesKey::Pod { namespace: own, .. } => is_pods && (namespace.is_empty() || **own == *namespace),
    };
    let outcome = history.read(since, |key, point| {
        if !is_wanted(key) {
            return;
        }
        if !found.contains_key(key) {
            let new = || (Quantiles::default(), empty.clone());
            found.insert(key.clone(), Summary { cpu: new(), memory: new(), count: 0 });
            limit(&mut found, &mut empty, MAX_ALL_POINTS);
        }
        if let Some(summary) = found.get_mut(key) {
            summary.cpu.0.add(point.cpu);
            summary.cpu.1.add(point.at, point.cpu);
            summary.memory.0.add(point.memory);
            summary.memory.1.add(point.at, point.memory);
            summary.count = summary.count.saturating_add(1);
        }
    });
    outcome.map_err(|error| Status::internal(format!("failed to read the history: {error}")))?;
    let items: Vec<Value> = found.iter().map(|(key, summary)| item(key, summary, pods)).collect();
    let kind = if is_pods { "PodUsageList" } else { "NodeUsageList" };
    Ok(json!({"kind": kind, "apiVersion": format!("{HISTORY_GROUP}/{HISTORY_VERSION}"), "metadata": {},
        "since": time(since), "until": time(now), "items": items}))
}

/// Joins points of all sparklines until they are at most `limit` together.
fn limit(found: &mut BTreeMap<SeriesKey, Summary>, empty: &mut Spans, limit: usize) {
    while empty.len() > 1 && found.len().saturating_mul(empty.len()).saturating_mul(2) > limit {
        empty.halve();
        for summary in found.values_mut() {
            summary.cpu.1.halve();
            summary.memory.1.halve();
        }
    }
}

fn time(second: i64) -> String {
    jiff::Timestamp::from_second(second).unwrap_or(jiff::Timestamp::UNIX_EPOCH).to_string()
}

fn item(key: &SeriesKey, summary: &Summary, pods: &Cache<PodRecord>) -> Value {
    let (metadata, requests) = match key {
        SeriesKey::Node(name) => (json!({"name": name}), None),
        SeriesKey::Pod { namespace, name } => {
            let pod = pods.get(namespace, name);
            let sum = |pod: &PodRecord| {
                pod.containers.iter().fold(Amount::default(), |sum, one| Amount {
                    cpu: sum.cpu.saturating_add(one.requests.cpu),
                    memory: sum.memory.saturating_add(one.requests.memory),
                })
            };
            (json!({"name": name, "namespace": namespace}), pod.map(|pod| sum(&pod)))
        }
    };
    let cpu = |value: u64| Quantity::from_milli(i64::try_from(value).unwrap_or(i64::MAX)).to_string();
    let memory = |value: u64| {
        Quantity::new(i64::try_from(value).unwrap_or(i64::MAX)).with_format(Format::Binary).to_string()
    };
    let requests_of = |of: fn(&Amount) -> u64| requests.as_ref().map(of);
    json!({
        "metadata": metadata,
        "samples": summary.count,
        "cpu": usage(&summary.cpu, summary.count, requests_of(|all| all.cpu), CPU_STEP, &cpu),
        "memory": usage(&summary.memory, summary.count, requests_of(|all| all.memory), MEMORY_STEP, &memory),
    })
}

fn usage(
    (quantiles, spans): &(Quantiles, Spans),
    count: u64,
    request: Option<u64>,
    step: u64,
    text: &dyn Fn(u64) -> String,
) -> Value {
    let p95 = quantiles.percentile(95);
    let mut usage = json!({
        "p50": text(quantiles.percentile(50)), "p95": text(p95), "max": text(quantiles.max()),
        "history": spans.averages(),
    });
    if let Some(request) = request {
        usage["request"] = json!(text(request));
        if count >= FEWEST_POINTS {
            let (advice, recommended) = advise(p95, request, step);
            usage["advice"] = json!(advice);
            usage["recommended"] = json!(text(recommended));
        }
    }
    usage
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{HistoryConfig, HistoryPoint};
    use crate::record::ContainerRecord;
    use objects::meta::v1::ObjectMeta;

    const NOW: i64 = 1_767_225_600;

    fn ask(path: &str) -> (u16, Value) {
        let directory = tempfile::tempdir().expect("a directory");
        let history = History::open(HistoryConfig::new(directory.path())).expect("opens");
        for n in 0..40 {
            let at = NOW - 600 + n * 15;
            let pod = |name: &str| SeriesKey::Pod { namespace: "ns".into(), name: name.into() };
            let point = |cpu| HistoryPoint { at, cpu, memory: 100 << 20 };
            let all =
                [(pod("a"), point(100)), (pod("b"), point(500)), (SeriesKey::Node("n".into()), point(900))];
            history.record(at, all);
        }
        history.flush(NOW).expect("appends");
        let pods = Cache::new();
        let requests = Amount { cpu: 1000, memory: 64 << 20 };
        let metadata = ObjectMeta {
            name: Some("a".to_owned()),
            namespace: Some("ns".to_owned()),
            ..ObjectMeta::default()
        };
        let container = ContainerRecord { requests, ..ContainerRecord::default() };
        pods.replace(vec![PodRecord { metadata, containers: [container].into(), ..PodRecord::default() }]);
        let answer = answer(&history, &pods, NOW, &Method::GET, &path.parse().expect("a uri"));
        (answer.status().as_u16(), serde_json::from_slice(answer.body()).expect("JSON"))
    }

    #[test]
    fn history_of_pods_has_quantiles_and_advice() {
        let (code, list) = ask("/apis/usage.ferry.dev/v1alpha1/namespaces/ns/pods?sinceSeconds=600&points=6");
        assert_eq!((code, list["kind"].as_str()), (200, Some("PodUsageList")));
        let pod = &list["items"][0];
        assert_eq!((pod["metadata"]["name"].as_str(), pod["samples"].as_u64()), (Some("a"), Some(40)));
        assert_eq!(pod["cpu"]["p95"], "100m");
        assert_eq!((&pod["cpu"]["advice"], &pod["cpu"]["recommended"]), (&json!("lower"), &json!("115m")));
        assert_eq!((&pod["memory"]["advice"], &pod["memory"]["request"]), (&json!("raise"), &json!("64Mi")));
        assert_eq!(pod["cpu"]["history"], json!([100, 100, 100, 100, 100, 100]));
        assert!(list["items"][1]["cpu"].get("advice").is_none(), "of a pod that is gone");
    }

    #[test]
    fn points_of_many_series_are_bounded() {
        let mut empty = Spans::new(0, 1000, 100);
        let mut found = BTreeMap::new();
        for number in 0..50 {
            let new = || (Quantiles::default(), empty.clone());
            let key = SeriesKey::Node(number.to_string().into());
            found.insert(key, Summary { cpu: new(), memory: new(), count: 0 });
            limit(&mut found, &mut empty, 1000);
            let all: usize = found.values().map(|one| one.cpu.1.len() + one.memory.1.len()).sum();
            assert!(all <= 1000, "{all} points of {number} series");
        }
        assert_eq!(empty.len(), 7);
    }

    #[test]
    fn history_of_nodes_and_wrong_requests() {
        let (_, list) = ask("/apis/usage.ferry.dev/v1alpha1/nodes");
        assert_eq!(list["items"][0]["cpu"]["max"], "900m");
        assert_eq!(ask("/apis/usage.ferry.dev/v1alpha1/pods?sinceSeconds=x").0, 400);
        assert_eq!(ask("/apis/usage.ferry.dev/v1alpha1/services").0, 404);
    }
}
