//! Snapshots in the formats of sinks.

use super::config::SinkKind;
use super::protobuf::{Message, snappy};
use super::snapshot::{Measure, Named, Row, Scope, Snapshot};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fmt::Write as _;

/// The payload of a snapshot for a kind of sink.
pub fn encode(kind: &SinkKind, snapshot: &Snapshot) -> Vec<u8> {
    match kind {
        SinkKind::InfluxV1 { .. } | SinkKind::InfluxV2 { .. } | SinkKind::File => {
            line_protocol(snapshot).into_bytes()
        }
        SinkKind::RemoteWriteV1 => snappy(&remote_write_v1(snapshot).0),
        SinkKind::RemoteWriteV2 => snappy(&remote_write_v2(snapshot).0),
        SinkKind::Otlp => otlp(snapshot).to_string().into_bytes(),
        SinkKind::StatsD => statsd(snapshot).into_bytes(),
        SinkKind::Graphite => graphite(snapshot).into_bytes(),
    }
}

/// Escapes a tag of the line protocol; line feeds cannot be escaped.
fn tag(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            ',' | '=' | ' ' | '\\' => escaped.extend(['\\', c]),
            '\n' | '\r' => escaped.push(' '),
            c => escaped.push(c),
        }
    }
    escaped
}

/// InfluxDB's line protocol, with timestamps in milliseconds: the measurements and tags of Heapster.
fn line_protocol(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    for row in &snapshot.rows {
        let labels: String =
            row.labels().iter().map(|(label, own)| format!(",{label}={}", tag(own))).collect();
        for (measure, value) in &row.values {
            let named = measure.named();
            let kind = if named.is_integer { "i" } else { "" };
            let value = number(&named, *value);
            let _ = writeln!(text, "{}{labels} value={value}{kind} {}", named.heapster, snapshot.at);
        }
    }
    text
}

/// A value as text; one without a fraction is rounded.
fn number(named: &Named, value: f64) -> String {
    if named.is_integer { format!("{value:.0}") } else { value.to_string() }
}

/// A metric name that Prometheus accepts.
fn metric(name: &str) -> String {
    let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    format!("heapster_{name}")
}

/// `prometheus.WriteRequest`.
fn remote_write_v1(snapshot: &Snapshot) -> Message {
    let mut request = Message::default();
    for (row, named, value) in snapshot.each() {
        let mut series = Message::default();
        let name = metric(named.heapster);
        // Labels are sorted; `__name__` is before all of Heapster's.
        for (label, own) in [("__name__", name.as_str())].into_iter().chain(row.labels()) {
            let mut pair = Message::default();
            pair.bytes(1, label.as_bytes());
            pair.bytes(2, own.as_bytes());
            series.message(1, &pair);
        }
        let mut sample = Message::default();
        sample.double(1, value);
        sample.integer(2, snapshot.at);
        series.message(2, &sample);
        request.message(1, &series);
    }
    request
}

/// `io.prometheus.write.v2.Request`: texts are in one table.
fn remote_write_v2(snapshot: &Snapshot) -> Message {
    let (mut symbols, mut known): (Vec<String>, HashMap<String, u32>) = (vec![String::new()], HashMap::new());
    let mut symbol = |text: &str| match known.get(text) {
        Some(number) => *number,
        None => {
            let number = u32::try_from(symbols.len()).unwrap_or(0);
            symbols.push(text.to_owned());
            known.insert(text.to_owned(), number);
            number
        }
    };
    let mut all = Vec::new();
    for (row, named, value) in snapshot.each() {
        let mut series = Message::default();
        let name = metric(named.heapster);
        let labels = [("__name__", name.as_str())].into_iter().chain(row.labels());
        let references: Vec<u32> = labels.flat_map(|(label, own)| [symbol(label), symbol(own)]).collect();
        series.packed(1, references);
        let mut sample = Message::default();
        sample.double(1, value);
        sample.integer(2, snapshot.at);
        series.message(2, &sample);
        let mut metadata = Message::default();
        // METRIC_TYPE_COUNTER, METRIC_TYPE_GAUGE.
        metadata.integer(1, if named.is_counter { 1 } else { 2 });
        series.message(5, &metadata);
        all.push(series);
    }
    let mut request = Message::default();
    symbols.iter().for_each(|text| request.bytes(4, text.as_bytes()));
    all.iter().for_each(|series| request.message(5, series));
    request
}

/// `ExportMetricsServiceRequest` in the JSON encoding of OTLP: one resource for each object and volume. Values that the
/// semantic conventions have no metric for are left out; sums of namespaces and of the cluster have their prefixes.
fn otlp(snapshot: &Snapshot) -> Value {
    let pairs = |all: &[(&'static str, &str)]| -> Vec<Value> {
        all.iter().map(|(key, value)| json!({"key": key, "value": {"stringValue": value}})).collect()
    };
    let time = (i128::from(snapshot.at) * 1_000_000).to_string();
    let resource = |row: &Row| {
        let metric = |(measure, value): (&Measure, &f64)| {
            let named = measure.named();
            let name = named.otlp?;
            let name = if row.volume().is_some() { name.trim_start_matches("filesystem.") } else { name };
            let name = format!("{}.{name}", prefix(row, *measure));
            let direction = match measure {
                Measure::NetworkReceived => vec![("network.io.direction", "receive")],
                Measure::NetworkSent => vec![("network.io.direction", "transmit")],
                _ => Vec::new(),
            };
            let points = json!([{"timeUnixNano": time, "asDouble": value * named.factor,
                "attributes": pairs(&direction)}]);
            // Temporality 2 is cumulative.
            Some(if named.is_counter {
                json!({"name": name, "unit": named.unit,
                    "sum": {"dataPoints": points, "aggregationTemporality": 2, "isMonotonic": true}})
            } else {
                json!({"name": name, "unit": named.unit, "gauge": {"dataPoints": points}})
            })
        };
        let metrics: Vec<Value> = row.values.iter().filter_map(metric).collect();
        json!({"resource": {"attributes": pairs(&row.attributes())},
            "scopeMetrics": [{"scope": {"name": "ferry/metrics"}, "metrics": metrics}]})
    };
    let resources: Vec<Value> = snapshot.rows.iter().map(resource).collect();
    json!({"resourceMetrics": resources})
}

/// The kind of object in names of OpenTelemetry.
fn prefix(row: &Row, measure: Measure) -> &'static str {
    match &row.scope {
        _ if row.volume().is_some() => "k8s.volume",
        Scope::Cluster => "k8s.cluster",
        Scope::Node { .. } => "k8s.node",
        Scope::Namespace { .. } => "k8s.namespace",
        Scope::Pod { .. } => "k8s.pod",
        // Usage is that of any container; requests, limits and restarts are Kubernetes'.
        Scope::Container { .. } if matches!(measure, Measure::CpuUsage | Measure::MemoryUsage) => "container",
        Scope::Container { .. } => "k8s.container",
    }
}

/// A part of a dotted name.
fn part(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '_' }).collect()
}

/// Dotted names as Heapster has them: `cluster.…`, `nodes.N.…`, `namespaces.NS.pods.P.containers.C.…`.
fn dotted(row: &Row, named: &Named) -> String {
    let mut name = named.heapster.replace('/', ".");
    if let Some(resource) = &row.resource {
        name = format!("{name}.{}", part(resource));
    }
    match &row.scope {
        Scope::Cluster => format!("cluster.{name}"),
        Scope::Node { node } => format!("nodes.{}.{name}", part(node)),
        Scope::Namespace { namespace } => format!("namespaces.{}.{name}", part(namespace)),
        Scope::Pod { namespace, pod, .. } => {
            format!("namespaces.{}.pods.{}.{name}", part(namespace), part(pod))
        }
        Scope::Container { namespace, pod, container, .. } => {
            format!("namespaces.{}.pods.{}.containers.{}.{name}", part(namespace), part(pod), part(container))
        }
    }
}

fn statsd(snapshot: &Snapshot) -> String {
    let line = |(row, named, value): (&Row, Named, f64)| {
        format!("{}:{}|g\n", dotted(row, &named), number(&named, value))
    };
    snapshot.each().map(line).collect()
}

fn graphite(snapshot: &Snapshot) -> String {
    let second = snapshot.at.div_euclid(1000);
    let line = |(row, named, value): (&Row, Named, f64)| {
        format!("{} {} {second}\n", dotted(row, &named), number(&named, value))
    };
    snapshot.each().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::super::protobuf::tests::unsnappy;
    use super::super::snapshot::example;
    use super::*;

    fn text(kind: &SinkKind) -> String {
        String::from_utf8(encode(kind, &example())).expect("text")
    }

    #[test]
    fn line_protocol_has_the_schema_of_heapster() {
        let lines = text(&SinkKind::File);
        assert!(
            lines.contains(
                "cpu/usage_rate,host_id=h,hostname=n1,nodename=n1,type=node value=900i 1767225600000\n"
            ),
            "{lines}"
        );
        let container = "cpu/request,container_name=b\\ b,labels=app:web,namespace_name=ns,nodename=n1,pod_id=u,\
                         pod_name=p,type=pod_container";
        assert!(
            lines.contains("cpu/node_utilization,host_id=h,hostname=n1,nodename=n1,type=node value=0.45 "),
            "{lines}"
        );
        assert!(lines.contains("resource_id=Volume:data,type=pod value=5i "), "{lines}");
        assert!(lines.contains(&format!("{container} value=100i 1767225600000\n")), "{lines}");
        assert_eq!(tag("a=b,c\nd"), "a\\=b\\,c d");
    }

    #[test]
    fn dotted_names_lead_to_the_object() {
        let lines = text(&SinkKind::Graphite);
        assert!(lines.contains("nodes.n1.cpu.usage_rate 900 1767225600\n"), "{lines}");
        assert!(
            lines.contains("namespaces.ns.pods.p.containers.b_b.memory.working_set 4096 1767225600\n"),
            "{lines}"
        );
        assert!(text(&SinkKind::StatsD).contains("cluster.cpu.usage_rate:900|g\n"));
        assert!(lines.contains("namespaces.ns.pods.p.filesystem.usage.Volume_data 5 "), "{lines}");
    }

    #[test]
    fn otlp_has_resources_by_semantic_conventions() {
        let document: Value = serde_json::from_str(&text(&SinkKind::Otlp)).expect("JSON");
        let node = &document["resourceMetrics"][1];
        assert_eq!(node["resource"]["attributes"][0]["key"], "service.name");
        assert_eq!(node["resource"]["attributes"][1]["key"], "k8s.node.name");
        let metric = &node["scopeMetrics"][0]["metrics"][0];
        assert_eq!(
            (metric["name"].as_str(), metric["unit"].as_str()),
            (Some("k8s.node.cpu.usage"), Some("{cpu}"))
        );
        let point = &metric["gauge"]["dataPoints"][0];
        assert_eq!(
            (point["asDouble"].as_f64(), point["timeUnixNano"].as_str()),
            (Some(0.9), Some("1767225600000000000"))
        );
        let metrics: Vec<&Value> = document["resourceMetrics"]
            .as_array()
            .into_iter()
            .flatten()
            .flat_map(|resource| resource["scopeMetrics"][0]["metrics"].as_array().into_iter().flatten())
            .collect();
        let find = |name: &str| *metrics.iter().find(|metric| metric["name"] == name).expect(name);
        for name in [
            "container.cpu.usage",
            "container.memory.working_set",
            "k8s.container.cpu.request",
            "k8s.pod.memory.working_set",
            "k8s.pod.uptime",
            "k8s.volume.usage",
        ] {
            find(name);
        }
        let traffic = &find("k8s.node.network.io")["sum"];
        assert_eq!((&traffic["isMonotonic"], &traffic["aggregationTemporality"]), (&json!(true), &json!(2)));
        assert_eq!(traffic["dataPoints"][0]["attributes"][0]["value"]["stringValue"], "receive");
    }

    #[test]
    fn remote_write_has_names_and_values() {
        for kind in [SinkKind::RemoteWriteV1, SinkKind::RemoteWriteV2] {
            let message = unsnappy(&encode(&kind, &example())).expect("a block");
            let has = |wanted: &[u8]| message.windows(wanted.len()).any(|window| window == wanted);
            assert!(
                has(b"heapster_cpu_usage_rate") && has(b"pod_container") && has(&900_f64.to_le_bytes()),
                "{kind:?}"
            );
        }
    }
}
