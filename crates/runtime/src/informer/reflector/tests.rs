//! Transitions of the reflector, with a scripted server.

use std::collections::VecDeque;

use bytes::Bytes;
use client::{Body, Call, Transport, TransportError};
use http_body_util::{BodyExt, StreamBody};
use objects::Object;
use objects::core::v1::ConfigMap;
use parking_lot::Mutex;

use super::*;

/// A response: its code, its body, and the lifetime of the stream after the body; `None` breaks the stream.
type Response = (u16, String, Option<Duration>);

/// Returns responses in order and records the queries of the requests. Without a response left, it never answers.
#[derive(Default)]
struct Script {
    responses: Mutex<VecDeque<Response>>,
    queries: Mutex<Vec<String>>,
    times: Mutex<Vec<Instant>>,
}

impl Transport for Script {
    fn call(&self, request: http::Request<Bytes>) -> Call<'_> {
        self.times.lock().push(Instant::now());
        self.queries.lock().push(request.uri().query().unwrap_or_default().to_owned());
        let Some((code, text, end)) = self.responses.lock().pop_front() else {
            return Box::pin(std::future::pending());
        };
        let chunks = futures_util::stream::unfold(Some(text), move |text| async move {
            if let Some(text) = text.filter(|text| !text.is_empty()) {
                return Some((Ok(http_body::Frame::data(Bytes::from(text))), None));
            }
            match end {
                Some(lifetime) => {
                    tokio::time::sleep(lifetime).await;
                    None
                }
                None => Some((Err(TransportError::Broken("cut".into())), None)),
            }
        });
        let body: Body = StreamBody::new(chunks).boxed_unsync();
        let response = http::Response::builder().status(code).body(body).map_err(TransportError::Request);
        Box::pin(std::future::ready(response))
    }
}

/// A reflector with an object `old` in its cache.
fn reflector(responses: Vec<Response>) -> (Reflector, Arc<Script>) {
    let script = Arc::new(Script { responses: Mutex::new(responses.into()), ..Script::default() });
    let client = Client::new(Arc::clone(&script) as Arc<dyn Transport>, "test");
    let cache = Arc::new(Core::new());
    let decode = ConfigMap::decode_shared;
    cache.apply(decode(object("old", 1).as_bytes()).expect("an object"));
    (Reflector::new(client, Collection::of::<ConfigMap>(""), Selection::default(), cache, decode), script)
}

fn object(name: &str, revision: u32) -> String {
    format!(
        r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"{name}","namespace":"n","uid":"{name}","resourceVersion":"{revision}"}}}}"#
    )
}

fn event(kind: &str, object: &str) -> String {
    format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n")
}

fn bookmark(revision: u32, ends: bool) -> String {
    let annotations = if ends { r#","annotations":{"k8s.io/initial-events-end":"true"}"# } else { "" };
    let metadata = format!(r#"{{"resourceVersion":"{revision}"{annotations}}}"#);
    event("BOOKMARK", &format!(r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{metadata}}}"#))
}

fn status(code: u16) -> String {
    let reason = if code == 410 { "Expired" } else { "Test" };
    format!(r#"{{"kind":"Status","apiVersion":"v1","code":{code},"reason":"{reason}"}}"#)
}

/// The status of a server that is behind the requested revision.
fn behind() -> String {
    let causes = r#"{"causes":[{"reason":"ResourceVersionTooLarge"}]}"#;
    format!(r#"{{"kind":"Status","apiVersion":"v1","code":504,"reason":"Timeout","details":{causes}}}"#)
}

fn page(continue_token: &str, objects: &[String]) -> String {
    let metadata = format!(r#"{{"resourceVersion":"9","continue":"{continue_token}"}}"#);
    let items = objects.join(",");
    format!(r#"{{"kind":"ConfigMapList","apiVersion":"v1","metadata":{metadata},"items":[{items}]}}"#)
}

/// A complete response, or a stream that ends at once.
fn complete(code: u16, text: impl Into<String>) -> Response {
    (code, text.into(), Some(Duration::ZERO))
}

fn broken(text: impl Into<String>) -> Response {
    (200, text.into(), None)
}

fn names(reflector: &Reflector) -> Vec<String> {
    let mut names = Vec::new();
    reflector.cache.visit(super::super::core::Which::All, &mut |object| {
        names.extend(object.meta().name.clone());
    });
    names.sort();
    names
}

fn described(state: &State) -> String {
    match state {
        State::Unlisted => "unlisted".to_owned(),
        State::Streaming { objects, .. } => format!("streaming {}", objects.len()),
        State::Paging { objects, continue_token } => format!("paging {} {continue_token:?}", objects.len()),
        State::Listed { revision } => format!("listed {revision}"),
        State::Watching { revision, .. } => format!("watching {revision}"),
    }
}

fn listed() -> State {
    State::Listed { revision: "5".to_owned() }
}

/// Steps from `state` until `steps` have been made; returns the states, with a mark for pauses.
async fn states(reflector: &Reflector, mut state: State, steps: usize) -> Vec<String> {
    let mut states = Vec::new();
    for _ in 0..steps {
        state = match reflector.step(state).await {
            Step::Next(state) => {
                states.push(described(&state));
                state
            }
            Step::Interrupted { state, error, .. } => {
                let cause = if error.is_some() { "error" } else { "end" };
                states.push(format!("{cause}, {}", described(&state)));
                state
            }
        };
    }
    states
}

/// States after `start` with these responses, and the names in the cache at the end.
async fn run(start: State, responses: Vec<Response>, steps: usize) -> (Vec<String>, Vec<String>) {
    let (reflector, _) = reflector(responses);
    (states(&reflector, start, steps).await, names(&reflector))
}

#[tokio::test]
async fn streamed_list_replaces_cache_at_its_end_and_becomes_watch() {
    let stream = [
        event("ADDED", &object("a", 3)),
        event("ADDED", &object("b", 4)),
        event("MODIFIED", &object("b", 5)),
        bookmark(6, false),
        event("DELETED", &object("a", 7)),
        bookmark(8, true),
        event("ADDED", &object("c", 9)),
    ];
    let (reflector, script) = reflector(vec![complete(200, stream.concat())]);
    let before = states(&reflector, State::Unlisted, 6).await;
    assert_eq!(
        before,
        ["streaming 0", "streaming 1", "streaming 2", "streaming 2", "streaming 2", "streaming 1"]
    );
    assert_eq!(names(&reflector), ["old"]);
    let query = script.queries.lock()[0].clone();
    assert!(query.contains("sendInitialEvents=true") && query.contains("watch=true"), "{query}");

    let (states, names) = run(State::Unlisted, vec![complete(200, stream.concat())], 8).await;
    assert_eq!(states[6..], ["watching 8", "watching 9"]);
    assert_eq!(names, ["b", "c"]);
}

#[tokio::test]
async fn interrupted_streamed_list_starts_again_and_keeps_cache() {
    let begun = event("ADDED", &object("a", 3));
    for (response, cause) in [
        (complete(200, begun.clone()), "end"),
        (broken(begun.clone()), "error"),
        (complete(200, begun.clone() + &event("ERROR", &status(410))), "error"),
        (complete(200, begun.clone() + &event("ERROR", &status(429))), "error"),
    ] {
        let (states, names) = run(State::Unlisted, vec![response], 3).await;
        assert_eq!(states[1..], ["streaming 1".to_owned(), format!("{cause}, unlisted")]);
        assert_eq!(names, ["old"]);
    }
}

#[tokio::test]
async fn failed_streamed_list_is_paged_if_server_does_not_stream() {
    for (response, expected) in [
        (complete(400, status(400)), &["paging 0 \"\""][..]),
        (complete(500, status(500)), &["paging 0 \"\""]),
        (complete(410, status(410)), &["error, unlisted"]),
        (complete(504, behind()), &["error, unlisted"]),
        (complete(200, event("ERROR", &status(500))), &["streaming 0", "paging 0 \"\""]),
    ] {
        let (states, _) = run(State::Unlisted, vec![response.clone()], expected.len()).await;
        assert_eq!(states, expected, "{response:?}");
    }
}

#[tokio::test]
async fn pages_replace_cache_after_the_last_one() {
    let responses =
        vec![complete(200, page("more", &[object("a", 3)])), complete(200, page("", &[object("b", 4)]))];
    let (reflector, script) = reflector(responses);
    let states = states(&reflector, State::first_page(), 2).await;
    assert_eq!(states, ["paging 1 \"more\"", "listed 9"]);
    assert_eq!(names(&reflector), ["a", "b"]);
    assert!(script.queries.lock()[1].contains("continue=more"), "{:?}", script.queries.lock());
}

#[tokio::test]
async fn failed_page_starts_again_and_keeps_cache() {
    for code in [410, 500] {
        let responses = vec![complete(200, page("more", &[object("a", 3)])), complete(code, status(code))];
        let (states, names) = run(State::first_page(), responses, 2).await;
        assert_eq!(states, ["paging 1 \"more\"", "error, unlisted"]);
        assert_eq!(names, ["old"]);
    }
}

#[tokio::test]
async fn watch_is_opened_at_revision_of_cache() {
    let (reflector, script) = reflector(vec![complete(200, "")]);
    assert_eq!(states(&reflector, listed(), 1).await, ["watching 5"]);
    let query = script.queries.lock()[0].clone();
    assert!(query.contains("resourceVersion=5") && !query.contains("sendInitialEvents"), "{query}");
}

#[tokio::test]
async fn refused_watch_keeps_revision_unless_expired() {
    for (code, text, expected) in [
        (500, status(500), "error, listed 5"),
        (403, status(403), "error, listed 5"),
        (410, status(410), "error, unlisted"),
        (504, behind(), "error, unlisted"),
    ] {
        let (states, names) = run(listed(), vec![complete(code, text)], 1).await;
        assert_eq!(states, [expected]);
        assert_eq!(names, ["old"]);
    }
}

#[tokio::test]
async fn events_change_cache_and_revision() {
    let stream = [
        event("ADDED", &object("a", 6)),
        event("MODIFIED", &object("a", 7)),
        event("DELETED", &object("old", 8)),
        bookmark(9, false),
        // It is skipped, and the next event is read in the same step.
        event("ADDED", r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":7}"#),
        event("ADDED", &object("b", 10)),
    ];
    let (states, names) = run(listed(), vec![complete(200, stream.concat())], 7).await;
    let expected = ["watching 5", "watching 6", "watching 7", "watching 8", "watching 9", "watching 10"];
    assert_eq!(states[..6], expected);
    assert_eq!(states[6], "end, listed 10");
    assert_eq!(names, ["a", "b"]);
}

#[tokio::test]
async fn interrupted_watch_resumes_at_last_revision_unless_expired() {
    let begun = event("ADDED", &object("a", 6));
    for (response, expected) in [
        (complete(200, begun.clone()), "end, listed 6"),
        (broken(begun.clone()), "error, listed 6"),
        (complete(200, begun.clone() + &event("ERROR", &status(500))), "error, listed 6"),
        (complete(200, begun.clone() + &event("ERROR", &status(410))), "error, unlisted"),
        (complete(200, begun.clone() + &event("ERROR", &behind())), "error, unlisted"),
    ] {
        let (states, names) = run(listed(), vec![response], 3).await;
        assert_eq!(states[1..], ["watching 6", expected]);
        assert_eq!(names, ["a", "old"]);
    }
}

/// Seconds after which requests are sent, if the watches have these lifetimes.
async fn request_times(lifetimes: &[u64]) -> Vec<u64> {
    let watch = |seconds: &u64| (200, bookmark(5, true), Some(Duration::from_secs(*seconds)));
    let (reflector, script) = reflector(lifetimes.iter().map(watch).collect());
    let begin = Instant::now();
    let ended = tokio::time::timeout(Duration::from_secs(3600), reflector.run()).await;
    assert!(ended.is_err(), "the last request is never answered");
    script.times.lock().iter().map(|time| time.duration_since(begin).as_secs()).collect()
}

#[tokio::test(start_paused = true)]
async fn watch_is_reopened_at_once_if_it_lived_long_enough() {
    assert_eq!(request_times(&[300, 300, 300]).await, [0, 300, 600, 900]);
    // Pauses of 0.1, 0.2, … seconds and their jitter.
    let times = request_times(&[0; 8]).await;
    assert!(times[8] >= 25, "{times:?}");
}
