//! Requests that try to exhaust or abuse the server, through the whole chain.

use crate::serve::RequestBody;
use crate::test_server::{ADMIN, ALICE, TestServer};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{Method, Request};
use machinery::Value;
use serde_json::json;
use std::net::{IpAddr, UdpSocket};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn yaml_aliases_to_long_text_return_400() {
    let server = TestServer::start();
    server.grant(&[("create", "selfsubjectaccessreviews"), ("patch", "configmaps")]);
    let long = "x".repeat(1 << 20);
    let body = format!("{{a: &a \"{long}\", b: [{}]}}", "*a, ".repeat(950));
    let (code, answer) = server.ask(ALICE, Method::POST, REVIEWS, "application/yaml", body.clone()).await;
    assert_eq!(code, 400, "{answer:.300}");
    assert!(answer["message"].as_str().is_some_and(|message| message.contains("excessive aliasing")));
    let path = "/api/v1/namespaces/n/configmaps/x?fieldManager=t";
    let (code, answer) = server.ask(ALICE, Method::PATCH, path, "application/apply-patch+yaml", body).await;
    assert_eq!(code, 400, "{answer:.300}");
}

#[tokio::test]
async fn watch_with_largest_timeout_is_served() {
    let server = TestServer::start();
    for seconds in ["9223372036854775807", "1000000000000", "1"] {
        let request = Request::get(format!("/api/v1/pods?watch=true&timeoutSeconds={seconds}"))
            .header("authorization", format!("Bearer {ADMIN}"))
            .body(RequestBody::default())
            .expect("a request");
        assert_eq!(server.send(request).await.status(), 200, "{seconds}");
    }
}

/// An address of this machine that a proxy may reach.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    socket
        .local_addr()
        .ok()
        .map(|address| address.ip())
        .filter(|ip| !ip.is_loopback() && !ip.is_unspecified())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn websocket_bearer_token_does_not_reach_the_pod() {
    let Some(ip) = own_address() else {
        println!("skipped: this machine has no address besides loopback");
        return;
    };
    let server = TestServer::start();
    server.create("/api/v1/namespaces", &json!({"metadata": {"name": "n"}})).await;
    let accounts = "/api/v1/namespaces/n/serviceaccounts";
    server.create(accounts, &json!({"metadata": {"name": "default", "namespace": "n"}})).await;
    let pods = "/api/v1/namespaces/n/pods";
    let spec = json!({"containers": [{"name": "c", "image": "i"}]});
    server.create(pods, &json!({"metadata": {"name": "p", "namespace": "n"}, "spec": spec})).await;
    let status = json!({"status": {"podIP": ip.to_string(), "podIPs": [{"ip": ip.to_string()}]}});
    let (media, path) = ("application/merge-patch+json", format!("{pods}/p/status"));
    let (code, answer): (u16, Value) =
        server.ask(ADMIN, Method::PATCH, &path, media, status.to_string()).await;
    assert_eq!(code, 200, "{answer}");

    let listener = TcpListener::bind("0.0.0.0:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let pod = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let mut head = Vec::new();
        while !head.windows(4).any(|end| end == b"\r\n\r\n") {
            let mut piece = [0; 4096];
            let count = stream.read(&mut piece).await.expect("bytes");
            assert_ne!(count, 0, "the request ends early");
            head.extend_from_slice(&piece[..count]);
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.expect("written");
        String::from_utf8(head).expect("text")
    });
    let token = URL_SAFE_NO_PAD.encode(ADMIN);
    let request = Request::get(format!("{pods}/p:{port}/proxy/"))
        .header("connection", "Upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
        .header(
            "sec-websocket-protocol",
            format!("base64url.bearer.authorization.k8s.io.{token}, chat.example"),
        )
        .body(RequestBody::default())
        .expect("a request");
    let reply = server.send(request).await;
    assert_eq!(reply.status(), 200, "the token authenticates, and the pod answers");
    let head = pod.await.expect("the pod was asked").to_lowercase();
    assert!(head.contains("chat.example"), "{head}");
    assert!(!head.contains("bearer"), "{head}");
    assert!(!head.contains(&token.to_lowercase()), "{head}");
}
