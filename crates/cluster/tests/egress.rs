//! Connections of the API server to the cluster through an HTTP proxy. The proxies apply to the process, hence a
//! separate binary.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use base::egress::Proxies;
use base::http::Origin;
use http::StatusCode;
use serde_json::json;
use testkit::{Responder, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

/// Serves CONNECT to ports of this machine, and records the request lines.
async fn proxy(listener: TcpListener, seen: Arc<Mutex<Vec<String>>>) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let mut head = vec![0; 4096];
        let count = stream.read(&mut head).await.unwrap_or(0);
        let line = String::from_utf8_lossy(&head[..count]).lines().next().unwrap_or_default().to_owned();
        let port = line.split([':', ' ']).filter_map(|part| part.parse::<u16>().ok()).next();
        if let Ok(mut seen) = seen.lock() {
            seen.push(line);
        }
        tokio::spawn(async move {
            let Ok(mut server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port.unwrap_or(1))).await else {
                return drop(stream.write_all(b"HTTP/1.1 502 Bad Gateway\r\n\r\n").await);
            };
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
            let _ = copy_bidirectional(&mut stream, &mut server).await;
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubelets_and_webhooks_are_reached_through_their_proxies() -> Result<()> {
    let listen = async || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
    let (for_cluster, for_control_plane) = (listen().await?, listen().await?);
    let way = |listener: &TcpListener| anyhow::Ok(Origin::plain("127.0.0.1", listener.local_addr()?.port()));
    let proxies =
        Proxies { cluster: Some(way(&for_cluster)?), control_plane: Some(way(&for_control_plane)?) };
    let (to_cluster, to_control_plane) = (Arc::default(), Arc::default());
    tokio::spawn(proxy(for_cluster, Arc::clone(&to_cluster)));
    tokio::spawn(proxy(for_control_plane, Arc::clone(&to_control_plane)));
    let taken = |seen: &Arc<Mutex<Vec<String>>>| {
        seen.lock().map(|mut seen| std::mem::take(&mut *seen)).unwrap_or_default()
    };

    let kubelet = Responder::start(|_, _| (200, json!("a line"))).await?;
    let server = Server::start_with(|config| config.egress = Some(proxies)).await?;
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    server.admin.post("/api/v1/namespaces/default/serviceaccounts", &account).await?;
    // A name that only the proxy can resolve.
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "status": {
        "addresses": [{"type": "Hostname", "address": "n.only-the-proxy-knows.invalid"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet.port()?}},
    }});
    server.admin.post("/api/v1/nodes", &node).await?;
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {
        "nodeName": "n", "automountServiceAccountToken": false, "containers": [{"name": "c", "image": "i"}],
    }});
    let created = server.admin.post("/api/v1/namespaces/default/pods", &pod).await?;
    assert_eq!(created.status, StatusCode::CREATED, "{}", created.body);
    let log = server.admin.get("/api/v1/namespaces/default/pods/p/log").await?;
    assert_eq!(log.status, StatusCode::OK, "{}", log.body);
    let want = format!("CONNECT n.only-the-proxy-knows.invalid:{} HTTP/1.1", kubelet.port()?);
    assert_eq!(taken(&to_cluster), [want]);
    assert!(taken(&to_control_plane).is_empty());

    // Webhooks with URLs use the network of the API server.
    let hook = Responder::start(|_, review| {
        let response = json!({"uid": review["request"]["uid"], "allowed": true});
        (200, json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}))
    })
    .await?;
    let bundle = base64_of(hook.certificate.as_bytes());
    let configuration = json!({"apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration", "metadata": {"name": "w"}, "webhooks": [{
            "name": "w.example.com", "clientConfig": {"url": hook.url, "caBundle": bundle},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}],
            "sideEffects": "None", "admissionReviewVersions": ["v1"], "failurePolicy": "Fail"}]});
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    let created = server.admin.post(path, &configuration).await?;
    assert_eq!(created.status, StatusCode::CREATED, "{}", created.body);
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "c-"}});
    let create = async || {
        let reply = server.admin.post("/api/v1/namespaces/default/configmaps", &object).await;
        (reply.map(|reply| reply.status).ok(), hook.seen().len())
    };
    let limit = std::time::Duration::from_secs(60);
    testkit::eventually("the webhook is called", limit, create, |(code, calls)| {
        *code == Some(StatusCode::CREATED) && *calls > 0
    })
    .await;
    let seen = taken(&to_control_plane);
    let first = seen.first().context("a request to the proxy")?;
    assert_eq!(*first, format!("CONNECT 127.0.0.1:{} HTTP/1.1", hook.port()?));
    assert!(taken(&to_cluster).is_empty());
    server.stop().await
}

fn base64_of(bytes: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}
