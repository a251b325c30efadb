//! Slow clients do not delay other requests.

use std::time::Duration;

use http::StatusCode;
use serde_json::json;
use testkit::{Server, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const LIMIT: Duration = Duration::from_secs(20);
const FLOW: &str = "/apis/flowcontrol.apiserver.k8s.io/v1";

#[tokio::test]
async fn slow_request_body_holds_no_seat() {
    let tokens = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(tokens.path(), "secret,slow,1").expect("written");
    let path = tokens.path().to_owned();
    let server = Server::start_with(|config| {
        config.api.authentication.token_file = Some(path);
        config.api.chain.max_requests_in_flight = 1;
        config.api.chain.max_mutating_in_flight = 0;
    })
    .await
    .expect("starts");
    let admin = &server.admin;
    // One seat for the user, and no queue.
    let level = json!({
        "metadata": {"name": "slow"},
        "spec": {"type": "Limited", "limited": {
            "nominalConcurrencyShares": 1, "borrowingLimitPercent": 0, "limitResponse": {"type": "Reject"},
        }},
    });
    let everything = json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": true}]);
    let schema = json!({
        "metadata": {"name": "slow"},
        "spec": {"matchingPrecedence": 50, "priorityLevelConfiguration": {"name": "slow"}, "rules": [{
            "subjects": [{"kind": "User", "user": {"name": "slow"}}],
            "resourceRules": everything, "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
        }]},
    });
    for (resource, object) in [("prioritylevelconfigurations", level), ("flowschemas", schema)] {
        let made = admin.post(&format!("{FLOW}/{resource}"), &object).await.expect("an answer");
        assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    }
    let found = async || {
        let schema = admin.get(&format!("{FLOW}/flowschemas/slow")).await.expect("an answer").body;
        schema["status"]["conditions"][0]["reason"].as_str().unwrap_or("").to_owned()
    };
    eventually("the schema is in force", LIMIT, found, |reason| reason == "Found").await;

    let head = "authorization: Bearer secret\r\nhost: x\r\n";
    let raw = server.anonymous_http1().expect("a client");
    let mut slow = raw.handshake().await.expect("a connection");
    let begin = format!(
        "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\n{head}content-type: application/json\r\ncontent-length: 100\r\nexpect: 100-continue\r\n\r\n"
    );
    slow.write_all(begin.as_bytes()).await.expect("written");
    slow.flush().await.expect("flushed");
    // Sent when the server begins to read the body, which stays incomplete.
    let mut proceed = [0; 25];
    slow.read_exact(&mut proceed).await.expect("read");
    assert_eq!(&proceed, b"HTTP/1.1 100 Continue\r\n\r\n");
    slow.write_all(b"{").await.expect("written");
    slow.flush().await.expect("flushed");
    // Meanwhile the user sends other requests in sequence.
    let mut other = raw.handshake().await.expect("a connection");
    for _ in 0..20 {
        let request = format!("GET /version HTTP/1.1\r\n{head}\r\n");
        other.write_all(request.as_bytes()).await.expect("written");
        let mut answer = vec![0; 4096];
        let length = other.read(&mut answer).await.expect("an answer");
        let answer = String::from_utf8_lossy(&answer[..length]);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    drop(slow);
    server.stop().await.expect("drained");
}
