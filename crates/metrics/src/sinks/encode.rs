//! Snapshots in the formats of sinks.

use super::config::SinkKind;
use super::protobuf::{Message, snappy};
use super::snapshot::{Measure, Named, Row, Rows, Scope};
use std::collections::HashMap;
use std::fmt::Write as _;

/// The payload of rows for a kind of sink.
pub fn encode(kind: &SinkKind, snapshot: Rows<'_>) -> Vec<u8> {
    match kind {
        SinkKind::InfluxV1 { .. } | SinkKind::InfluxV2 { .. } | SinkKind::File => {
            line_protocol(snapshot).into_bytes()
        }
        SinkKind::RemoteWriteV1 => snappy(&remote_write_v1(snapshot).0),
        SinkKind::RemoteWriteV2 => snappy(&remote_write_v2(snapshot).0),
        SinkKind::Otlp => otlp(snapshot).0,
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
fn line_protocol(snapshot: Rows<'_>) -> String {
    let mut text = String::new();
    for row in snapshot.rows {
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
fn remote_write_v1(snapshot: Rows<'_>) -> Message {
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
fn remote_write_v2(snapshot: Rows<'_>) -> Message {
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

/// `ExportMetricsServiceRequest` of OTLP: one resource for each object and volume, encoded one after the other. Values
/// that the semantic conventions have no metric for are left out; sums of namespaces and of the cluster have their prefixes.
fn otlp(snapshot: Rows<'_>) -> Message {
    let mut request = Message::default();
    for row in snapshot.rows {
        let mut resource = Message::default();
        attributes(&mut resource, 1, &row.attributes());
        let mut of_scope = Message::default();
        of_scope.message(1, &text(1, "ferry/metrics"));
        for (measure, value) in &row.values {
            if let Some(metric) = otlp_metric(snapshot.at, row, *measure, *value) {
                of_scope.message(2, &metric);
            }
        }
        let mut of_resource = Message::default();
        of_resource.message(1, &resource);
        of_resource.message(2, &of_scope);
        request.message(1, &of_resource);
    }
    request
}

/// `Metric` with one data point.
fn otlp_metric(at: i64, row: &Row, measure: Measure, value: f64) -> Option<Message> {
    let named = measure.named();
    let name = named.otlp?;
    let name = if row.resource.is_some() { name.trim_start_matches("filesystem.") } else { name };
    let nanoseconds = |milliseconds: i64| milliseconds.saturating_mul(1_000_000).cast_unsigned();
    let mut point = Message::default();
    if let Some(start) = row.start(at).filter(|_| named.is_counter) {
        point.fixed(2, nanoseconds(start));
    }
    point.fixed(3, nanoseconds(at));
    point.double(4, value * named.factor);
    match measure {
        Measure::NetworkReceived => attributes(&mut point, 7, &[("network.io.direction", "receive")]),
        Measure::NetworkSent => attributes(&mut point, 7, &[("network.io.direction", "transmit")]),
        _ => {}
    }
    let mut data = Message::default();
    data.message(1, &point);
    let mut metric = Message::default();
    metric.bytes(1, format!("{}.{name}", prefix(row, measure)).as_bytes());
    metric.bytes(3, named.unit.as_bytes());
    if named.is_counter {
        // AGGREGATION_TEMPORALITY_CUMULATIVE, monotonic.
        data.integer(2, 2);
        data.integer(3, 1);
        metric.message(7, &data);
    } else {
        metric.message(5, &data);
    }
    Some(metric)
}

/// A message with one text.
fn text(field: u64, value: &str) -> Message {
    let mut message = Message::default();
    message.bytes(field, value.as_bytes());
    message
}

/// Appends `KeyValue` messages.
fn attributes(message: &mut Message, field: u64, all: &[(&'static str, &str)]) {
    for (key, value) in all {
        let mut pair = text(1, key);
        pair.message(2, &text(1, value));
        message.message(field, &pair);
    }
}

/// The kind of object in names of OpenTelemetry.
fn prefix(row: &Row, measure: Measure) -> &'static str {
    match &row.scope {
        _ if row.volume().is_some() => "k8s.volume",
        Scope::Node { .. } if row.resource.is_some() => "k8s.node.filesystem",
        Scope::Pod { .. } if row.resource.is_some() => "k8s.pod.filesystem",
        // An attribute of the resource distinguishes the writable layer from the logs.
        _ if row.resource.is_some() => "container.filesystem",
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

fn statsd(snapshot: Rows<'_>) -> String {
    let line = |(row, named, value): (&Row, Named, f64)| {
        format!("{}:{}|g\n", dotted(row, &named), number(&named, value))
    };
    snapshot.each().map(line).collect()
}

fn graphite(snapshot: Rows<'_>) -> String {
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
    use super::super::wire;
    use super::*;
    use prost::Message as _;

    fn text(kind: &SinkKind) -> String {
        String::from_utf8(encode(kind, example().whole())).expect("text")
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
        let request =
            wire::MetricsRequest::decode(&*encode(&SinkKind::Otlp, example().whole())).expect("decodes");
        let node = &request.resources[1];
        let pairs = |all: &[wire::KeyValue]| -> Vec<(String, String)> {
            let value =
                |pair: &wire::KeyValue| pair.value.clone().map(|value| value.text).unwrap_or_default();
            all.iter().map(|pair| (pair.key.clone(), value(pair))).collect()
        };
        let attributes = pairs(&node.resource.as_ref().expect("a resource").attributes);
        assert_eq!(attributes[0], ("k8s.node.name".to_owned(), "n1".to_owned()));
        let scope = &node.scopes[0];
        assert_eq!(scope.scope.as_ref().map(|scope| scope.name.as_str()), Some("ferry/metrics"));
        let metric = &scope.metrics[0];
        assert_eq!((metric.name.as_str(), metric.unit.as_str()), ("k8s.node.cpu.usage", "{cpu}"));
        let point = &metric.gauge.as_ref().expect("a gauge").points[0];
        assert_eq!((point.value, point.time, point.start), (0.9, 1_767_225_600_000_000_000, 0));
        let all: Vec<&wire::Metric> =
            request.resources.iter().flat_map(|resource| &resource.scopes[0].metrics).collect();
        let find = |name: &str| *all.iter().find(|metric| metric.name == name).expect(name);
        for name in [
            "container.cpu.usage",
            "container.memory.working_set",
            "container.filesystem.usage",
            "k8s.container.cpu.request",
            "k8s.pod.memory.working_set",
            "k8s.pod.uptime",
            "k8s.volume.usage",
        ] {
            find(name);
        }
        let traffic = find("k8s.node.network.io").sum.as_ref().expect("a sum");
        assert_eq!((traffic.is_monotonic, traffic.temporality), (true, 2));
        assert_eq!(
            traffic.points[0].start, 1_767_225_540_000_000_000,
            "a cumulative sum counts from the start of the node"
        );
        assert_eq!(
            pairs(&traffic.points[0].attributes),
            [("network.io.direction".to_owned(), "receive".to_owned())]
        );
    }

    #[test]
    fn remote_write_has_names_and_values() {
        let block = |kind: &SinkKind| unsnappy(&encode(kind, example().whole())).expect("a block of Snappy");
        let first = wire::WriteRequest::decode(&*block(&SinkKind::RemoteWriteV1)).expect("decodes");
        let first: Vec<_> = first
            .series
            .iter()
            .map(|one| {
                let labels: Vec<(String, String)> =
                    one.labels.iter().map(|label| (label.name.clone(), label.value.clone())).collect();
                (labels, one.samples[0].clone())
            })
            .collect();
        let second = wire::WriteRequestV2::decode(&*block(&SinkKind::RemoteWriteV2)).expect("decodes");
        let symbol = |number: u32| second.symbols[usize::try_from(number).expect("a number")].clone();
        assert_eq!(symbol(0), "", "the first symbol is empty");
        let is_counter = |labels: &[(String, String)]| {
            labels[0].1.starts_with("heapster_network_") && {
                let name = &labels[0].1;
                !name.ends_with("_rate")
            }
        };
        let of_second: Vec<_> = second
            .series
            .iter()
            .map(|one| {
                let labels: Vec<(String, String)> =
                    one.labels.chunks(2).map(|pair| (symbol(pair[0]), symbol(pair[1]))).collect();
                let kind = one.metadata.as_ref().map_or(0, |metadata| metadata.kind);
                assert_eq!(kind, if is_counter(&labels) { 1 } else { 2 }, "{labels:?}");
                (labels, one.samples[0].clone())
            })
            .collect();
        assert_eq!(first, of_second, "both versions have the same series");
        let usage = first.iter().find(|(labels, _)| {
            labels[0] == ("__name__".to_owned(), "heapster_cpu_usage_rate".to_owned())
                && labels.contains(&("type".to_owned(), "node".to_owned()))
        });
        let (labels, sample) = usage.expect("usage of the node");
        assert!(labels.is_sorted());
        assert_eq!((sample.value, sample.timestamp), (900.0, 1_767_225_600_000));
    }
}
