//! kube-apiserver's certificate, HTTP and timeout flags, over real connections.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use cluster::NamedFiles;
use http::{Method, Request, StatusCode, header};
use http_body_util::Full;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::json;
use testkit::{Responder, Server, eventually};

const LIMIT: Duration = Duration::from_secs(60);

/// Creates an authority, and a leaf of it in `<file>.crt` and `<file>.key`.
struct Files<'a> {
    directory: &'a Path,
    authority: CertifiedIssuer<'static, KeyPair>,
}

impl<'a> Files<'a> {
    fn new(directory: &'a Path) -> Result<Self> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Ok(Self { directory, authority: CertifiedIssuer::self_signed(params, KeyPair::generate()?)? })
    }

    fn issue(&self, file: &str, name: &str) -> Result<Vec<u8>> {
        let key = KeyPair::generate()?;
        let leaf = CertificateParams::new([name.to_owned()])?.signed_by(&key, &self.authority)?;
        self.write(&format!("{file}.crt"), &leaf.pem())?;
        self.write(&format!("{file}.key"), &key.serialize_pem())?;
        Ok(leaf.der().to_vec())
    }

    /// Replaces a file atomically, as certificate managers do.
    fn write(&self, file: &str, text: &str) -> Result<()> {
        let temporary = self.directory.join("new");
        std::fs::write(&temporary, text)?;
        Ok(std::fs::rename(temporary, self.directory.join(file))?)
    }

    fn named(&self, file: &str, names: &[&str]) -> NamedFiles {
        let path = |end: &str| self.directory.join(format!("{file}.{end}"));
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        NamedFiles { certificate: path("crt"), key: path("key"), names }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sni_certificates_are_reloaded_and_invalid_files_ignored() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let files = Files::new(directory.path())?;
    let (first, wild) = (files.issue("a", "a.example.com")?, files.issue("b", "*.b.example.com")?);
    let server = Server::start_with(|config| {
        config.files.named = vec![files.named("a", &[]), files.named("b", &["*.b.example.com"])];
        config.certificate_check = Duration::from_millis(20);
    })
    .await?;
    let client = testkit::Client::new(server.address, files.authority.der(), None)?;
    let shown = async |name: &str| client.server_certificate_for(name).await.ok().map(|leaf| leaf.to_vec());
    assert_eq!(shown("a.example.com").await, Some(first));
    assert_eq!(shown("x.b.example.com").await, Some(wild));
    assert_eq!(shown("other.example.com").await, None, "the cluster's own certificate");
    assert!(server.admin.server_certificate().await.is_ok());

    let second = files.issue("a", "a.example.com")?;
    eventually(
        "the new certificate",
        LIMIT,
        async || shown("a.example.com").await,
        |cert| cert.as_ref() == Some(&second),
    )
    .await;
    // Once the other file's change is in use, the invalid one has been read, too.
    let garbage = "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n";
    let other_key = KeyPair::generate()?.serialize_pem();
    for (file, text) in
        [("a.crt", garbage), ("a.crt", ""), ("a.key", "\0\u{7f}"), ("a.key", other_key.as_str())]
    {
        files.write(file, text)?;
        let other = files.issue("b", "*.b.example.com")?;
        eventually(
            "the other file is read",
            LIMIT,
            async || shown("x.b.example.com").await,
            |cert| cert.as_ref() == Some(&other),
        )
        .await;
        assert_eq!(shown("a.example.com").await, Some(second.clone()), "{file} {text:?}");
    }
    let third = files.issue("a", "a.example.com")?;
    eventually(
        "the repaired file",
        LIMIT,
        async || shown("a.example.com").await,
        |cert| cert.as_ref() == Some(&third),
    )
    .await;
    assert_eq!(server.admin.get("/readyz").await?.status, StatusCode::OK);
    server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubelet_certificate_of_other_authority_is_rejected() -> Result<()> {
    let answer = |_: &str, _: &serde_json::Value| (200, json!("a line"));
    let (trusted, other) = (Responder::start(answer).await?, Responder::start(answer).await?);
    let directory = tempfile::tempdir()?;
    let authority = directory.path().join("kubelet-ca.crt");
    std::fs::write(&authority, &trusted.certificate)?;
    let server = Server::start_with(|config| config.files.kubelet_ca = Some(authority)).await?;
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    server.admin.post("/api/v1/namespaces/default/serviceaccounts", &account).await?;
    for (name, port, kind, address, accepted) in [
        ("trusted", trusted.port()?, "InternalIP", "127.0.0.1", true),
        ("other", other.port()?, "InternalIP", "127.0.0.1", false),
        ("renamed", trusted.port()?, "Hostname", "localhost", false),
    ] {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {
            "addresses": [{"type": kind, "address": address}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }});
        let created = server.admin.post("/api/v1/nodes", &node).await?;
        assert_eq!(created.status, StatusCode::CREATED, "{}", created.body);
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
            "nodeName": name, "automountServiceAccountToken": false,
            "containers": [{"name": "c", "image": "i"}],
        }});
        let created = server.admin.post("/api/v1/namespaces/default/pods", &pod).await?;
        assert_eq!(created.status, StatusCode::CREATED, "{}", created.body);
        let before = trusted.seen().len() + other.seen().len();
        let log = server.admin.get(&format!("/api/v1/namespaces/default/pods/{name}/log")).await?;
        assert_eq!(log.status.is_success(), accepted, "{name}: {}", log.body);
        let reached = trusted.seen().len() + other.seen().len() > before;
        assert_eq!(reached, accepted, "{name}: {}", log.body);
    }
    server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn goaway_closes_http2_connection_after_its_request() -> Result<()> {
    for (chance, goes) in [(0.0, false), (1.0, true)] {
        let server = Server::start_with(|config| config.serving.goaway_chance = chance).await?;
        // The request is answered before its connection closes.
        assert_eq!(server.admin.get("/api/v1/namespaces").await?.status, StatusCode::OK);
        let http1 = server.admin_http1()?;
        assert_eq!(http1.get("/api/v1/namespaces").await?.status, StatusCode::OK);
        if goes {
            let connected = async || server.admin.is_connected().await;
            eventually("the connection ends", LIMIT, connected, |connected| !connected).await;
        }
        assert_eq!(server.admin.is_connected().await, !goes);
        assert!(http1.is_connected().await, "HTTP/1.1 has no GOAWAY");
        assert_eq!(server.admin.get("/api/v1/namespaces").await?.status, StatusCode::OK);
        server.stop().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cors_allows_configured_origins_and_hsts_is_sent() -> Result<()> {
    let server = Server::start_with(|config| {
        config.api.chain.cors = cluster::Cors::new(["//example\\.com(:|$)"]).expect("a pattern");
        config.api.chain.strict_transport_security = Some(header::HeaderValue::from_static("max-age=60"));
    })
    .await?;
    let send = async |client: &testkit::Client, method: Method, origin: &str| {
        let request =
            Request::builder().method(method).uri("/api/v1/namespaces").header(header::ORIGIN, origin);
        client.exchange(request.body(Full::new(Bytes::new()))?).await
    };
    let anonymous = server.anonymous()?;
    let reply = send(&server.admin, Method::GET, "https://example.com:8443").await?;
    assert_eq!(reply.status, StatusCode::OK);
    assert_eq!(reply.headers[header::ACCESS_CONTROL_ALLOW_ORIGIN], "https://example.com:8443");
    assert_eq!(reply.headers[header::ACCESS_CONTROL_ALLOW_CREDENTIALS], "true");
    assert_eq!(reply.headers[header::STRICT_TRANSPORT_SECURITY], "max-age=60");
    // Browsers send no credentials with a preflight.
    let preflight = send(&anonymous, Method::OPTIONS, "https://example.com").await?;
    assert_eq!(preflight.status, StatusCode::NO_CONTENT);
    let methods = preflight.headers[header::ACCESS_CONTROL_ALLOW_METHODS].to_str()?.to_owned();
    assert_eq!(methods, "POST, GET, OPTIONS, PUT, DELETE, PATCH");
    // Error responses have CORS headers, too.
    let refused = send(&anonymous, Method::GET, "https://example.com").await?;
    assert_eq!(refused.status, StatusCode::FORBIDDEN, "{}", refused.body);
    assert!(refused.headers.contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN));
    for origin in ["https://example.com.evil.org", "null", ""] {
        let reply = send(&server.admin, Method::GET, origin).await?;
        assert_eq!(reply.status, StatusCode::OK);
        assert!(!reply.headers.contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN), "{origin}");
        assert_ne!(
            send(&anonymous, Method::OPTIONS, origin).await?.status,
            StatusCode::NO_CONTENT,
            "{origin}"
        );
    }
    server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_expire_after_event_ttl() -> Result<()> {
    const EVENTS: &str = "/api/v1/namespaces/default/events";
    let server = Server::start_with(|config| config.api.tuning.event_ttl = Duration::from_secs(1)).await?;
    let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"},
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"}});
    let mut watch = server.admin.stream(&format!("{EVENTS}?watch=true&resourceVersion=0")).await?;
    let created = server.admin.post(EVENTS, &event).await?;
    assert_eq!(created.status, StatusCode::CREATED, "{}", created.body);
    let code = async || server.admin.get(&format!("{EVENTS}/e")).await.map(|reply| reply.status).ok();
    eventually("the event has expired", LIMIT, code, |code| *code == Some(StatusCode::NOT_FOUND)).await;
    let mut types = Vec::new();
    while types.last() != Some(&json!("DELETED")) {
        let next = tokio::time::timeout(LIMIT, watch.next()).await??.expect("an event");
        types.push(next["type"].clone());
    }
    assert_eq!(types, ["ADDED", "DELETED"]);
    server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_allocations_are_repaired_at_run_time() -> Result<()> {
    const SERVICES: &str = "/api/v1/namespaces/default/services";
    const ADDRESSES: &str = "/apis/networking.k8s.io/v1/ipaddresses";
    let period = Duration::from_millis(50);
    let server = Server::start_with(|config| config.api.tuning.service_repair = period).await?;
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
        "spec": {"ports": [{"port": 80}]}});
    let created = server.admin.post(SERVICES, &service).await?;
    let ip = created.body["spec"]["clusterIP"].as_str().unwrap_or_default().to_owned();
    let deleted = server.admin.delete(&format!("{ADDRESSES}/{ip}")).await?;
    assert_eq!(deleted.status, StatusCode::OK, "{ip}: {}", deleted.body);
    let address = async || server.admin.get(&format!("{ADDRESSES}/{ip}")).await.map(|reply| reply.body).ok();
    let of_service = |address: &Option<serde_json::Value>| {
        address.as_ref().is_some_and(|address| address["spec"]["parentRef"]["name"] == "s")
    };
    eventually("the address is allocated again", LIMIT, address, of_service).await;
    server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_metrics_have_labels_and_buckets_of_kubernetes() -> Result<()> {
    const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
    let server = Server::start().await?;
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}});
    server.admin.post(&format!("{CONFIG_MAPS}?dryRun=All"), &object).await?;
    let (patch, apply) = (format!("{CONFIG_MAPS}/c?fieldManager=t"), "application/apply-patch+yaml");
    let applied = server.admin.request(Method::PATCH, &patch, apply, object.to_string()).await?;
    assert_eq!(applied.status, StatusCode::CREATED, "{}", applied.body);
    server.admin.request(Method::PATCH, &patch, "application/merge-patch+json", "{}").await?;
    server.admin.get("/api/v1/namespaces/default/pods/p/exec?command=x").await?;
    let metrics = server.admin.get("/metrics").await?.bytes;
    let metrics = String::from_utf8_lossy(&metrics);
    let counted = |wanted: &[&str]| {
        let mut lines = metrics.lines().filter(|line| line.starts_with("apiserver_request_total{"));
        lines.any(|line| wanted.iter().all(|label| line.contains(label)))
    };
    for wanted in [
        &[
            "verb=\"POST\"",
            "dry_run=\"All\"",
            "resource=\"configmaps\"",
            "component=\"apiserver\"",
            "code=\"201\"",
        ][..],
        &["verb=\"APPLY\"", "dry_run=\"\"", "scope=\"resource\"", "code=\"201\""],
        &["verb=\"PATCH\"", "code=\"200\"", "resource=\"configmaps\""],
        &["verb=\"CONNECT\"", "subresource=\"exec\"", "code=\"404\""],
    ] {
        assert!(counted(wanted), "{wanted:?}");
    }
    let buckets = metrics.lines().filter(|line| {
        line.starts_with("apiserver_request_duration_seconds_bucket{") && line.contains("verb=\"APPLY\"")
    });
    let bounds: Vec<&str> =
        buckets.filter_map(|line| line.split("le=\"").nth(1)?.split('"').next()).collect();
    let want = "0.005 0.025 0.05 0.1 0.2 0.4 0.6 0.8 1 1.25 1.5 2 3 4 5 6 8 10 15 20 30 45 60 +Inf";
    assert_eq!(bounds.join(" "), want);
    server.stop().await
}
