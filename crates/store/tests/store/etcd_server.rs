//! The embedded store behind etcd's API: the battery through Ferry's own etcd client, and clients that misbehave.

use std::sync::Arc;

use store::{Embedded, EmbeddedOptions, Etcd, EtcdOptions, Store};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::battery::Ctx;
use crate::etcd::pass_battery;

/// A server that ends with the test.
struct Server {
    address: String,
    _directory: TempDir,
}

impl Server {
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> =
            Arc::new(Embedded::open(EmbeddedOptions::new(directory.path().join("store"))).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(store::etcd_server::serve(listener, store, std::future::pending()));
        Self { address, _directory: directory }
    }

    async fn connect(&self) -> Arc<dyn Store> {
        Arc::new(Etcd::connect(EtcdOptions::new([self.address.clone()])).await.unwrap())
    }

    async fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn served_embedded_store_passes_battery() {
    let server = Server::start().await;
    pass_battery(server.connect().await).await;
}

#[tokio::test]
async fn health_and_version_are_answered_over_http_1() {
    let server = Server::start().await;
    let health = server.get("/health").await;
    assert!(health.starts_with("HTTP/1.1 200") && health.contains(r#""health":"true""#), "{health}");
    assert!(server.get("/version").await.contains(r#""etcdserver":"3."#));
}

#[tokio::test]
async fn garbage_on_a_connection_leaves_others_alone() {
    let server = Server::start().await;
    let store = server.connect().await;
    for garbage in
        [&b"\0\0\0\0\0\0"[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff", b"GET \xff\r\n\r\n"]
    {
        let mut stream = TcpStream::connect(&server.address).await.unwrap();
        stream.write_all(garbage).await.unwrap();
        drop(stream);
    }
    let ctx = Ctx::new(store, "garbage");
    ctx.put("a", "1").await;
    assert!(ctx.get("a").await.is_some());
}
