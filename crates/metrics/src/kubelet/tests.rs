//! The client against small servers on loopback.

use super::*;
use objects::meta::v1::ObjectMeta;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

struct Plain;

impl KubeletTls for Plain {
    fn config(&self, _node: &str) -> Result<Option<Arc<ClientConfig>>, String> {
        Ok(None)
    }

    fn token(&self) -> Result<Option<String>, String> {
        Ok(Some("secret".to_owned()))
    }
}

fn kubelets(timeout: Duration) -> Kubelets {
    Kubelets::new(KubeletAddressing::default(), Arc::new(Plain), timeout, Clock::system())
}

/// A node whose kubelet answers each connection with `response`, and closes it; one that hangs if it is empty.
async fn node(response: Vec<u8>) -> NodeRecord {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let response = response.clone();
            tokio::spawn(async move {
                let mut request = vec![0; 4096];
                let length = stream.read(&mut request).await.unwrap_or(0);
                let request = String::from_utf8_lossy(&request[..length]).into_owned();
                assert!(request.starts_with("GET /metrics/resource "), "{request}");
                assert!(request.contains("Bearer secret"), "{request}");
                if response.is_empty() {
                    std::future::pending::<()>().await;
                }
                let _ = stream.write_all(&response).await;
            });
        }
    });
    NodeRecord {
        metadata: ObjectMeta { name: Some("n".to_owned()), ..ObjectMeta::default() },
        addresses: vec![
            ("Hostname".to_owned(), "n".to_owned()),
            ("InternalIP".to_owned(), "127.0.0.1".to_owned()),
        ],
        kubelet_port: port,
        ..NodeRecord::default()
    }
}

fn page(body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

#[tokio::test]
async fn page_is_fetched_with_the_credential() {
    let node =
        node(page("node_cpu_usage_seconds_total 2 1000\nnode_memory_working_set_bytes 3 1000\n")).await;
    let batch = kubelets(Duration::from_secs(10)).scrape(&node, &|_, _| None).await.expect("a batch");
    assert_eq!(batch.node.map(|point| (point.cpu, point.memory)), Some((2_000_000_000, 3)));
}

#[tokio::test]
async fn kubelet_that_hangs_refuses_or_lies_is_an_error() {
    let soon = kubelets(Duration::from_millis(200));
    let hung = soon.scrape(&node(Vec::new()).await, &|_, _| None).await;
    assert!(matches!(hung, Err(ScrapeError::Timeout(_) | ScrapeError::Http(_))), "{hung:?}");
    let kubelets = kubelets(Duration::from_secs(20));
    let refused = kubelets
        .scrape(&node(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n".to_vec()).await, &|_, _| None)
        .await;
    assert!(matches!(refused, Err(ScrapeError::Status(StatusCode::FORBIDDEN))), "{refused:?}");
    let wrong = kubelets.scrape(&node(page("node_cpu_usage_seconds_total{ 1\n")).await, &|_, _| None).await;
    assert!(matches!(wrong, Err(ScrapeError::Decode(_))), "{wrong:?}");
    let long = "# a comment\n".repeat((LONGEST_PAGE / 12) + 2);
    let long = kubelets.scrape(&node(page(&long)).await, &|_, _| None).await;
    assert!(matches!(long, Err(ScrapeError::TooLong)), "{long:?}");
}

#[tokio::test]
async fn node_without_address_or_port_is_an_error() {
    let kubelets = kubelets(Duration::from_secs(10));
    let nowhere = NodeRecord::default();
    assert!(matches!(kubelets.scrape(&nowhere, &|_, _| None).await, Err(ScrapeError::NoAddress)));
    let addresses = vec![("InternalIP".to_owned(), "127.0.0.1".to_owned())];
    let node = NodeRecord { addresses, ..NodeRecord::default() };
    assert!(matches!(kubelets.scrape(&node, &|_, _| None).await, Err(ScrapeError::NoPort)));
}
