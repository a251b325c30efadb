use super::*;
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P521_SHA512, PKCS_ED25519};
use serde_json::json;

const NOW: i64 = 1_800_000_000;

fn request(key: &KeyPair) -> Value {
    let stub = CertificateParams::default().serialize_request(key).expect("a request");
    json!({"metadata": {"name": "r", "namespace": "default"}, "spec": {
        "signerName": "example.com/s", "podName": "p", "podUID": "u1", "serviceAccountName": "a",
        "serviceAccountUID": "u2", "nodeName": "n", "nodeUID": "u3", "maxExpirationSeconds": 86_400,
        "stubPKCS10Request": STANDARD.encode(stub.der()),
    }})
}

fn messages(errors: ErrorList) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

fn text(seconds: i64) -> String {
    Timestamp::from_second(seconds).expect("a moment").to_string()
}

fn condition(kind: &str) -> Value {
    json!({"type": kind, "status": "True", "reason": "R", "message": "", "lastTransitionTime": text(NOW)})
}

/// The request with a certificate for a key, valid for some seconds.
fn issued_for(request: &Value, key: &KeyPair, seconds: i64) -> Value {
    let mut params = CertificateParams::new(vec!["p.example.com".to_owned()]).expect("names");
    params.not_before = (std::time::UNIX_EPOCH + std::time::Duration::from_secs(NOW as u64)).into();
    params.not_after =
        (std::time::UNIX_EPOCH + std::time::Duration::from_secs((NOW + seconds) as u64)).into();
    let certificate = params.self_signed(key).expect("a certificate");
    let mut issued = request.clone();
    issued["status"] = json!({
        "conditions": [condition("Issued")], "certificateChain": certificate.pem(),
        "notBefore": text(NOW), "notAfter": text(NOW + seconds), "beginRefreshAt": text(NOW + seconds / 2),
    });
    issued
}

fn status_errors(new: &Value, old: &Value) -> Vec<String> {
    messages(validate_status(new, old, Timestamp::from_second(NOW + 60).expect("a moment")))
}

#[test]
fn keys_of_three_types_are_accepted() {
    for algorithm in [&PKCS_ED25519, &PKCS_ECDSA_P256_SHA256, &PKCS_ECDSA_P521_SHA512] {
        let key = KeyPair::generate_for(algorithm).expect("a key");
        assert_eq!(messages(validate(&request(&key))), Vec::<String>::new(), "{algorithm:?}");
    }
}

#[test]
fn request_with_changed_signature_is_rejected() {
    let mut request = request(&KeyPair::generate().expect("a key"));
    let mut der = bytes(&request["spec"], "stubPKCS10Request");
    // The last byte belongs to the signature.
    *der.last_mut().expect("bytes") ^= 1;
    request["spec"]["stubPKCS10Request"] = STANDARD.encode(&der).into();
    let signature = "spec.stubPKCS10Request: Invalid value: <omitted>: invalid signature";
    assert_eq!(messages(validate(&request)), [signature]);
    request["spec"]["stubPKCS10Request"] = STANDARD.encode("x").into();
    let malformed = "spec.stubPKCS10Request: Invalid value: <omitted>: must be a valid PKCS#10 CSR";
    assert_eq!(messages(validate(&request)), [malformed]);
}

#[test]
fn bare_key_needs_proof_of_possession() {
    use rcgen::{PublicKeyData as _, SigningKey as _};
    let key = KeyPair::generate().expect("a key");
    let mut request = request(&key);
    request["spec"].unset("stubPKCS10Request");
    let missing = "spec: Invalid value: <omitted>: exactly one of (stubPKCS10Request) or (pkixPublicKey, proofOfPossession) must be set";
    assert_eq!(messages(validate(&request)), [missing]);
    request["spec"]["pkixPublicKey"] = STANDARD.encode(key.subject_public_key_info()).into();
    request["spec"]["proofOfPossession"] = STANDARD.encode(key.sign(b"u1").expect("a signature")).into();
    assert_eq!(messages(validate(&request)), Vec::<String>::new());
    request["spec"]["podUID"] = "other".into();
    let unproven =
        "spec.proofOfPossession: Invalid value: <omitted>: could not verify proof-of-possession signature";
    assert_eq!(messages(validate(&request)), [unproven]);
}

#[test]
fn spec_limits_are_enforced() {
    let key = KeyPair::generate().expect("a key");
    for (field, value, want) in [
        ("podUID", json!(""), "spec.podUID: Invalid value: \"\": must not be empty"),
        ("nodeUID", json!("x".repeat(129)), "spec.nodeUID: Too long: may not be more than 128 bytes"),
        (
            "maxExpirationSeconds",
            json!(3599),
            "spec.maxExpirationSeconds: Invalid value: 3599: must be in the range [3600, 7862400]",
        ),
    ] {
        let mut request = request(&key);
        request["spec"][field] = value;
        assert_eq!(messages(validate(&request)), [want]);
    }
    let mut kubernetes = request(&key);
    kubernetes["spec"]["signerName"] = "kubernetes.io/kube-apiserver-client-pod".into();
    kubernetes["spec"]["maxExpirationSeconds"] = 86_401.into();
    assert_eq!(
        messages(validate(&kubernetes)),
        ["spec.maxExpirationSeconds: Invalid value: 86401: must be in the range [3600, 86400]"]
    );
}

#[test]
fn status_changes_once() {
    let key = KeyPair::generate().expect("a key");
    let old = request(&key);
    let issued = issued_for(&old, &key, 7200);
    assert_eq!(status_errors(&issued, &old), Vec::<String>::new());
    let mut denied = old.clone();
    denied["status"] = json!({"conditions": [condition("Denied")]});
    assert_eq!(status_errors(&denied, &old), Vec::<String>::new());
    assert_eq!(
        status_errors(&denied, &issued),
        [
            "status: Invalid value: <omitted>: immutable after PodCertificateRequest is issued, denied, or failed"
        ]
    );
    denied["status"]["notBefore"] = text(NOW).into();
    assert_eq!(
        status_errors(&denied, &old),
        [
            "status: Invalid value: <omitted>: non-condition status fields must be empty when denying or failing the PodCertificateRequest"
        ]
    );
    let mut early = old.clone();
    early["status"] = json!({"notBefore": text(NOW)});
    assert_eq!(
        status_errors(&early, &old),
        [
            "status: Invalid value: <omitted>: status is immutable unless transitioning to \"Issued\", \"Denied\", or \"Failed\""
        ]
    );
    let mut unknown = old.clone();
    unknown["status"] = json!({"conditions": [condition("Approved")]});
    assert_eq!(status_errors(&unknown, &old).len(), 1);
}

#[test]
fn certificate_must_match_request() {
    let (key, other) = (KeyPair::generate().expect("a key"), KeyPair::generate().expect("a key"));
    let old = request(&key);
    let last = |new: &Value| status_errors(new, &old).pop().unwrap_or_default();
    assert!(last(&issued_for(&old, &other, 7200)).ends_with("was not issued to the requested public key"));
    assert!(last(&issued_for(&old, &key, 3599)).ends_with("lifetime must be >= 1 hour"));
    assert!(last(&issued_for(&old, &key, 86_401)).ends_with("<= spec.maxExpirationSeconds (86400)"));
    let with = |field: &str, value: Value| {
        let mut new = issued_for(&old, &key, 7200);
        new["status"][field] = value;
        last(&new)
    };
    assert!(with("notBefore", text(NOW + 1).into()).contains("NotBefore time encoded in the leaf"));
    assert!(with("notAfter", text(NOW).into()).contains("NotAfter time encoded in the leaf"));
    assert!(with("beginRefreshAt", text(NOW + 599).into()).contains("after status.notBefore"));
    assert!(with("beginRefreshAt", text(NOW + 7200 - 599).into()).contains("before status.notAfter"));
    assert!(with("beginRefreshAt", Value::Null).contains("status.beginRefreshAt: Required value"));
    assert!(with("certificateChain", "".into()).contains("at least one certificate"));
    let late = Timestamp::from_second(NOW + 301).expect("a moment");
    let errors = messages(validate_status(&issued_for(&old, &key, 7200), &old, late));
    assert!(errors[0].contains("within 5 minutes"), "{errors:?}");
}
