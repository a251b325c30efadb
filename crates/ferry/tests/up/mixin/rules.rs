//! The rules of kubernetes-mixin as kube-prometheus renders them, where `FERRY_MIXIN_RULES` names the directory with its
//! manifests: every rule is evaluated without an error, every recording rule and every metric that a rule names has data.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use machinery::codec::yaml;
use serde_json::Value;

/// Manifests with rules about the cluster; others are about Prometheus and its operator.
const FILES: [&str; 4] = ["kubePrometheus", "kubeStateMetrics", "kubernetesControlPlane", "nodeExporter"];

/// Reach of an entry: some series have data on some machines.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Absent {
    Always,
    HereOrElsewhere,
}

/// Metrics and recording rules without data, and why.
const WITHOUT_DATA: &[(&str, Absent, &str)] = &[
    ("aggregator_unavailable_apiservice_total", Absent::Always, "no available APIService became unavailable"),
    ("apiserver_request_terminations_total", Absent::Always, "no request was rejected for overload"),
    ("kubelet_evictions", Absent::Always, "no pod was evicted"),
    (
        "kubelet_certificate_manager_client_ttl_seconds",
        Absent::HereOrElsewhere,
        "the node has no client certificate",
    ),
    ("kube_persistentvolumeclaim_labels", Absent::Always, "needs an allow list in kube-state-metrics too"),
    ("kube_node_spec_taint", Absent::HereOrElsewhere, "the node has no taint once it is ready"),
    ("node_bonding_active", Absent::HereOrElsewhere, "the machine has no bonds"),
    ("node_bonding_slaves", Absent::HereOrElsewhere, "the machine has no bonds"),
    ("node_md_disks", Absent::HereOrElsewhere, "the machine has no arrays"),
    ("node_md_disks_required", Absent::HereOrElsewhere, "the machine has no arrays"),
    ("node_nf_conntrack_entries", Absent::HereOrElsewhere, "only with connection tracking"),
    ("node_nf_conntrack_entries_limit", Absent::HereOrElsewhere, "only with connection tracking"),
    ("node_disk_io_time_seconds_total", Absent::HereOrElsewhere, "the machine may have no disk of its own"),
    (
        "node_disk_io_time_weighted_seconds_total",
        Absent::HereOrElsewhere,
        "the machine may have no disk of its own",
    ),
    // Recording rules.
    ("count:up0", Absent::HereOrElsewhere, "a target is down only where a scrape takes two seconds"),
    ("node:node_num_cpu:sum", Absent::Always, "joins node-exporter's pod, which Ferry's port is not part of"),
];
/// Prefixes of further ones.
const PREFIXES_WITHOUT_DATA: &[(&str, &str)] =
    &[("windows_", "another product"), ("node_systemd_", "collected only if enabled in node-exporter too")];

/// The rule files, written to `directory`; `None` where there are none.
pub fn files(directory: &Path) -> Option<Vec<PathBuf>> {
    let manifests = PathBuf::from(std::env::var_os("FERRY_MIXIN_RULES")?);
    let write = |name: &&str| {
        let source = manifests.join(format!("{name}-prometheusRule.yaml"));
        let text = fs::read(&source).unwrap_or_else(|error| panic!("{}: {error}", source.display()));
        let mut document = yaml::decode(&text).expect("YAML").value;
        // All groups are evaluated at the interval of the test, not after minutes.
        for group in document["spec"]["groups"].as_array_mut().into_iter().flatten() {
            group.as_object_mut().and_then(|group| group.remove("interval"));
        }
        let path = directory.join(format!("{name}-rules.json"));
        // JSON is YAML.
        fs::write(&path, document["spec"].to_string()).expect("a file");
        path
    };
    Some(FILES.iter().map(write).collect())
}

/// Body of a response of Prometheus.
fn get(address: &str, path: &str) -> Result<Value, String> {
    let text = |error: std::io::Error| error.to_string();
    let mut stream = TcpStream::connect(address).map_err(text)?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: prometheus\r\n\r\n").map_err(text)?;
    let mut response = String::new();
    stream.read_to_string(&mut response).map_err(text)?;
    let (head, body) = response.split_once("\r\n\r\n").ok_or("no response")?;
    if !head.contains(" 200 ") {
        return Err(head.to_owned());
    }
    serde_json::from_str(body).map_err(|error| error.to_string())
}

/// All rules: their names, expressions, whether they record, and what is wrong with them.
struct Rule {
    name: String,
    expression: String,
    is_recording: bool,
    problem: Option<String>,
}

fn rules(address: &str) -> Result<Vec<Rule>, String> {
    let document = get(address, "/api/v1/rules")?;
    let groups = document["data"]["groups"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = groups.iter().flat_map(|group| group["rules"].as_array().cloned().unwrap_or_default());
    let rule = |rule: Value| Rule {
        name: text(&rule["name"]),
        expression: text(&rule["query"]),
        is_recording: rule["type"] == "recording",
        problem: (rule["health"] != "ok")
            .then(|| format!("{}: {}", text(&rule["health"]), text(&rule["lastError"]))),
    };
    Ok(all.map(rule).collect())
}

/// Names of metrics in an expression: identifiers that are no functions, labels or keywords.
fn metrics(expression: &str) -> BTreeSet<String> {
    const KEYWORDS: [&str; 10] =
        ["and", "or", "unless", "bool", "offset", "by", "on", "without", "ignoring", "inf"];
    const LISTS: [&str; 6] = ["by", "on", "without", "ignoring", "group_left", "group_right"];
    let mut found = BTreeSet::new();
    let (mut rest, mut after_list) = (expression, false);
    while let Some(first) = rest.chars().next() {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        match first {
            '"' | '\'' => {
                let end = rest[1..].find(first).map_or(rest.len(), |end| end + 2);
                rest = &rest[end..];
            }
            '{' | '[' => {
                let close = if first == '{' { '}' } else { ']' };
                let mut in_text = false;
                let end = rest.find(|c| {
                    in_text ^= c == '"';
                    c == close && !in_text
                });
                rest = &rest[end.map_or(rest.len(), |end| end + 1)..];
            }
            '(' if after_list => rest = &rest[rest.find(')').map_or(rest.len(), |end| end + 1)..],
            c if c.is_ascii_alphabetic() || c == '_' || c == ':' => {
                let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
                let (word, tail) = rest.split_at(end);
                rest = tail;
                let is_call = tail.trim_start().starts_with('(');
                after_list = LISTS.contains(&word);
                let is_aggregation = ["by", "without"].iter().any(|list| tail.trim_start().starts_with(list));
                if !after_list
                    && !is_call
                    && !is_aggregation
                    && !KEYWORDS.contains(&word.to_lowercase().as_str())
                {
                    found.insert(word.to_owned());
                }
                continue;
            }
            c if c.is_ascii_digit() => {
                rest = rest.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '.');
            }
            c => {
                after_list &= c.is_whitespace();
                rest = &rest[c.len_utf8()..];
                continue;
            }
        }
        after_list = false;
    }
    found
}

/// The reason of a series for having no data.
fn reason(name: &str) -> Option<&'static str> {
    let exact = WITHOUT_DATA.iter().find(|(own, ..)| *own == name).map(|(.., reason)| *reason);
    exact.or_else(|| {
        PREFIXES_WITHOUT_DATA.iter().find(|(prefix, _)| name.starts_with(prefix)).map(|(_, reason)| *reason)
    })
}

/// Rules that are not evaluated, and names without data that the table does not have.
pub fn problems(address: &str) -> Result<(), String> {
    let rules = rules(address)?;
    if rules.len() < 100 {
        return Err(format!("only {} rules are loaded", rules.len()));
    }
    let known = get(address, "/api/v1/label/__name__/values")?;
    let known: BTreeSet<&str> =
        known["data"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let mut problems: Vec<String> = Vec::new();
    for rule in &rules {
        problems.extend(rule.problem.as_ref().map(|problem| format!("{} is {problem}", rule.name)));
        let names = metrics(&rule.expression).into_iter().chain(rule.is_recording.then(|| rule.name.clone()));
        for name in names.filter(|name| !known.contains(name.as_str()) && reason(name).is_none()) {
            problems.push(format!("{name} of {} has no data", rule.name));
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) }
}

/// Entries of the table that have data, or that no rule names.
pub fn needless(address: &str) -> Result<Vec<String>, String> {
    let rules = rules(address)?;
    let named: BTreeSet<String> = rules
        .iter()
        .flat_map(|rule| metrics(&rule.expression).into_iter().chain([rule.name.clone()]))
        .collect();
    let known = get(address, "/api/v1/label/__name__/values")?;
    let has_data = |name: &str| known["data"].as_array().into_iter().flatten().any(|own| own == name);
    let entries = WITHOUT_DATA.iter().filter(|(name, absent, _)| *absent == Absent::Always && has_data(name));
    let mut needless: Vec<String> = entries.map(|(name, ..)| format!("{name} has data")).collect();
    let unnamed = WITHOUT_DATA.iter().filter(|(name, ..)| !named.contains(*name));
    needless.extend(unnamed.map(|(name, ..)| format!("no rule names {name}")));
    Ok(needless)
}

/// Metrics of an expression are found among functions, labels and texts.
pub fn parser_finds_metrics() {
    let expression = r#"sum by (cluster, verb) (rate(a_total{job="x",code=~"5..{2}"}[5m] offset 1h)) / on (ns) group_left(node)
        topk by (a) (1, max by(b) (b:c{x="y)"})) > bool 0.5 and absent(up{job="z"} == 1) or label_replace(d, "x", "$1", "y", "e")"#;
    let found: Vec<String> = metrics(expression).into_iter().collect();
    assert_eq!(found, ["a_total", "b:c", "d", "up"]);
}
