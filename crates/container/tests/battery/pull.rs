//! Pulls from Debian's docker-registry, and from a server that simulates failures.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine as _;
use cri::v1::*;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::image::{self, digest};
use crate::Node;

const OCI: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const PLAIN: &str = "application/vnd.oci.image.layer.v1.tar";

/// Blobs and manifests of an image.
#[derive(Default)]
struct Content {
    blobs: BTreeMap<String, Vec<u8>>,
    /// By tag or digest, with their media type.
    manifests: BTreeMap<String, (String, Vec<u8>)>,
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

impl Content {
    fn blob(&mut self, bytes: Vec<u8>, media_type: &str) -> Value {
        let described = json!({"mediaType": media_type, "digest": digest(&bytes), "size": bytes.len()});
        self.blobs.insert(digest(&bytes), bytes);
        described
    }

    /// A small image of two layers; one is large enough to be sent in chunks.
    fn image(&mut self, tag: &str, text: &str) -> String {
        let first = image::layer(&[("etc/", 0o755, b""), ("etc/text", 0o644, text.as_bytes())]);
        let noise: Vec<u8> =
            (0..300_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let second = image::layer(&[("large", 0o644, &noise)]);
        let config = json!({"architecture": "amd64", "os": "linux", "config": {"Cmd": ["/x"]},
            "rootfs": {"type": "layers", "diff_ids": [digest(&first), digest(&second)]}});
        let config = config.to_string().into_bytes();
        let id = digest(&config);
        let config = self.blob(config, "application/vnd.oci.image.config.v1+json");
        let layers = [self.blob(gzip(&first), GZIP), self.blob(second, PLAIN)];
        let manifest = json!({"schemaVersion": 2, "mediaType": OCI, "config": config, "layers": layers});
        self.manifest(tag, OCI, &manifest);
        id
    }

    fn manifest(&mut self, tag: &str, media_type: &str, manifest: &Value) -> Value {
        let bytes = manifest.to_string().into_bytes();
        let described = json!({"mediaType": media_type, "digest": digest(&bytes), "size": bytes.len()});
        for name in [tag.to_owned(), digest(&bytes)] {
            self.manifests.insert(name, (media_type.to_owned(), bytes.clone()));
        }
        described
    }
}

/// Failures that the server simulates.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Faults {
    /// Content that does not match the digest.
    wrong: bool,
    /// Every response with a blob ends after this many bytes of it.
    cut: Option<usize>,
    no_ranges: bool,
    /// Blobs are redirected to another server, which must not receive credentials.
    redirect: bool,
    /// A token is required, which requires a password.
    token: bool,
    password: bool,
    slow: bool,
    busy: usize,
}

struct Server {
    address: String,
    requests: Arc<Mutex<Vec<String>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    async fn start(content: Content, faults: Faults) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let (content, seen, own) = (Arc::new(content), Arc::clone(&requests), address.clone());
        let busy = Arc::new(AtomicUsize::new(faults.busy));
        let task = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (content, seen, own, busy) =
                    (Arc::clone(&content), Arc::clone(&seen), own.clone(), Arc::clone(&busy));
                tokio::spawn(async move {
                    let _ = answer(socket, &content, faults, &seen, &own, &busy).await;
                });
            }
        });
        Self { address, requests, task }
    }

    fn count(&self, part: &str) -> usize {
        self.requests.lock().iter().filter(|request| request.contains(part)).count()
    }
}

/// Head of a request.
struct Head {
    path: String,
    authorization: String,
    range: String,
}

impl Head {
    /// Reads a head; `None` for the start of a TLS handshake.
    async fn read(socket: &mut TcpStream) -> std::io::Result<Option<Self>> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(socket.read_u8().await?);
            if head == [22] {
                return Ok(None);
            }
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        let header = |name: &str| {
            let find = |line: &str| {
                let (key, value) = line.split_once(": ")?;
                key.eq_ignore_ascii_case(name).then(|| value.to_owned())
            };
            head.lines().find_map(find).unwrap_or_default()
        };
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        Ok(Some(Self { path, authorization: header("authorization"), range: header("range") }))
    }

    /// True on the server to which blobs are redirected.
    fn is_redirected(&self) -> bool {
        self.path.starts_with("/elsewhere/")
    }

    /// Tag or digest.
    fn name(&self) -> &str {
        let last = self.path.rsplit('/').next().unwrap_or_default();
        last.split('?').next().unwrap_or_default()
    }
}

fn response(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\nConnection: close\r\n{headers}Content-Length: {length}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

fn refusal(status: &str, headers: &str) -> Vec<u8> {
    let body = r#"{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}"#;
    response(status, headers, body.as_bytes())
}

async fn answer(
    mut socket: TcpStream,
    content: &Content,
    faults: Faults,
    seen: &Mutex<Vec<String>>,
    own: &str,
    busy: &AtomicUsize,
) -> std::io::Result<()> {
    let Some(head) = Head::read(&mut socket).await? else {
        return socket.write_all(b"HTTP/1.0 400 Bad Request\r\n\r\nTLS to a plain server\n").await;
    };
    seen.lock().push(format!("{} {}", head.path, head.authorization));
    if let Some(bytes) = instead_of_content(&head, faults, own, busy) {
        return socket.write_all(&bytes).await;
    }
    if head.path.contains("/manifests/") {
        let bytes = match content.manifests.get(head.name()) {
            Some((kind, body)) => response("200 OK", &format!("Content-Type: {kind}\r\n"), body),
            None => refusal("404 Not Found", ""),
        };
        return socket.write_all(&bytes).await;
    }
    match content.blobs.get(head.name()) {
        Some(body) => send_blob(&mut socket, &head, faults, own, body).await,
        None => socket.write_all(&refusal("404 Not Found", "")).await,
    }
}

/// Tokens, refused credentials and simulated overload.
fn instead_of_content(head: &Head, faults: Faults, own: &str, busy: &AtomicUsize) -> Option<Vec<u8>> {
    let valid = format!("Basic {}", base64::engine::general_purpose::STANDARD.encode("me:secret"));
    if head.path.starts_with("/token") {
        let token = if head.authorization == valid { "good" } else { "anonymous" };
        return Some(response("200 OK", "", format!(r#"{{"token":"{token}"}}"#).as_bytes()));
    }
    if busy.load(Ordering::Relaxed) > 0 {
        busy.fetch_sub(1, Ordering::Relaxed);
        return Some(refusal("503 Service Unavailable", ""));
    }
    if faults.token && !head.is_redirected() && head.authorization != "Bearer good" {
        let realm = format!("WWW-Authenticate: Bearer realm=\"http://{own}/token\",service=\"test\"\r\n");
        return Some(refusal("401 Unauthorized", &realm));
    }
    if faults.password && head.authorization != valid {
        return Some(refusal("401 Unauthorized", "WWW-Authenticate: Basic realm=\"test\"\r\n"));
    }
    None
}

async fn send_blob(
    socket: &mut TcpStream,
    head: &Head,
    faults: Faults,
    own: &str,
    body: &[u8],
) -> std::io::Result<()> {
    if faults.redirect && !head.is_redirected() {
        // Another port is another server.
        let (port, name) = (own.rsplit(':').next().unwrap(), head.name());
        let location = format!("Location: http://localhost:{port}/elsewhere/{name}\r\n");
        return socket.write_all(&refusal("307 Temporary Redirect", &location)).await;
    }
    if head.is_redirected() && !head.authorization.is_empty() {
        return socket.write_all(&refusal("400 Bad Request", "")).await;
    }
    let mut body = body.to_owned();
    if faults.wrong && body.len() > 1000 {
        let at = body.len() / 2;
        body[at] ^= 1;
    }
    let from = head.range.strip_prefix("bytes=").and_then(|range| range.trim_end_matches('-').parse().ok());
    let from: usize = if faults.no_ranges { 0 } else { from.unwrap_or(0) };
    let status = if from > 0 { "206 Partial Content" } else { "200 OK" };
    let range = format!("Content-Range: bytes {from}-{}/{}\r\n", body.len() - 1, body.len());
    let whole = response(status, &range, &body[from..]);
    let head_length = whole.len() - (body.len() - from);
    let end = faults.cut.map_or(whole.len(), |cut| whole.len().min(head_length + cut));
    for piece in whole[..end].chunks(16 << 10) {
        if faults.slow {
            // A slow server is the subject.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        socket.write_all(piece).await?;
    }
    socket.flush().await
}

impl Node {
    /// Configures the runtime to use plain HTTP for these servers.
    fn plain_http(&self, servers: &[&str]) {
        let mirrors: BTreeMap<&str, Value> = servers
            .iter()
            .map(|server| (*server, json!({"endpoint": [format!("http://{server}")]})))
            .collect();
        self.registries(&json!({"mirrors": mirrors}));
    }

    fn registries(&self, content: &Value) {
        std::fs::write(self.root.join("registries.yaml"), content.to_string()).unwrap();
    }

    async fn pull(&self, name: &str, auth: Option<AuthConfig>) -> Result<String, String> {
        let image = Some(ImageSpec { image: name.to_owned(), ..ImageSpec::default() });
        let request = PullImageRequest { image, auth, sandbox_config: None };
        let answer = self.cri.clone().images.pull_image(request).await;
        // Nothing of a finished pull is left.
        let left: Vec<_> = std::fs::read_dir(self.root.join("state/images/downloads")).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
        answer.map(|answer| answer.into_inner().image_ref).map_err(|status| status.message().to_owned())
    }
}

fn me() -> Option<AuthConfig> {
    Some(AuthConfig { username: "me".into(), password: "secret".into(), ..AuthConfig::default() })
}

pub async fn misbehaving_registries_are_handled(node: Node) {
    for (text, faults, works) in [
        ("plain", Faults::default(), true),
        ("wrong", Faults { wrong: true, ..Default::default() }, false),
        ("cut", Faults { cut: Some(100_000), ..Default::default() }, true),
        ("cut for good", Faults { cut: Some(100_000), no_ranges: true, ..Default::default() }, false),
        ("redirected", Faults { redirect: true, token: true, ..Default::default() }, true),
        ("slow", Faults { slow: true, ..Default::default() }, true),
    ] {
        let mut content = Content::default();
        let id = content.image("v1", text);
        let server = Server::start(content, faults).await;
        node.plain_http(&[&server.address]);
        let name = format!("{}/some/app:v1", server.address);
        let outcome = node.pull(&name, me()).await;
        assert_eq!(outcome.is_ok(), works, "{text}: {outcome:?}");
        match outcome {
            Ok(found) => {
                assert_eq!(found, id, "{text}");
                let again = server.requests.lock().len();
                assert_eq!(node.pull(&name, me()).await.unwrap(), id);
                assert!(server.requests.lock().len() <= again + 3, "{:?}", server.requests.lock());
            }
            Err(error) => {
                let start =
                    format!("failed to pull and unpack image {name:?}: failed to copy: layer sha256:");
                assert!(error.starts_with(&start), "{error}");
                let why = if faults.wrong { "unexpected commit digest" } else { "unexpected EOF" };
                assert!(error.contains(why), "{error}");
                let layers = std::fs::read_dir(node.root.join("state/images/staging")).unwrap().count();
                assert_eq!(layers, 0);
            }
        }
    }
}

pub async fn pull_requires_credentials(node: Node) {
    for faults in
        [Faults { token: true, ..Default::default() }, Faults { password: true, ..Default::default() }]
    {
        let mut content = Content::default();
        let id = content.image("v1", "private");
        let server = Server::start(content, faults).await;
        let name = format!("{}/private/app:v1", server.address);
        // Without configuration only TLS is used.
        node.registries(&json!({}));
        let error = node.pull(&name, me()).await.unwrap_err();
        assert!(error.contains("http: server gave HTTP response to HTTPS client"), "{error}");
        assert!(!server.requests.lock().iter().any(|request| request.contains("Basic")), "no secrets");
        node.plain_http(&[&server.address]);
        for wrong in [None, Some(AuthConfig { username: "you".into(), ..AuthConfig::default() })] {
            let error = node.pull(&name, wrong).await.unwrap_err();
            assert!(
                error.contains("pull access denied, repository does not exist or may require authorization"),
                "{error}"
            );
            assert!(error.contains("server message: unauthorized: authentication required"), "{error}");
        }
        let error = node.pull(&format!("{}/private/none:v1x", server.address), me()).await.unwrap_err();
        assert!(error.ends_with("/private/none:v1x: not found"), "{error}");
        assert_eq!(node.pull(&name, me()).await.unwrap(), id);
        let joined = base64::engine::general_purpose::STANDARD.encode("me:secret");
        let auth = AuthConfig {
            auth: joined,
            server_address: format!("https://{}/v2/", server.address),
            ..AuthConfig::default()
        };
        assert_eq!(node.pull(&name, Some(auth)).await.unwrap(), id);
        // The administrator's credentials are accepted as well.
        let host = server.address.clone();
        node.registries(&json!({"mirrors": {host.clone(): {"endpoint": [format!("http://{host}")]}},
            "configs": {host: {"auth": {"username": "me", "password": "secret"}}}}));
        assert_eq!(node.pull(&name, None).await.unwrap(), id);
    }
}

pub async fn mirrors_and_platforms_are_selected(node: Node) {
    let mut content = Content::default();
    let id = content.image("own", "for this machine");
    let own = content.manifests["own"].clone();
    let other = json!({"schemaVersion": 2, "mediaType": OCI, "config": {}, "layers": []});
    let other = content.manifest("other", OCI, &other);
    let with = |digest: &str, size: usize, architecture: &str| {
        json!({"mediaType": OCI, "digest": digest, "size": size,
            "platform": {"os": "linux", "architecture": architecture}})
    };
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [
        with(other["digest"].as_str().unwrap(), 10, "s390x"), with(&digest(&own.1), own.1.len(), "amd64")]});
    let index = content.manifest("v1", INDEX, &index);
    let foreign = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [
        with(other["digest"].as_str().unwrap(), 10, "s390x")]});
    content.manifest("foreign", INDEX, &foreign);
    let mirror = Server::start(content, Faults { busy: 2, ..Default::default() }).await;
    // The first mirror has no images, and the second is unreachable.
    let empty = Server::start(Content::default(), Faults::default()).await;
    node.registries(&json!({"mirrors": {"upstream.example": {"endpoint": [
        format!("http://{}", empty.address), "http://127.0.0.1:1", format!("http://{}/prefix/v2", mirror.address)]}}}));
    assert_eq!(node.pull("upstream.example/team/app:v1", None).await.unwrap(), id);
    assert!(
        mirror.count("/prefix/v2/team/app/manifests/v1?ns=upstream.example") == 3,
        "{:?}",
        mirror.requests
    );
    let digest = index["digest"].as_str().unwrap();
    let status = ImageStatusRequest {
        image: Some(ImageSpec { image: format!("upstream.example/team/app@{digest}"), ..Default::default() }),
        verbose: false,
    };
    let found = node.cri.clone().images.image_status(status).await.unwrap().into_inner().image.unwrap();
    assert_eq!((found.id, found.repo_tags), (id.clone(), vec!["upstream.example/team/app:v1".to_owned()]));
    assert_eq!(node.pull(&format!("upstream.example/team/app@{digest}"), None).await.unwrap(), id);
    let error = node.pull("upstream.example/team/app:foreign", None).await.unwrap_err();
    assert!(error.ends_with("no match for platform in manifest: not found"), "{error}");
    let wrong = format!("upstream.example/team/app@sha256:{}", "0".repeat(64));
    let error = node.pull(&wrong, None).await.unwrap_err();
    assert!(error.contains("failed to resolve reference"), "{error}");
    let error = node.pull("127.0.0.1:1/x:y", None).await.unwrap_err();
    assert!(
        error.contains("failed to do request: Get \"https://127.0.0.1:1/v2/x/manifests/y\": dial tcp 127.0.0.1:1: connect: connection refused"),
        "{error}"
    );
    assert!(node.pull("Not An Image", None).await.unwrap_err().contains("failed to parse image name"));
}

pub async fn equal_pulls_share_one_download(node: Node) {
    let mut content = Content::default();
    let id = content.image("v1", "shared");
    let layers = content.blobs.len();
    let server = Server::start(content, Faults { slow: true, ..Default::default() }).await;
    node.plain_http(&[&server.address]);
    let name = format!("{}/app:v1", server.address);
    let (first, second, third) =
        tokio::join!(node.pull_only(&name), node.pull_only(&name), node.pull_only(&name));
    assert_eq!((first.unwrap(), second.unwrap(), third.unwrap()), (id.clone(), id.clone(), id.clone()));
    assert_eq!(server.count("/blobs/"), layers, "{:?}", server.requests);
    // A disconnecting client cancels its pull, and the partial download is removed.
    let mut content = Content::default();
    content.image("v2", "nobody waits");
    let server = Server::start(content, Faults { slow: true, ..Default::default() }).await;
    node.plain_http(&[&server.address]);
    let name = format!("{}/app:v2", server.address);
    let _ = tokio::time::timeout(Duration::from_millis(150), node.pull_only(&name)).await;
    node.until("the download goes", async || {
        let left = std::fs::read_dir(node.root.join("state/images/downloads")).unwrap().count();
        if left == 0 { Ok(()) } else { Err(format!("{left} left")) }
    })
    .await;
    let mut seen = Vec::new();
    let request = PullImageRequest {
        image: Some(ImageSpec { image: name.clone(), ..ImageSpec::default() }),
        ..PullImageRequest::default()
    };
    let report = Box::new(|now: &container::control::PullProgress| seen.push(now.clone()));
    let pulled = container::control::pull_image(&node.root.join("cri.sock"), request, report).await;
    assert!(pulled.is_ok(), "{pulled:?}");
    let last = seen.last().unwrap();
    // A layer that was unpacked before the first client disconnected is not downloaded again.
    assert_eq!((last.done, last.layers_done), (last.total, last.layers), "{seen:?}");
}

impl Node {
    async fn pull_only(&self, name: &str) -> Result<String, String> {
        let image = Some(ImageSpec { image: name.to_owned(), ..ImageSpec::default() });
        let request = PullImageRequest { image, ..PullImageRequest::default() };
        let answer = self.cri.clone().images.pull_image(request).await;
        answer.map(|answer| answer.into_inner().image_ref).map_err(|status| status.message().to_owned())
    }
}

struct Registry {
    process: Child,
    address: String,
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Registry {
    /// Debian's registry, if it is installed.
    async fn start(node: &Node) -> Option<Self> {
        let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
        let address = format!("127.0.0.1:{port}");
        let config = json!({"version": "0.1", "log": {"level": "error"}, "http": {"addr": address},
            "storage": {"filesystem": {"rootdirectory": node.root.join("registry")}}});
        let file = node.root.join("registry.yaml");
        std::fs::write(&file, config.to_string()).unwrap();
        let spawned = Command::new("docker-registry")
            .arg("serve")
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let registry = Self { process: spawned.ok()?, address };
        node.until("the registry answers", async || {
            registry.request("GET", "/v2/", "", b"").await.map(|_| ()).map_err(|error| error.to_string())
        })
        .await;
        Some(registry)
    }

    /// Sends one request and returns the head of the response.
    async fn request(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> std::io::Result<String> {
        let mut socket = TcpStream::connect(&self.address).await?;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{headers}Content-Length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        socket.write_all(head.as_bytes()).await?;
        socket.write_all(body).await?;
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).await?;
        let text = String::from_utf8_lossy(&answer).into_owned();
        if text.starts_with("HTTP/1.1 2") { Ok(text) } else { Err(std::io::Error::other(text)) }
    }

    async fn push(&self, repository: &str, content: &Content) {
        for (digest, bytes) in &content.blobs {
            let begun =
                self.request("POST", &format!("/v2/{repository}/blobs/uploads/"), "", b"").await.unwrap();
            let location = begun.lines().find_map(|line| line.strip_prefix("Location: ")).unwrap().trim();
            let path = location.split_once(&self.address).map_or(location, |(_, path)| path);
            let whole = format!("{path}&digest={digest}");
            self.request("PUT", &whole, "Content-Type: application/octet-stream\r\n", bytes).await.unwrap();
        }
        for (name, (kind, bytes)) in &content.manifests {
            let path = format!("/v2/{repository}/manifests/{name}");
            self.request("PUT", &path, &format!("Content-Type: {kind}\r\n"), bytes).await.unwrap();
        }
    }
}

pub async fn pull_from_docker_registry_works(node: Node) {
    let Some(registry) = Registry::start(&node).await else {
        println!("skipped: no docker-registry here");
        return;
    };
    let mut content = Content::default();
    let program = std::fs::read("/bin/busybox").unwrap();
    let layer =
        image::layer(&[("bin/", 0o755, b""), ("bin/busybox", 0o755, &program), ("bin/cat", 0, b"busybox")]);
    let text = image::layer(&[("text", 0o644, b"from afar\n")]);
    let config = json!({"architecture": "amd64", "os": "linux", "config": {"Cmd": ["/bin/cat", "/text"]},
        "rootfs": {"type": "layers", "diff_ids": [digest(&layer), digest(&text)]}});
    let docker = "application/vnd.docker.image.rootfs.diff.tar.gzip";
    let layers = [content.blob(gzip(&layer), docker), content.blob(gzip(&text), docker)];
    let config =
        content.blob(config.to_string().into_bytes(), "application/vnd.docker.container.image.v1+json");
    let kind = "application/vnd.docker.distribution.manifest.v2+json";
    let manifest = json!({"schemaVersion": 2, "mediaType": kind, "config": config, "layers": layers});
    content.manifest("v1", kind, &manifest);
    registry.push("team/hello", &content).await;
    node.plain_http(&[&registry.address]);
    let name = format!("{}/team/hello:v1", registry.address);
    node.pull(&name, None).await.unwrap();
    let mut config = node.container("pulled", &[]);
    config.image = Some(ImageSpec { image: name, ..ImageSpec::default() });
    let (_, id) = node.run("pulled", config).await;
    assert_eq!(node.exited(&id).await.exit_code, 0);
    assert_eq!(node.log("pulled", "pulled"), ["stdout F from afar"]);
}
