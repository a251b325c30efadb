//! The serving layer with well-behaved and misbehaving clients.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use apiserver::serve::{
    ClientTrust, Connection, InProcess, Peer, RequestBody, ResponseBody, ServerConfig, Service, Tls, bind,
    serve,
};
use base::pki::{Pki, ServingNames};
use base::tasks::TaskGroup;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use jiff::Timestamp;
use testbase::{Client, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

const LIMIT: Duration = Duration::from_secs(60);

/// Responds by path: `/echo`, `/list`, `/watch`, `/slow`, `/who`, `/flood`.
struct Echo {
    stopping: TaskGroup,
    cancelled: Arc<AtomicBool>,
    /// Number of requests to `/slow` that have begun.
    begun: AtomicUsize,
    /// Closed to let `/slow` respond.
    gate: Semaphore,
}

impl Echo {
    /// Waits until the handler of a request to `/slow` runs.
    async fn has_begun(&self) {
        eventually(
            "a slow request begins",
            LIMIT,
            async || self.begun.load(Ordering::SeqCst),
            |begun| *begun > 0,
        )
        .await;
    }
}

struct OnDrop(Arc<AtomicBool>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Service for Echo {
    async fn call(
        &self,
        request: Request<RequestBody>,
        connection: Arc<Connection>,
    ) -> Response<ResponseBody> {
        let path = request.uri().path().to_owned();
        match path.as_str() {
            "/echo" => match request.into_body().collect().await {
                Ok(body) => Response::new(body.to_bytes().into()),
                Err(_) => Response::new(ResponseBody::Empty),
            },
            "/list" => Response::new(
                (0..5000).map(|i| Bytes::from(format!("item {i:>8} {}\n", "x".repeat(200)))).collect(),
            ),
            "/watch" => {
                let (sender, body) = ResponseBody::channel(4);
                let group = self.stopping.clone();
                tokio::spawn(async move {
                    let _ = sender.send(Bytes::from_static(b"{\"event\":1}\n")).await;
                    group.stopping().await;
                    let _ = sender.send(Bytes::from_static(b"{\"event\":2}\n")).await;
                });
                Response::new(body)
            }
            "/slow" => {
                let _guard = OnDrop(Arc::clone(&self.cancelled));
                self.begun.fetch_add(1, Ordering::SeqCst);
                // The semaphore never has a permit: it is only closed.
                let _ = self.gate.acquire().await;
                Response::new("done".into())
            }
            "/flood" => {
                let (sender, body) = ResponseBody::channel(1);
                let cancelled = OnDrop(Arc::clone(&self.cancelled));
                tokio::spawn(async move {
                    let _cancelled = cancelled;
                    while sender.send(Bytes::from(vec![b'x'; 1 << 16])).await.is_ok() {}
                });
                Response::new(body)
            }
            "/who" => {
                let trust = connection
                    .certificates
                    .as_ref()
                    .map(|c| (c.client.is_trusted(), c.front_proxy.is_trusted()));
                let cached = connection.cached(Instant::now);
                assert!(cached.is_some());
                Response::new(format!("{trust:?} {}", connection.peer == Peer::InProcess).into())
            }
            _ => {
                let mut response = Response::new(ResponseBody::Empty);
                *response.status_mut() = StatusCode::NOT_FOUND;
                response
            }
        }
    }
}

struct Server {
    address: SocketAddr,
    pki: Pki,
    tls: Arc<Tls>,
    service: Arc<Echo>,
    group: TaskGroup,
    running: JoinHandle<bool>,
    _dir: tempfile::TempDir,
}

impl Server {
    async fn start(config: ServerConfig) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let mut names = ServingNames::of_the_api_server("cluster.local");
        names.ips.insert(Ipv4Addr::LOCALHOST.into());
        let pki = Pki::open(&dir.path().join("pki"), &names, Timestamp::now()).expect("certificates");
        let trust = trust(&pki);
        let serving = pki.leaves().serving;
        let tls = Arc::new(Tls::new(serving.chain.clone(), serving.key(), trust).expect("TLS"));
        let (listener, address) = bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a port");
        let group = TaskGroup::new();
        let service = Arc::new(Echo {
            stopping: group.clone(),
            cancelled: Arc::default(),
            begun: AtomicUsize::new(0),
            gate: Semaphore::new(0),
        });
        let running =
            tokio::spawn(serve(listener, Arc::clone(&tls), Arc::clone(&service), config, group.clone()));
        Self { address, pki, tls, service, group, running, _dir: dir }
    }

    fn client(&self, h2: bool) -> Client {
        let admin = Some(self.pki.leaves().admin.into());
        let authority = &self.pki.server_authority.certificate;
        let make = if h2 { Client::new } else { Client::http1 };
        make(self.address, authority, admin).expect("a client")
    }
}

fn trust(pki: &Pki) -> ClientTrust {
    let (client, front) = (&pki.client_authority.certificate, &pki.front_proxy_authority.certificate);
    ClientTrust::new(std::slice::from_ref(client), std::slice::from_ref(front)).expect("authorities")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http1_and_http2_carry_bodies_of_every_form() {
    let server = Server::start(ServerConfig::default()).await;
    for h2 in [false, true] {
        let client = server.client(h2);
        for size in [0usize, 1, 70_000, 3_000_000] {
            let body = Bytes::from(vec![7u8; size]);
            let reply = client.request(Method::POST, "/echo", "", body.clone()).await.expect("answers");
            assert_eq!(reply.bytes, body, "h2 {h2}, {size} bytes");
            if size > 0 {
                assert_eq!(reply.headers["content-length"], size.to_string());
            }
        }
        let list = client.get("/list").await.expect("answers");
        assert_eq!(list.bytes.len(), 5000 * 215);
        assert_eq!(list.bytes.iter().filter(|byte| **byte == b'\n').count(), 5000);
        assert_eq!(list.headers["content-length"], "1075000");
        let mut watch = client.stream("/watch").await.expect("answers");
        let event = watch.next().await.expect("reads").expect("an event");
        assert_eq!(event["event"], 1);
        assert_eq!(client_closed(&server, h2).await, StatusCode::NOT_FOUND);
    }
}

async fn client_closed(server: &Server, h2: bool) -> StatusCode {
    server.client(h2).get("/nothing").await.expect("answers").status
}

#[tokio::test]
async fn client_certificates_are_distinguished_by_authority() {
    let server = Server::start(ServerConfig::default()).await;
    let authority = &server.pki.server_authority.certificate;
    let leaves = server.pki.leaves();
    let elsewhere = tempfile::tempdir().expect("a directory");
    let stranger = Pki::open(&elsewhere.path().join("pki"), &ServingNames::default(), Timestamp::now())
        .expect("certificates")
        .leaves();
    let cases = [
        (Some(leaves.admin.clone().into()), "Some((true, false)) false"),
        (Some(leaves.front_proxy_client.clone().into()), "Some((false, true)) false"),
        (Some(stranger.admin.into()), "Some((false, false)) false"),
        (Some(leaves.serving.into()), "Some((false, false)) false"),
        (None, "None false"),
    ];
    for (identity, want) in cases {
        let client = Client::new(server.address, authority, identity).expect("a client");
        let reply = client.get("/who").await.expect("an unknown certificate does not fail the handshake");
        assert_eq!(reply.bytes, want);
    }
    let local = InProcess::new(Arc::clone(&server.service), leaves.admin.chain, &server.tls.trust());
    let request = Request::builder().uri("/who").body(RequestBody::default()).expect("a request");
    let reply = local.call(request).await.into_body().collect().await.expect("a body").to_bytes();
    assert_eq!(reply, "Some((true, false)) true");
}

#[tokio::test]
async fn replaced_certificate_serves_new_connections() {
    let server = Server::start(ServerConfig::default()).await;
    let old = server.client(true);
    old.get("/who").await.expect("answers");
    let elsewhere = tempfile::tempdir().expect("a directory");
    let mut names = ServingNames::default();
    names.ips.insert(Ipv4Addr::LOCALHOST.into());
    let other = Pki::open(&elsewhere.path().join("pki"), &names, Timestamp::now()).expect("certificates");
    let serving = other.leaves().serving;
    server.tls.replace(serving.chain.clone(), serving.key(), Vec::new(), trust(&other)).expect("replaces");
    old.get("/who").await.expect("open connections go on");
    assert!(server.client(true).get("/who").await.is_err(), "the old authority is not the server's any more");
    let new =
        Client::new(server.address, &other.server_authority.certificate, Some(other.leaves().admin.into()));
    let reply = new.expect("a client").get("/who").await.expect("answers");
    assert_eq!(reply.bytes, "Some((true, false)) false");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drain_finishes_requests_and_ends_watches() {
    for h2 in [false, true] {
        let server = Server::start(ServerConfig::default()).await;
        let (slow, watching, idle) = (server.client(h2), server.client(h2), server.client(h2));
        idle.get("/who").await.expect("answers");
        let mut watch = watching.stream("/watch").await.expect("answers");
        watch.next().await.expect("reads").expect("an event");
        let request = tokio::spawn(async move { slow.get("/slow").await.map(|reply| reply.bytes) });
        server.service.has_begun().await;
        server.group.stop();
        server.service.gate.close();
        assert_eq!(request.await.expect("runs").expect("an answer in spite of the drain"), "done");
        assert_eq!(watch.next().await.expect("reads").expect("a last event")["event"], 2);
        assert!(watch.next().await.expect("an orderly end").is_none(), "h2 {h2}");
        assert!(tokio::time::timeout(LIMIT, server.running).await.expect("drains").expect("runs"));
        assert!(TcpStream::connect(server.address).await.is_err(), "listener is closed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drain_ends_after_its_grace_period() {
    let config = ServerConfig { drain_grace: Duration::from_millis(50), ..ServerConfig::default() };
    let server = Server::start(config).await;
    let client = server.client(true);
    let request = tokio::spawn(async move { client.get("/slow").await });
    server.service.has_begun().await;
    server.group.stop();
    assert!(!tokio::time::timeout(LIMIT, server.running).await.expect("drains").expect("runs"));
    assert!(request.await.expect("runs").is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disconnecting_client_cancels_its_request() {
    for h2 in [false, true] {
        let server = Server::start(ServerConfig::default()).await;
        let client = server.client(h2);
        let request = tokio::spawn(async move { client.get("/slow").await.map(|reply| reply.status) });
        server.service.has_begun().await;
        request.abort();
        let cancelled = Arc::clone(&server.service.cancelled);
        eventually("cancelled", LIMIT, async || cancelled.load(Ordering::SeqCst), |yes| *yes).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_that_reads_nothing_is_disconnected() {
    let config = ServerConfig { write_timeout: Duration::from_millis(200), ..ServerConfig::default() };
    let server = Server::start(config).await;
    for h2 in [false, true] {
        server.service.cancelled.store(false, Ordering::SeqCst);
        let client = server.client(h2);
        let request = Request::builder().uri("/flood").body(Full::default()).expect("a request");
        let held = client.send(request).await.expect("answers");
        if h2 {
            // HTTP/2 flow control keeps a stream from filling the socket, so there is little to buffer and nothing to
            // cut off.
            drop(held);
        }
        let cancelled = Arc::clone(&server.service.cancelled);
        eventually("cut off", LIMIT, async || cancelled.load(Ordering::SeqCst), |yes| *yes).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_idle_and_slow_connections_are_closed() {
    let config = ServerConfig {
        handshake_timeout: Duration::from_millis(200),
        header_timeout: Duration::from_millis(300),
        idle_timeout: Duration::from_millis(600),
        ..ServerConfig::default()
    };
    let server = Server::start(config).await;
    let mut silent = TcpStream::connect(server.address).await.expect("connects");
    closed("no handshake", &mut silent).await;
    let mut slow = raw_tls(&server).await;
    slow.write_all(b"GET /who HTTP/1.1\r\nHost: x\r\nX-Never-").await.expect("writes");
    closed("half a head", &mut slow).await;
    let client = server.client(false);
    let slow = tokio::spawn(async move { client.get("/slow").await.map(|reply| reply.bytes) });
    server.service.has_begun().await;
    // Opened after the slow request has begun, so its idle timeout ends later than one of that request would.
    let mut idle = raw_tls(&server).await;
    idle.write_all(b"GET /who HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("writes");
    closed("idle", &mut idle).await;
    server.service.gate.close();
    assert_eq!(slow.await.expect("runs").expect("a slow response does not make a connection idle"), "done");
}

async fn raw_tls(server: &Server) -> tokio_rustls::client::TlsStream<TcpStream> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(server.pki.server_authority.certificate.clone()).expect("an authority");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(server.address).await.expect("connects");
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    connector.connect(server.address.ip().into(), stream).await.expect("handshake")
}

async fn closed(what: &str, io: &mut (impl tokio::io::AsyncRead + Unpin)) {
    let mut sink = Vec::new();
    let read = tokio::time::timeout(LIMIT, io.read_to_end(&mut sink)).await;
    assert!(read.is_ok(), "{what}: still open after {LIMIT:?}");
}

#[tokio::test]
async fn large_request_head_returns_431() {
    let config = ServerConfig { max_header_bytes: 16 * 1024, ..ServerConfig::default() };
    let server = Server::start(config).await;
    let mut raw = raw_tls(&server).await;
    let head = format!("GET /who HTTP/1.1\r\nHost: x\r\nX-Large: {}\r\n\r\n", "x".repeat(32 * 1024));
    raw.write_all(head.as_bytes()).await.expect("writes");
    let mut answer = vec![0; 12];
    raw.read_exact(&mut answer).await.expect("reads");
    assert_eq!(String::from_utf8_lossy(&answer), "HTTP/1.1 431");
    let request = Request::builder().uri("/who").header("x-large", "x".repeat(32 * 1024));
    let reply = server.client(true).exchange(request.body(Full::default()).expect("a request")).await;
    if let Ok(reply) = reply {
        assert_eq!(reply.status, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    }
    for h2 in [false, true] {
        let after = server.client(h2).get("/who").await.expect("the server lives on");
        assert_eq!(after.status, StatusCode::OK);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_beyond_the_limit_of_its_address_is_closed() {
    let config = ServerConfig { max_connections_per_address: 1, ..ServerConfig::default() };
    let server = Server::start(config).await;
    let first = server.client(true);
    first.get("/who").await.expect("answers");
    assert!(server.client(true).get("/who").await.is_err(), "a second connection of the address");
    drop(first);
    let again = async || server.client(true).get("/who").await.map(|reply| reply.status).ok();
    eventually("a connection is free again", LIMIT, again, |status| *status == Some(StatusCode::OK)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_beyond_limit_wait_for_a_slot() {
    let config = ServerConfig { max_connections: 1, ..ServerConfig::default() };
    let server = Server::start(config).await;
    let first = server.client(true);
    first.get("/who").await.expect("answers");
    let second = server.client(true);
    let waiting = tokio::spawn(async move { second.get("/who").await.map(|reply| reply.status) });
    for _ in 0..50 {
        first.get("/who").await.expect("answers");
    }
    assert!(!waiting.is_finished());
    drop(first);
    let served = tokio::time::timeout(LIMIT, waiting).await.expect("its turn came").expect("runs");
    assert_eq!(served.expect("answers"), StatusCode::OK);
}
