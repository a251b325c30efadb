//! Scrapes of an API server that is a table of responses.

use super::next_schedule;
use crate::state::config::StateMetricsConfig;
use crate::state::render::StateMetrics;
use base::tasks::TaskGroup;
use bytes::Bytes;
use client::{Body, Call, Client, Transport, TransportError};
use futures_util::stream;
use http::{Request, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Answers lists: pods in two pieces, secrets with 403, jobs with half a list, nothing else.
struct Lists {
    pods: usize,
    calls: Arc<AtomicUsize>,
}

impl Transport for Lists {
    fn call(&self, request: Request<Bytes>) -> Call<'_> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let path = request.uri().path().to_owned();
        assert_eq!(request.uri().query(), Some("resourceVersion=0"), "{path}");
        let pod = |at: usize| format!(r#"{{"metadata":{{"namespace":"n","name":"pod-{at}","uid":"{at}"}}}}"#);
        let (status, text) = match path.rsplit('/').next().expect("a resource") {
            "pods" => (200, (0..self.pods).map(pod).collect::<Vec<_>>().join(",")),
            "secrets" => (403, String::new()),
            "jobs" => (200, r#"{"metadata":{"name":"a"}},{"meta"#.to_owned()),
            _ => (200, String::new()),
        };
        let end = if path.ends_with("jobs") { "" } else { "]}" };
        let text = format!(r#"{{"kind":"List","metadata":{{"resourceVersion":"1"}},"items":[{text}{end}"#);
        let text = if status == 403 { r#"{"kind":"Status","code":403}"#.to_owned() } else { text };
        let (first, second) = text.split_at(text.len() / 2);
        let pieces =
            [first, second].map(|one| Ok::<_, TransportError>(Frame::data(Bytes::from(one.to_owned()))));
        let body: Body = StreamBody::new(stream::iter(pieces)).boxed_unsync();
        let mut response = Response::new(body);
        *response.status_mut() = http::StatusCode::from_u16(status).expect("a status");
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(10)).await;
            Ok(response)
        })
    }
}

fn component(pods: usize) -> (Arc<StateMetrics>, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let client = Client::new(Arc::new(Lists { pods, calls: Arc::clone(&calls) }), "test");
    (StateMetrics::new(StateMetricsConfig::default(), client, next_schedule, &TaskGroup::new()), calls)
}

#[tokio::test(start_paused = true)]
async fn failed_lists_are_counted_and_leave_no_series() {
    let (component, _) = component(2);
    let text = component.page().await.text();
    assert!(text.contains("kube_pod_info{namespace=\"n\",pod=\"pod-1\",uid=\"1\""), "{text}");
    assert!(!text.contains("kube_job_") && !text.contains("kube_secret_"), "{text}");
    for line in [
        r#"kube_state_metrics_list_total{resource="*v1.Pod",result="success"} 1"#,
        r#"kube_state_metrics_list_total{resource="*v1.Secret",result="error"} 1"#,
        r#"kube_state_metrics_list_total{resource="*v1.Job",result="error"} 1"#,
        r#"kube_state_metrics_list_total{resource="*v2.HorizontalPodAutoscaler",result="success"} 1"#,
        r#"kube_state_metrics_watch_total{resource="*v1.Pod",result="error"} 0"#,
        r#"kube_state_metrics_shard_ordinal{shard_ordinal="0"} 0"#,
        "kube_state_metrics_total_shards 1",
    ] {
        assert!(text.lines().any(|one| one == line), "{line} in {text}");
    }
    assert!(text.contains("kube_state_metrics_build_info{"));
}

#[tokio::test(start_paused = true)]
async fn scrapes_share_a_page_for_a_second() {
    let (component, calls) = component(1);
    let scrapes: Vec<_> = (0..10)
        .map(|_| {
            let component = Arc::clone(&component);
            tokio::spawn(async move { component.page().await.text() })
        })
        .collect();
    for scrape in scrapes {
        assert!(scrape.await.expect("a page").contains("kube_pod_info"));
    }
    assert_eq!(calls.load(Ordering::Relaxed), 28);
    tokio::time::sleep(Duration::from_millis(1100)).await;
    component.page().await;
    assert_eq!(calls.load(Ordering::Relaxed), 56);
}

/// The compressed text is all that a scrape keeps.
#[tokio::test(start_paused = true)]
async fn page_of_a_thousand_pods_takes_less_than_two_megabytes() {
    let (component, _) = component(1000);
    let page = component.page().await;
    assert_eq!(page.text().matches("\nkube_pod_info{").count(), 1000);
    assert!(page.size() < 2 << 20, "{}", page.size());
}
