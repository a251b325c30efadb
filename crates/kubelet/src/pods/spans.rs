//! Spans of pod workers, with the names and attributes of the kubelet; calls of the runtime are named as gRPC's
//! instrumentation does.

use base::trace::{self, Kind, Parent, Span, Tracer};

use super::worker::Order;

pub(super) const RUN_POD_SANDBOX: &str = "runtime.v1.RuntimeService/RunPodSandbox";
pub(super) const CREATE_CONTAINER: &str = "runtime.v1.RuntimeService/CreateContainer";
pub(super) const START_CONTAINER: &str = "runtime.v1.RuntimeService/StartContainer";
pub(super) const PULL_IMAGE: &str = "runtime.v1.ImageService/PullImage";

/// Starts the span of one sync. A sync that follows a write of the pod is in the trace of that write.
pub(super) async fn sync(tracer: &Tracer, order: &Order, operation: &'static str) -> Span {
    let meta = &order.pod.metadata;
    let version = meta.resource_version.as_deref().filter(|_| operation != "sync");
    let parent = match version.and_then(|version| version.parse().ok()) {
        Some(revision) => tracer.caused_by(revision).await,
        None => Parent::Root,
    };
    let name = || if order.ends() { "syncTerminatingPod" } else { "syncPod" };
    let mut span = tracer.start(Kind::Internal, || parent, name);
    span.record(|attributes| {
        let (namespace, name) =
            (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default());
        attributes.set_text("k8s.pod.uid", meta.uid.as_deref().unwrap_or_default());
        attributes.set("k8s.pod", format!("{namespace}/{name}"));
        attributes.set_text("k8s.pod.name", name);
        attributes.set("k8s.pod.update_type", operation);
        attributes.set_text("k8s.namespace.name", namespace);
    });
    span
}

/// Starts the span of a call of the runtime.
pub(super) fn call(name: &'static str) -> Span {
    trace::child(Kind::Client, || name)
}

/// As [`call`], for a container.
pub(super) fn call_of_container(name: &'static str, container: &str) -> Span {
    let mut span = call(name);
    span.record(|attributes| attributes.set_text("k8s.container.name", container));
    span
}

/// Ends a span with the outcome of its call.
pub(super) fn end<T, E: std::fmt::Display>(mut span: Span, outcome: &Result<T, E>) {
    if let Err(error) = outcome {
        span.fail(|| error.to_string());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use base::clock::Clock;
    use base::tasks::TaskGroup;
    use base::trace::{Exporter, ExporterConfig, Sampler, SpanContext};
    use objects::core::v1::Pod;
    use testbase::{Behaviour, Collector};

    use super::*;

    #[tokio::test]
    async fn sync_is_in_the_trace_of_the_write_it_follows() {
        let collector = Collector::start(Behaviour::Accept).await.expect("a collector");
        let endpoint = collector.address.to_string().parse().expect("an endpoint");
        let tasks = TaskGroup::new();
        let exporter =
            Exporter::start(ExporterConfig::new(endpoint), &Clock::system(), &tasks).expect("starts");
        let tracer = exporter.tracer("kubelet", "node", Sampler::per_million(0));
        let parent = SpanContext::parse(b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
        let parent = parent.expect("valid");
        let write = tracer.start(Kind::Server, || Parent::Child(parent), || "write");
        trace::scope(write.handle(), async { trace::wrote(7) }).await;
        let mut pod = Pod::default();
        pod.metadata.name = Some("web".to_owned());
        pod.metadata.namespace = Some("default".to_owned());
        pod.metadata.resource_version = Some("7".to_owned());
        let order = Order { pod: Arc::new(pod), gone: false, evicted: None, resize: None, shown: 0 };
        let span = sync(&tracer, &order, "create").await;
        trace::scope(span.handle(), async {
            end(call_of_container(PULL_IMAGE, "c"), &Err::<(), _>("no such image"));
        })
        .await;
        drop(span);
        // A sync without a new write is not, and nothing samples it.
        assert!(!sync(&tracer, &order, "sync").await.is_recording());
        assert!(!sync(&Tracer::off(), &order, "create").await.is_recording());
        let writer = write.context().expect("on").span_id;
        drop(write);
        tasks.drain(Duration::from_secs(30)).await.expect("drained");
        let spans = collector.spans();
        let named = |name: &str| spans.iter().find(|span| span.span.name == name).expect(name);
        let sync = named("syncPod");
        assert_eq!((sync.span.parent_span_id.as_slice(), sync.service.as_str()), (&writer[..], "kubelet"));
        assert_eq!(sync.attribute("k8s.pod").as_deref(), Some("default/web"));
        assert_eq!(sync.attribute("k8s.pod.update_type").as_deref(), Some("create"));
        let pull = named(PULL_IMAGE);
        assert_eq!(pull.span.parent_span_id, sync.span.span_id);
        assert_eq!(pull.attribute("k8s.container.name").as_deref(), Some("c"));
        assert_eq!(pull.span.status.as_ref().map(|status| &*status.message), Some("no such image"));
    }
}
