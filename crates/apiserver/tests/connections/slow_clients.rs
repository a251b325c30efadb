//! Clients that take their time keep nobody else waiting.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use http::StatusCode;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use serde_json::json;
use testkit::{Server, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const LIMIT: Duration = Duration::from_secs(20);
const FLOW: &str = "/apis/flowcontrol.apiserver.k8s.io/v1";

/// A TLS connection that speaks whatever the test writes.
async fn connect(server: &Server) -> TlsStream<TcpStream> {
    let kubeconfig = std::fs::read_to_string(&server.kubeconfig).expect("a kubeconfig");
    let data = kubeconfig
        .lines()
        .find_map(|line| line.trim().strip_prefix("certificate-authority-data:"))
        .expect("an authority");
    let pem =
        base64::engine::general_purpose::STANDARD.decode(data.trim().trim_matches('"')).expect("base64");
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&pem).expect("a certificate")).expect("usable");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(server.address).await.expect("connects");
    let name = ServerName::from(server.address.ip());
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.expect("handshake")
}

#[tokio::test]
async fn a_body_that_comes_slowly_takes_no_seat() {
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
    let mut slow = connect(&server).await;
    let begin = format!(
        "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\n{head}content-type: application/json\r\ncontent-length: 100\r\n\r\n{{"
    );
    slow.write_all(begin.as_bytes()).await.expect("written");
    slow.flush().await.expect("flushed");
    // Meanwhile the user has other wishes, one after the other.
    let mut other = connect(&server).await;
    for _ in 0..20 {
        let request = format!("GET /version HTTP/1.1\r\n{head}\r\n");
        other.write_all(request.as_bytes()).await.expect("written");
        let mut answer = vec![0; 4096];
        let length = other.read(&mut answer).await.expect("an answer");
        let answer = String::from_utf8_lossy(&answer[..length]);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(slow);
    server.stop().await.expect("drained");
}
