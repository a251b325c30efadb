//! The client against servers on loopback.

use super::*;
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Frame;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, UnixListener};
use tokio_rustls::TlsAcceptor;

fn request(method: &str, body: &'static str) -> Request<Full<Bytes>> {
    let request = Request::builder().method(method).uri("/path").header("Host", "server");
    request.body(Full::new(Bytes::from_static(body.as_bytes()))).expect("a request")
}

fn limits() -> Limits {
    let second = Duration::from_secs(20);
    Limits { connect: second, response: second, silence: second, ..Limits::default() }
}

/// Reads one request; false at the end of the connection.
async fn read_request(stream: &mut (impl AsyncRead + Unpin)) -> bool {
    let mut reader = BufReader::new(stream);
    let (mut length, mut line) = (0, String::new());
    loop {
        line.clear();
        if reader.read_line(&mut line).await.unwrap_or(0) == 0 {
            return false;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().expect("a length");
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).await.is_ok()
}

/// Answers so many requests on a connection, and closes it after reading one more.
async fn serve(mut stream: impl AsyncRead + AsyncWrite + Unpin, answers: usize, seen: &AtomicUsize) {
    for number in 0.. {
        if !read_request(&mut stream).await {
            return;
        }
        seen.fetch_add(1, Ordering::SeqCst);
        if number == answers {
            return;
        }
        let response = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        stream.write_all(response.as_bytes()).await.expect("writes");
    }
}

/// A server whose connections answer so many requests. Returns its port, and counts of connections and requests.
async fn server(answers: usize) -> (u16, Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let port = listener.local_addr().expect("an address").port();
    let (connections, seen) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counts = (Arc::clone(&connections), Arc::clone(&seen));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            counts.0.fetch_add(1, Ordering::SeqCst);
            let seen = Arc::clone(&counts.1);
            tokio::spawn(async move { serve(stream, answers, &seen).await });
        }
    });
    (port, connections, seen)
}

/// Host headers of requests with and without one of their own.
#[tokio::test]
async fn request_without_host_names_its_origin() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let port = listener.local_addr().expect("an address").port();
    let hosts = tokio::spawn(async move {
        let mut hosts = Vec::new();
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut lines = BufReader::new(&mut stream).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                if let Some(host) = line.to_ascii_lowercase().strip_prefix("host: ") {
                    hosts.push(host.to_owned());
                }
                if line.is_empty() {
                    break;
                }
            }
            let response = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok";
            stream.write_all(response.as_bytes()).await.expect("writes");
        }
        hosts
    });
    let (origin, client) = (Origin::plain("127.0.0.1", port), Client::new(limits()));
    let bare = Request::get("/path").body(Full::default()).expect("a request");
    for request in [bare, request("GET", "")] {
        client.send(&origin, request).await.expect("a response");
    }
    assert_eq!(hosts.await.expect("both requests"), [format!("127.0.0.1:{port}"), "server".to_owned()]);
}

#[tokio::test]
async fn connections_are_reused_by_the_next_request() {
    let (port, connections, seen) = server(usize::MAX).await;
    let origin = Origin::plain("127.0.0.1", port);
    let client = Client::new(limits());
    for _ in 0..3 {
        let response = client.send(&origin, request("POST", "body")).await.expect("a response");
        assert_eq!(response.bytes(10).await.expect("a body"), "ok");
    }
    assert_eq!((connections.load(Ordering::SeqCst), seen.load(Ordering::SeqCst)), (1, 3));
    let single = Client::new(Limits { max_idle: 0, ..limits() });
    for _ in 0..2 {
        let response = single.send(&origin, request("GET", "")).await.expect("a response");
        response.bytes(10).await.expect("a body");
    }
    assert_eq!(connections.load(Ordering::SeqCst), 3);
}

/// A server that reads a request and closes the connection may have acted on it.
#[tokio::test]
async fn request_that_was_sent_is_not_sent_again() {
    for answers in [0, 1] {
        let (port, _, seen) = server(answers).await;
        let origin = Origin::plain("127.0.0.1", port);
        let client = Client::new(limits());
        for _ in 0..answers {
            let response = client.send(&origin, request("POST", "body")).await.expect("a response");
            response.bytes(10).await.expect("a body");
        }
        let failed = client.send(&origin, request("POST", "body")).await;
        assert!(matches!(failed, Err(HttpError::Exchange(_))), "{failed:?}");
        assert_eq!(seen.load(Ordering::SeqCst), answers + 1);
    }
}

#[tokio::test]
async fn response_beyond_the_limit_is_an_error() {
    let (port, ..) = server(usize::MAX).await;
    let client = Client::new(limits());
    let response = client.send(&Origin::plain("127.0.0.1", port), request("GET", "")).await;
    let too_long = response.expect("a response").bytes(1).await;
    assert!(matches!(too_long, Err(HttpError::TooLong(1))), "{too_long:?}");
    // A server that accepts and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let port = silent.local_addr().expect("an address").port();
    let client = Client::new(Limits { response: Duration::from_millis(50), ..limits() });
    let failed = client.send(&Origin::plain("127.0.0.1", port), request("GET", "")).await;
    assert!(matches!(failed, Err(HttpError::NoResponse(_))), "{failed:?}");
}

#[tokio::test]
async fn socket_files_are_served() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("s");
    let listener = UnixListener::bind(&path).expect("binds");
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.expect("accepts");
        serve(stream, 1, &AtomicUsize::new(0)).await;
    });
    let response = Client::new(limits()).send(&Origin::unix(&path), request("GET", "")).await;
    assert_eq!(response.expect("a response").bytes(10).await.expect("a body"), "ok");
}

/// A certificate that signs itself, with the names of a server.
fn self_signed(name: &str, is_authority: bool) -> (String, rustls::ServerConfig) {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(vec![name.to_owned()]).expect("parameters");
    if is_authority {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    }
    let certificate = params.self_signed(&key).expect("a certificate");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let der = rustls_pki_types::PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], der)
        .expect("a configuration");
    (certificate.pem(), config)
}

async fn call_tls(config: rustls::ServerConfig, trust: &Trust) -> Result<Bytes, HttpError> {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.expect("accepts");
        // The client may reject the certificate.
        if let Ok(stream) = TlsAcceptor::from(Arc::new(config)).accept(stream).await {
            serve(stream, 1, &AtomicUsize::new(0)).await;
        }
    });
    let origin = Origin::of_url(&format!("https://127.0.0.1:{port}/x"), trust).expect("an origin");
    Client::new(limits()).send(&origin, request("GET", "")).await?.bytes(10).await
}

#[tokio::test]
async fn self_signed_server_certificate_in_the_authorities_is_accepted() {
    for is_authority in [false, true] {
        let (pem, config) = self_signed("127.0.0.1", is_authority);
        let trust = Trust { authorities: Authorities::Pem(pem.into_bytes()), ..Trust::default() };
        assert_eq!(call_tls(config, &trust).await.expect("a body"), "ok", "{is_authority}");
    }
}

#[tokio::test]
async fn server_name_replaces_the_host() {
    let (pem, config) = self_signed("hook.ns.svc", true);
    let trust = Trust { authorities: Authorities::Pem(pem.clone().into_bytes()), ..Trust::default() };
    let failed = call_tls(config, &trust).await;
    assert!(matches!(failed, Err(HttpError::Tls { .. })), "{failed:?}");
    let (pem, config) = self_signed("hook.ns.svc", true);
    let server_name = Some("hook.ns.svc".to_owned());
    let trust = Trust { authorities: Authorities::Pem(pem.into_bytes()), server_name, ..Trust::default() };
    assert_eq!(call_tls(config, &trust).await.expect("a body"), "ok");
}

#[tokio::test]
async fn untrusted_certificates_are_rejected() {
    let (pem, _) = self_signed("127.0.0.1", true);
    let (_, config) = self_signed("127.0.0.1", true);
    let trust = Trust { authorities: Authorities::Pem(pem.into_bytes()), ..Trust::default() };
    let failed = call_tls(config, &trust).await;
    assert!(matches!(failed, Err(HttpError::Tls { .. })), "{failed:?}");
    let (_, config) = self_signed("127.0.0.1", true);
    let trust = Trust { authorities: Authorities::Unverified, ..Trust::default() };
    assert_eq!(call_tls(config, &trust).await.expect("a body"), "ok");
}

#[test]
fn urls_name_servers() {
    let trust = Trust { authorities: Authorities::Unverified, ..Trust::default() };
    for (url, authority, secure) in [
        ("http://127.0.0.1:8080/a", "127.0.0.1:8080", false),
        ("http://[::1]", "[::1]:80", false),
        ("https://h/x?y", "h:443", true),
    ] {
        let origin = Origin::of_url(url, &trust).expect(url);
        assert_eq!((origin.authority().as_str(), origin.is_secure()), (authority, secure));
    }
    for bad in ["", "host", "ftp://x/", "/path", "http://"] {
        assert!(matches!(Origin::of_url(bad, &trust), Err(OriginError::Url(_))), "{bad}");
    }
    let trust = Trust { authorities: Authorities::Pem(b"no pem".to_vec()), ..Trust::default() };
    assert!(matches!(Origin::of_url("https://h/", &trust), Err(OriginError::Trust(TrustError::Pem(_)))));
}

/// Sends a body of two pieces, the second after the server has read the first.
#[tokio::test]
async fn streamed_body_is_sent_before_it_is_complete_and_its_connection_is_reused() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let port = listener.local_addr().expect("an address").port();
    let (first_read, mut read) = tokio::sync::mpsc::channel::<()>(1);
    let served = tokio::spawn(async move {
        // A second connection would wait here for ever.
        let (mut stream, _) = listener.accept().await.expect("accepts");
        let mut seen = Vec::new();
        while !seen.ends_with(b"0\r\n\r\n") {
            let mut buffer = [0; 1024];
            let count = stream.read(&mut buffer).await.expect("reads");
            assert!(count > 0, "the connection ended after {:?}", String::from_utf8_lossy(&seen));
            seen.extend_from_slice(&buffer[..count]);
            if seen.ends_with(b"one\r\n") {
                first_read.send(()).await.expect("the body waits");
            }
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.expect("writes");
        serve(stream, 1, &AtomicUsize::new(0)).await;
        String::from_utf8(seen).expect("text")
    });
    let body = futures_util::stream::unfold(0, move |number| {
        let next = match number {
            0 => Some("one"),
            1 => Some("two"),
            _ => None,
        };
        let frame =
            next.map(|text| Ok::<_, std::io::Error>(Frame::data(Bytes::from_static(text.as_bytes()))));
        let first = number == 1;
        let wait = first.then(|| std::mem::replace(&mut read, tokio::sync::mpsc::channel(1).1));
        async move {
            if let Some(mut wait) = wait {
                wait.recv().await;
            }
            frame.map(|frame| (frame, number + 1))
        }
    });
    let (client, origin) = (Client::new(limits()), Origin::plain("127.0.0.1", port));
    let streamed = Request::post("/path").body(StreamBody::new(body)).expect("a request");
    let response = client.send(&origin, streamed).await.expect("a response");
    assert_eq!(response.bytes(10).await.expect("a body"), "ok");
    let response = client.send(&origin, request("GET", "")).await.expect("a response");
    assert_eq!(response.bytes(10).await.expect("a body"), "ok");
    drop(client);
    assert!(served.await.expect("the server ends").contains("3\r\none\r\n3\r\ntwo\r\n"));
}

/// A server that answers before it has read the body: the connection still sends it.
#[tokio::test]
async fn connection_that_still_sends_a_body_is_not_reused() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.expect("writes");
            open.push(stream);
        }
    });
    let (client, origin) = (Client::new(limits()), Origin::plain("127.0.0.1", port));
    let endless = futures_util::stream::pending::<Result<Frame<Bytes>, std::io::Error>>();
    let unfinished = Request::post("/path").body(StreamBody::new(endless)).expect("a request");
    for request in [
        unfinished.map(|body| body.boxed_unsync()),
        request("GET", "").map(|body| body.map_err(std::io::Error::other).boxed_unsync()),
    ] {
        let response = client.send(&origin, request).await.expect("a response");
        assert_eq!(response.bytes(10).await.expect("a body"), "ok");
    }
}

#[tokio::test]
async fn switched_connection_carries_bytes_of_both_sides() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        for head in
            ["101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo", "200 OK\r\nContent-Length: 0"]
        {
            let (mut stream, _) = listener.accept().await.expect("accepts");
            assert!(read_request(&mut stream).await);
            stream.write_all(format!("HTTP/1.1 {head}\r\n\r\n").as_bytes()).await.expect("writes");
            let (mut read, mut write) = stream.split();
            let _ = tokio::io::copy(&mut read, &mut write).await;
        }
    });
    let (client, origin) = (Client::new(limits()), Origin::plain("127.0.0.1", port));
    let upgrade = || {
        Request::get("/path")
            .header("Connection", "Upgrade")
            .header("Upgrade", "echo")
            .body(())
            .expect("a request")
    };
    let response = client.send_upgrade(&origin, upgrade()).await.expect("a response");
    assert_eq!(response.status, 101);
    let mut stream = response.upgraded().await.expect("a connection");
    stream.write_all(b"hello").await.expect("writes");
    let mut echo = [0; 5];
    stream.read_exact(&mut echo).await.expect("reads");
    assert_eq!(&echo, b"hello");
    drop(stream);
    let refused = client.send_upgrade(&origin, upgrade()).await.expect("a response");
    assert_eq!(refused.status, 200);
    assert!(matches!(refused.upgraded().await, Err(HttpError::Upgrade(_))));
}
