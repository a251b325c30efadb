//! The exporter of traces against collectors that accept, refuse and hang.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::Result;
use base::backoff::Backoff;
use base::clock::Clock;
use base::metrics::Metrics;
use base::tasks::TaskGroup;
use base::trace::{self, Exporter, ExporterConfig, Kind, Parent, Sampler, Span, SpanContext, Tracer};
use http::HeaderMap;
use testbase::{Behaviour, Collector, eventually};

const LIMIT: Duration = Duration::from_secs(30);
const PARENT: &[u8] = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn config(endpoint: &str) -> ExporterConfig {
    ExporterConfig {
        delay: Duration::from_millis(10),
        timeout: Duration::from_millis(300),
        backoff: Backoff::new(Duration::from_millis(10), Duration::from_millis(20)),
        retries: Duration::from_millis(100),
        flush: Duration::from_millis(500),
        ..ExporterConfig::new(endpoint.parse().expect("an endpoint"))
    }
}

struct Started {
    exporter: Exporter,
    tracer: Tracer,
    metrics: Metrics,
    tasks: TaskGroup,
}

impl Started {
    fn at(endpoint: &str) -> Result<Self> {
        let (clock, tasks) = (Clock::system(), TaskGroup::new());
        let exporter = Exporter::start(config(endpoint), &clock, &tasks)?;
        let metrics = Metrics::new(&clock)?;
        exporter.register(&metrics)?;
        let tracer = exporter.tracer("tests", "one", Sampler::per_million(1_000_000));
        Ok(Self { exporter, tracer, metrics, tasks })
    }

    /// Value of a counter on the metrics page.
    fn counted(&self, series: &str) -> u64 {
        let page = self.metrics.encode().expect("encodes");
        let page = String::from_utf8(page).expect("text");
        let line = page.lines().find_map(|line| line.strip_prefix(series));
        line.and_then(|value| value.trim().parse().ok()).unwrap_or_else(|| panic!("no {series} in {page}"))
    }
}

fn exercise(tracer: &Tracer) {
    let parent = SpanContext::parse(PARENT).expect("valid");
    let mut span = tracer.start(Kind::Server, || Parent::Child(parent), || "GET /api");
    span.record(|attributes| {
        attributes.set("text", "x".repeat(5000));
        attributes.set("number", 7);
        attributes.set("truth", true);
        for key in ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q"] {
            attributes.set(key, 1);
        }
        for key in ["A", "B", "C", "D", "E", "F", "G", "H", "I", "J", "K", "L", "M", "N", "O", "P", "Q"] {
            attributes.set(key, 1);
        }
    });
    span.fail(|| "failed".to_owned());
}

async fn check_export(endpoint: &str, collector: &Collector) -> Result<()> {
    let started = Started::at(endpoint)?;
    exercise(&started.tracer);
    let other = started.exporter.tracer("others", "", Sampler::per_million(0));
    drop(other.start(Kind::Internal, || Parent::Root, || -> String { panic!("not sampled") }));
    drop(other.start(
        Kind::Consumer,
        || Parent::Child(SpanContext::parse(PARENT).expect("valid")),
        || "pass",
    ));
    let spans = eventually("two spans", LIMIT, async || collector.spans(), |spans| spans.len() == 2).await;
    let first = spans.iter().find(|span| span.service == "tests").expect("a span");
    assert_eq!(first.span.name, "GET /api");
    assert_eq!((first.span.kind, first.parent_id().as_str()), (2, "b7ad6b7169203331"));
    assert_eq!(first.trace_id(), "0af7651916cd43dd8448eb211c80319c");
    assert!(first.span.start_time_unix_nano > 0);
    assert!(first.span.end_time_unix_nano >= first.span.start_time_unix_nano);
    assert_eq!(first.span.status.as_ref().map(|status| (status.code, &*status.message)), Some((2, "failed")));
    assert_eq!(first.attribute("text").expect("set").len(), 1024);
    assert_eq!(first.attribute("number").as_deref(), Some("7"));
    assert_eq!(first.attribute("truth").as_deref(), Some("true"));
    assert_eq!((first.span.attributes.len(), first.span.dropped_attributes_count), (32, 5));
    assert!(spans.iter().any(|span| span.service == "others" && span.span.name == "pass"));
    let exported = async || started.counted("ferry_trace_spans_exported_total");
    eventually("counted", LIMIT, exported, |count| *count == 2).await;
    started.tasks.drain(LIMIT).await?;
    Ok(())
}

#[tokio::test]
async fn spans_are_exported_over_grpc() -> Result<()> {
    let collector = Collector::start(Behaviour::Accept).await?;
    check_export(&collector.address.to_string(), &collector).await
}

#[tokio::test]
async fn spans_are_exported_over_http() -> Result<()> {
    let collector = Collector::start(Behaviour::Accept).await?;
    check_export(&format!("http://{}/v1/traces", collector.address), &collector).await
}

/// Ends more spans than the queue holds, and returns how long that took.
fn flood(tracer: &Tracer, spans: usize) -> Duration {
    let begin = Instant::now();
    for _ in 0..spans {
        let mut span = tracer.start(Kind::Server, || Parent::Root, || "GET /api");
        span.record(|attributes| attributes.set("text", "x".repeat(1000)));
    }
    begin.elapsed()
}

#[tokio::test]
async fn collector_hung_or_refusing_drops_and_counts_spans() -> Result<()> {
    for (behaviour, path) in [
        (Some(Behaviour::Hang), ""),
        (Some(Behaviour::Hang), "/v1/traces"),
        (Some(Behaviour::Refuse), ""),
        (Some(Behaviour::Refuse), "/v1/traces"),
        // Nothing listens.
        (None, ""),
    ] {
        let collector = Collector::start(behaviour.unwrap_or(Behaviour::Accept)).await?;
        let endpoint = format!("http://{}{path}", collector.address);
        if behaviour.is_none() {
            drop(collector);
        }
        let started = Started::at(&endpoint)?;
        let spans = 20_000;
        let took = flood(&started.tracer, spans);
        assert!(took < Duration::from_secs(10), "{took:?}");
        // The queue holds 2,048 spans; everything else was dropped at once, whatever the collector does.
        let full = started.counted(r#"ferry_trace_spans_dropped_total{reason="queue_full"}"#);
        assert!(full >= spans as u64 - 3000, "{full}");
        let lost =
            async || full + started.counted(r#"ferry_trace_spans_dropped_total{reason="export_failed"}"#);
        eventually("all are counted", LIMIT, lost, |lost| *lost == spans as u64).await;
        assert_eq!(started.counted("ferry_trace_spans_exported_total"), 0);
        started.tasks.drain(LIMIT).await?;
    }
    Ok(())
}

#[tokio::test]
async fn collector_that_returns_gets_later_spans() -> Result<()> {
    let collector = Collector::start(Behaviour::Refuse).await?;
    let address = collector.address;
    let started = Started::at(&address.to_string())?;
    exercise(&started.tracer);
    let failed = async || started.counted(r#"ferry_trace_spans_dropped_total{reason="export_failed"}"#);
    eventually("a failure", LIMIT, failed, |count| *count == 1).await;
    assert!(collector.requests() > 1, "it was retried");
    drop(collector);
    let collector = eventually(
        "the port is free",
        LIMIT,
        async || Collector::start_at(address, Behaviour::Accept).await.ok(),
        Option::is_some,
    )
    .await
    .expect("started");
    exercise(&started.tracer);
    // A batch whose response is late is sent again.
    let spans =
        || collector.spans().into_iter().map(|recorded| recorded.span.span_id).collect::<BTreeSet<_>>();
    eventually("a span", LIMIT, async || spans(), |spans| spans.len() == 1).await;
    // Spans that end while the process stops are sent as well.
    exercise(&started.tracer);
    started.tasks.drain(LIMIT).await?;
    assert_eq!(spans().len(), 2);
    exercise(&started.tracer);
    assert_eq!(started.counted(r#"ferry_trace_spans_dropped_total{reason="stopped"}"#), 1);
    Ok(())
}

#[tokio::test]
async fn scope_provides_parent_of_children_and_requests() -> Result<()> {
    let collector = Collector::start(Behaviour::Accept).await?;
    let started = Started::at(&collector.address.to_string())?;
    assert!(trace::current().is_none());
    let span = started.tracer.start(Kind::Server, || Parent::Root, || "outer");
    let context = span.context().expect("on").clone();
    trace::scope(span.handle(), async {
        drop(trace::child(Kind::Internal, || "inner"));
        let mut headers = HeaderMap::new();
        trace::inject(&mut headers);
        let sent = SpanContext::extract(&headers).expect("injected");
        assert_eq!((sent.trace_id, sent.span_id), (context.trace_id, context.span_id));
        trace::wrote(7);
    })
    .await;
    let Parent::Child(cause) = started.tracer.caused_by(7).await else { panic!("no cause") };
    assert_eq!((cause.span_id, cause.hops), (context.span_id, 1));
    drop(span);
    let spans = eventually("two spans", LIMIT, async || collector.spans(), |spans| spans.len() == 2).await;
    let inner = spans.iter().find(|span| span.span.name == "inner").expect("recorded");
    assert_eq!(inner.span.parent_span_id, context.span_id);
    // An unsampled parent: its context is propagated, and nothing is recorded.
    let never = started.exporter.tracer("tests", "", Sampler::per_million(0));
    let span = never.start(Kind::Server, || Parent::Root, || -> String { panic!("not sampled") });
    trace::scope(span.handle(), async {
        assert!(!trace::child(Kind::Internal, || -> String { panic!("not sampled") }).is_recording());
        assert!(!trace::current().expect("a context").sampled);
        trace::wrote(8);
    })
    .await;
    assert!(matches!(started.tracer.caused_by(8).await, Parent::Root));
    Ok(())
}

#[tokio::test]
async fn tracer_off_evaluates_nothing() {
    let tracer = Tracer::off();
    let mut span: Span = tracer.start(
        Kind::Server,
        || -> Parent { panic!("no parent is looked for") },
        || -> String { panic!("no name is made") },
    );
    span.record(|_| panic!("no attribute is made"));
    span.fail(|| panic!("no message is made"));
    assert!(!span.is_recording() && span.context().is_none());
    trace::scope(span.handle(), async {
        assert!(trace::current().is_none());
        let mut headers = HeaderMap::new();
        trace::inject(&mut headers);
        assert!(headers.is_empty());
    })
    .await;
}
