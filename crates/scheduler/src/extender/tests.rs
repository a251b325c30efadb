//! Extenders over HTTPS, and the handling of their responses.

use super::*;
use crate::cycle::search;
use crate::profile::Profile;
use crate::testing::{cluster, node, pod};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use testbase::Responder;

async fn responder(answer: impl Fn(&str, &Value) -> (u16, Value) + Send + Sync + 'static) -> Responder {
    Responder::start(answer).await.expect("a server")
}

fn config(responder: &Responder, more: Value) -> ExtenderConfig {
    let mut config = json!({
        "urlPrefix": format!("{}/extend/", responder.url),
        "tlsConfig": {"caData": STANDARD.encode(&responder.certificate)},
        "filterVerb": "filter", "prioritizeVerb": "prioritize", "preemptVerb": "preempt", "bindVerb": "bind",
        "weight": 2, "nodeCacheCapable": true,
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        config[key] = value.clone();
    }
    serde_json::from_value(config).expect("a configuration")
}

#[tokio::test]
async fn extender_filters_and_scores_nodes() {
    let responder = responder(|path, body| match path {
        "/extend/filter" => {
            assert_eq!(body["NodeNames"], json!(["a", "b", "c"]));
            assert_eq!(body["Pod"]["metadata"]["name"], "p");
            let refused = json!({"c": "too far"});
            (200, json!({"NodeNames": ["a", "b"], "FailedAndUnresolvableNodes": refused, "Error": ""}))
        }
        "/extend/prioritize" => (200, json!([{"Host": "b", "Score": 7}, {"Host": "elsewhere", "Score": 9}])),
        "/extend/bind" => (200, json!({"Error": if body["Node"] == "a" { "" } else { "not there" }})),
        _ => (404, Value::Null),
    })
    .await;
    let extenders = [Extender::new(&config(&responder, json!({}))).expect("usable")];
    let cluster = cluster([node("a"), node("b"), node("c")], []);
    let (profile, pod) = (Profile::default_named("default-scheduler").expect("a profile"), pod("p").info());
    let mut found = search(&profile, &cluster, &pod, &mut 0);
    filter(&extenders, &cluster, &pod, &mut found).await.expect("an answer");
    assert_eq!(found.feasible, [0, 1]);
    assert!(found.diagnosis.rejecting.contains(PluginId::EXTENDER));
    let scores = prioritize(&extenders, &cluster, &pod, &found.feasible).await;
    assert_eq!(scores, Some(vec![0, 7 * 2 * 10]));
    extenders[0].bind(&pod, "a").await.expect("bound");
    assert_eq!(extenders[0].bind(&pod, "b").await.expect_err("refused").to_string(), "not there");
    // All requests shared one or a few connections, one request at a time each.
    assert_eq!(responder.seen().len(), 4);
}

#[tokio::test]
async fn extender_without_managed_resources_is_skipped() {
    let responder = responder(|_, _| (500, Value::Null)).await;
    let cluster = cluster([node("a"), node("b")], []);
    let profile = Profile::default_named("default-scheduler").expect("a profile");
    for (more, requests, expected) in [
        (json!({"managedResources": [{"name": "example.com/gpu"}]}), "cpu", Ok(2)),
        (json!({"ignorable": true}), "cpu", Ok(2)),
        (json!({}), "cpu", Err("code 500")),
        (json!({"managedResources": [{"name": "example.com/gpu"}]}), "example.com/gpu", Err("code 500")),
    ] {
        let extenders = [Extender::new(&config(&responder, more.clone())).expect("usable")];
        let pod = pod("p").request(requests, "0").info();
        let mut found = search(&profile, &cluster, &pod, &mut 0);
        let outcome = filter(&extenders, &cluster, &pod, &mut found).await;
        match expected {
            Ok(count) => {
                outcome.expect("passed over");
                assert_eq!(found.feasible.len(), count, "{more}");
            }
            Err(text) => {
                let error = outcome.expect_err("refused").to_string();
                assert!(error.contains(text), "{error}");
            }
        }
    }
}

#[tokio::test]
async fn extender_removes_preemption_candidates() {
    let candidates = || {
        let of = |node: &str, victims: &[&str]| Candidate {
            node: node.into(),
            victims: victims.iter().map(|name| pod(name).on(node).info()).collect(),
            violations: 0,
        };
        vec![of("a", &["x", "y"]), of("b", &["z"])]
    };
    let uid = |name: &str| pod(name).info().uid.to_string();
    for (answer, expected) in [
        (json!({"a": {"Pods": [{"UID": uid("y")}], "NumPDBViolations": 1}}), Ok(vec![("a", 1, 1)])),
        (json!({}), Ok(vec![])),
        (json!({"b": {"Pods": []}}), Err("expected at least one victim")),
        (json!({"b": {"Pods": [{"UID": "nobody"}]}}), Err("not found on that node")),
    ] {
        let responder = responder(move |_, _| (200, json!({"NodeNameToMetaVictims": answer.clone()}))).await;
        let extenders = [Extender::new(&config(&responder, json!({}))).expect("usable")];
        let outcome = preemption(&extenders, &pod("p").info(), candidates()).await;
        match expected {
            Ok(wanted) => {
                let left = outcome.expect("an answer");
                let left: Vec<_> = left
                    .iter()
                    .map(|candidate| (&*candidate.node, candidate.victims.len(), candidate.violations))
                    .collect();
                assert_eq!(left, wanted);
            }
            Err(text) => {
                let error = outcome.expect_err("unusable").to_string();
                assert!(error.contains(text), "{error}");
            }
        }
    }
}

#[tokio::test]
async fn extender_with_untrusted_certificate_is_not_called() {
    let (responder, other) =
        (responder(|_, _| (200, json!({}))).await, responder(|_, _| (200, json!({}))).await);
    let untrusted = json!({"tlsConfig": {"caData": STANDARD.encode(&other.certificate)}});
    let extender = Extender::new(&config(&responder, untrusted)).expect("usable");
    extender.bind(&pod("p").info(), "a").await.expect_err("not trusted");
    assert!(responder.seen().is_empty());
    for (more, text) in [
        (json!({"tlsConfig": {}}), "one of caFile and caData is required"),
        (json!({"tlsConfig": {"insecure": true}}), "insecure is not supported"),
        (json!({"urlPrefix": "ftp://x"}), "neither an http nor an https URL"),
    ] {
        let error = Extender::new(&config(&responder, more)).err().map(|error| error.to_string());
        assert!(error.as_ref().is_some_and(|error| error.contains(text)), "{error:?}");
    }
}

#[test]
fn extender_score_of_any_size_saturates() {
    assert_eq!(weighted(1, 2, 3), 1 + 2 * 3 * (MAX_NODE_SCORE / MAX_PRIORITY));
    assert_eq!(weighted(1, i64::MAX, i64::MAX), i64::MAX);
    assert_eq!(weighted(-1, i64::MIN, i64::MAX), i64::MIN);
    assert_eq!(weighted(i64::MAX, 1, 1), i64::MAX);
}

/// An extender may have bound a pod before its connection broke: the request is not retried.
#[tokio::test]
async fn bind_received_by_extender_is_not_retried() {
    use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let port = listener.local_addr().expect("an address").port();
    let seen = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = Arc::clone(&seen);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut reader = BufReader::new(&mut stream);
            for number in 0..2 {
                let (mut length, mut line) = (0, String::new());
                while line != "\r\n" {
                    line.clear();
                    reader.read_line(&mut line).await.expect("a line");
                    if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                        length = value.trim().parse().expect("a length");
                    }
                }
                reader.read_exact(&mut vec![0; length]).await.expect("a body");
                count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                if number == 0 {
                    let response = b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{\"Error\":\"\"}";
                    reader.write_all(response).await.expect("writes");
                }
            }
        }
    });
    let config = json!({"urlPrefix": format!("http://127.0.0.1:{port}"), "bindVerb": "bind"});
    let extender = Extender::new(&serde_json::from_value(config).expect("a configuration")).expect("usable");
    let pod = pod("p").info();
    extender.bind(&pod, "a").await.expect("bound");
    let failed = extender.bind(&pod, "a").await;
    assert!(matches!(failed, Err(ExtenderError::Reach { .. })), "{failed:?}");
    assert_eq!(seen.load(std::sync::atomic::Ordering::SeqCst), 2);
}
