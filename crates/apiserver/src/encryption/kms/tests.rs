use super::envelope::{DecryptRequest, DecryptResponse, EncryptRequest, EncryptResponse, StatusResponse};
use super::*;
use crate::unix_grpc::tests::serve;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A key management service whose key is a number that is added to each byte.
struct Service {
    key: AtomicUsize,
    calls: AtomicUsize,
}

impl Service {
    fn start(socket: &std::path::Path) -> Arc<Self> {
        let service = Arc::new(Self { key: AtomicUsize::new(1), calls: AtomicUsize::new(0) });
        let listener = tokio::net::UnixListener::bind(socket).expect("a socket");
        let shared = service.clone();
        serve(listener, move |method, body| Some(Ok(shared.answer(method, body))));
        service
    }

    fn answer(&self, method: &str, body: &[u8]) -> Vec<u8> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let key = self.key.load(Ordering::Relaxed);
        let turned = |bytes: &[u8], by: usize| -> Vec<u8> {
            bytes.iter().map(|byte| byte.wrapping_add(u8::try_from(by).expect("small"))).collect()
        };
        let key_id = format!("key-{key}");
        match method {
            "Status" => {
                StatusResponse { version: "v2".to_owned(), healthz: "ok".to_owned(), key_id }.encode_to_vec()
            }
            "Encrypt" => {
                let request = EncryptRequest::decode(body).expect("a request");
                let ciphertext = turned(&request.plaintext, key);
                EncryptResponse { ciphertext, key_id, annotations: HashMap::new() }.encode_to_vec()
            }
            _ => {
                let request = DecryptRequest::decode(body).expect("a request");
                let of = request.key_id.trim_start_matches("key-").parse::<usize>().expect("a number");
                DecryptResponse { plaintext: turned(&request.ciphertext, 256 - of) }.encode_to_vec()
            }
        }
    }
}

#[tokio::test]
async fn kms_values_are_encrypted_with_cached_seed() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("kms.sock");
    let service = Service::start(&socket);
    let kms = |name: &str| Kms::new(name, socket.clone(), Duration::from_secs(5));
    let first = kms("x");
    assert!(first.seal("p", b"secret").is_err(), "no key before it is prepared");
    first.prepare().await.expect("prepared");
    let sealed: Vec<Vec<u8>> = (0..3).map(|_| first.seal("/p", b"secret").expect("sealed")).collect();
    assert_eq!(service.calls.load(Ordering::Relaxed), 2, "one status and one seed for all of them");
    assert!(sealed[0].starts_with(b"k8s:enc:kms:v2:x:"));
    assert_ne!(sealed[0], sealed[1]);
    let rest = sealed[0].strip_prefix(first.prefix()).expect("its own");
    assert_eq!(first.open("/p", rest), Ok(Decrypted { plain: b"secret".to_vec(), stale: false }));
    assert!(matches!(first.open("/elsewhere", rest), Err(Failure::Failed(_))), "bound to its place");

    // Another process has to call the service first.
    let second = kms("x");
    assert_eq!(second.open("/p", rest), Err(Failure::Unprepared));
    second.fetch(rest).await.expect("the seed");
    assert_eq!(second.open("/p", rest).expect("opened").plain, b"secret");

    // After a key change of the service, values written with the old key are stale.
    service.key.store(2, Ordering::Relaxed);
    second.prepare().await.expect("prepared");
    assert!(second.open("/p", rest).expect("opened").stale);
    let newer = second.seal("/p", b"other").expect("sealed");
    let rest = newer.strip_prefix(second.prefix()).expect("its own");
    assert!(!second.open("/p", rest).expect("opened").stale);
}

#[tokio::test]
async fn kms_unreachable_service_is_named_in_error() {
    let kms = Kms::new("x", "/nowhere/kms.sock".into(), Duration::from_secs(1));
    let why = kms.prepare().await.expect_err("no service");
    assert!(why.contains("/nowhere/kms.sock"), "{why}");
}
