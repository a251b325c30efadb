//! `--runtime-config` through the whole request chain.

use crate::test_server::{ADMIN, ALICE, TestServer};
use base64::Engine as _;
use http::Method;
use machinery::Value;
use serde_json::json;

const JSON: &str = "application/json";

async fn get(server: &TestServer, path: &str) -> (u16, Value) {
    server.ask(ADMIN, Method::GET, path, JSON, "").await
}

fn versions(groups: &Value, group: &str) -> Vec<String> {
    let found = groups["groups"].as_array().expect("groups").iter().find(|entry| entry["name"] == group);
    let versions = found.map(|entry| entry["versions"].as_array().cloned().unwrap_or_default());
    let text = |version: &Value| version["version"].as_str().unwrap_or_default().to_owned();
    versions.unwrap_or_default().iter().map(text).collect()
}

#[tokio::test]
async fn beta_versions_are_served_only_when_enabled() {
    let plain = TestServer::start();
    assert_eq!(get(&plain, "/apis/networking.k8s.io/v1beta1/ipaddresses").await.0, 404);
    assert_eq!(get(&plain, "/apis/networking.k8s.io/v1beta1").await.0, 404);
    let server = plain.beside_with("api/beta=true");
    let (_, groups) = get(&server, "/apis").await;
    assert_eq!(versions(&groups, "networking.k8s.io"), ["v1", "v1beta1"]);
    assert_eq!(versions(&groups, "resource.k8s.io"), ["v1", "v1beta2", "v1beta1"]);
    assert_eq!(versions(&groups, "storagemigration.k8s.io"), ["v1beta1"]);
    assert_eq!(versions(&groups, "coordination.k8s.io"), ["v1", "v1beta1"]);
    for path in [
        "networking.k8s.io/v1beta1/servicecidrs",
        "resource.k8s.io/v1beta1/resourceslices",
        "certificates.k8s.io/v1beta1/clustertrustbundles",
        "certificates.k8s.io/v1beta1/podcertificaterequests",
        "resource.k8s.io/v1beta2/devicetaintrules",
        "coordination.k8s.io/v1beta1/leasecandidates",
        "admissionregistration.k8s.io/v1beta1/mutatingadmissionpolicies",
        "storage.k8s.io/v1beta1/volumeattributesclasses",
    ] {
        let (code, list) = get(&server, &format!("/apis/{path}")).await;
        assert_eq!(code, 200, "{path}: {list}");
        let api_version = path.rsplit_once('/').expect("a version").0;
        assert_eq!(list["apiVersion"], api_version);
    }
    assert_eq!(get(&server, "/apis/certificates.k8s.io/v1alpha1/clustertrustbundles").await.0, 404);
}

#[tokio::test]
async fn object_written_in_a_beta_version_is_read_in_the_stable_one() {
    let plain = TestServer::start();
    let server = plain.beside_with("resource.k8s.io/v1beta1=true");
    plain.create("/api/v1/namespaces", &json!({"metadata": {"name": "default"}})).await;
    let claim = json!({
        "apiVersion": "resource.k8s.io/v1beta1", "kind": "ResourceClaim", "metadata": {"name": "c"},
        "spec": {"devices": {"requests": [{"name": "gpu", "deviceClassName": "gpu.example.com"}]}},
    });
    let beta = "/apis/resource.k8s.io/v1beta1/namespaces/default/resourceclaims";
    server.create(beta, &claim).await;
    let stable = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/c";
    let (_, read) = get(&plain, stable).await;
    let exactly = &read["spec"]["devices"]["requests"][0]["exactly"];
    assert_eq!(
        *exactly,
        json!({"deviceClassName": "gpu.example.com", "allocationMode": "ExactCount", "count": 1})
    );
    let (_, read) = get(&server, &format!("{beta}/c")).await;
    assert_eq!(read["spec"]["devices"]["requests"][0]["deviceClassName"], "gpu.example.com");
    // A patch in the beta version, validated by the rules of the stable one.
    let patch = json!({"metadata": {"labels": {"a": "b"}}}).to_string();
    let merge = "application/merge-patch+json";
    let (code, patched) = server.ask(ADMIN, Method::PATCH, &format!("{beta}/c"), merge, patch).await;
    assert_eq!((code, &patched["metadata"]["labels"]["a"]), (200, &json!("b")), "{patched}");
    let mut wrong = claim.clone();
    wrong["metadata"]["name"] = json!("d");
    wrong["spec"]["devices"]["requests"][0]["name"] = json!("_");
    let (code, answer) = server.ask(ADMIN, Method::POST, beta, JSON, wrong.to_string()).await;
    assert_eq!(code, 422, "{answer}");
}

#[tokio::test]
async fn disabled_versions_and_resources_are_not_found() {
    let server = TestServer::start()
        .beside_with("batch/v1=false,apps/v1/deployments=false,authentication.k8s.io/v1=false");
    assert_eq!(get(&server, "/apis/batch/v1/jobs").await.0, 404);
    assert_eq!(get(&server, "/apis/apps/v1/deployments").await.0, 404);
    assert_eq!(get(&server, "/apis/apps/v1/daemonsets").await.0, 200);
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}).to_string();
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    assert_eq!(server.ask(ADMIN, Method::POST, path, JSON, review).await.0, 404);
    let (_, groups) = get(&server, "/apis").await;
    assert!(versions(&groups, "batch").is_empty());
    let (_, resources) = get(&server, "/apis/apps/v1").await;
    assert!(!resources.to_string().contains("\"deployments\""));
}

#[tokio::test]
async fn trust_bundle_with_signer_requires_attest_permission() {
    let server = TestServer::start().beside_with("certificates.k8s.io/v1beta1=true");
    let path = "/apis/certificates.k8s.io/v1beta1/clustertrustbundles";
    let certificate = authority();
    let bundle = json!({
        "apiVersion": "certificates.k8s.io/v1beta1", "kind": "ClusterTrustBundle",
        "metadata": {"name": "example.com:s:x"},
        "spec": {"signerName": "example.com/s", "trustBundle": certificate},
    });
    server.grant(&[("create", "clustertrustbundles")]);
    let (code, answer) = server.ask(ALICE, Method::POST, path, JSON, bundle.to_string()).await;
    assert_eq!(code, 403, "{answer}");
    assert!(answer["message"].as_str().unwrap_or_default().contains("not permitted to attest"), "{answer}");
    server.grant(&[("create", "clustertrustbundles"), ("attest", "signers")]);
    let (code, answer) = server.ask(ALICE, Method::POST, path, JSON, bundle.to_string()).await;
    assert_eq!(code, 201, "{answer}");
}

#[tokio::test]
async fn pod_certificate_request_status_requires_sign_permission() {
    let server = TestServer::start().beside_with("certificates.k8s.io/v1beta1=true");
    server.create("/api/v1/namespaces", &json!({"metadata": {"name": "default"}})).await;
    let path = "/apis/certificates.k8s.io/v1beta1/namespaces/default/podcertificaterequests";
    let key = rcgen::KeyPair::generate().expect("a key");
    let stub = rcgen::CertificateParams::default().serialize_request(&key).expect("a request");
    let stub = base64::engine::general_purpose::STANDARD.encode(stub.der());
    let request = json!({
        "apiVersion": "certificates.k8s.io/v1beta1", "kind": "PodCertificateRequest", "metadata": {"name": "r"},
        "spec": {"signerName": "example.com/s", "podName": "p", "podUID": "u1", "serviceAccountName": "a",
            "serviceAccountUID": "u2", "nodeName": "n", "nodeUID": "u3", "stubPKCS10Request": stub},
    });
    let created = server.create(path, &request).await;
    assert_eq!(created["spec"]["maxExpirationSeconds"], 86_400);
    let mut denied = created.clone();
    denied["status"] = json!({"conditions": [{"type": "Denied", "status": "True", "reason": "No", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
    let status = format!("{path}/r/status");
    server.grant(&[("update", "podcertificaterequests/status")]);
    let (code, answer) = server.ask(ALICE, Method::PUT, &status, JSON, denied.to_string()).await;
    let message = answer["message"].as_str().unwrap_or_default();
    assert_eq!(code, 422, "{answer}");
    assert!(message.contains("is not permitted to \"sign\" for signer \"example.com/s\""), "{message}");
    server.grant(&[("update", "podcertificaterequests/status"), ("sign", "signers")]);
    let (code, answer) = server.ask(ALICE, Method::PUT, &status, JSON, denied.to_string()).await;
    assert_eq!(code, 200, "{answer}");
    // A decision is final, and the spec never changes.
    let mut changed = answer.clone();
    changed["status"]["conditions"][0]["type"] = json!("Failed");
    let (code, _) = server.ask(ALICE, Method::PUT, &status, JSON, changed.to_string()).await;
    assert_eq!(code, 422);
    let mut changed = answer;
    changed["spec"]["podUID"] = json!("other");
    let (code, _) = server.ask(ADMIN, Method::PUT, &format!("{path}/r"), JSON, changed.to_string()).await;
    assert_eq!(code, 422);
    let selector = format!("{path}?fieldSelector=spec.nodeName%3Dn,spec.signerName%3Dexample.com/s");
    assert_eq!(get(&server, &selector).await.1["items"].as_array().map(Vec::len), Some(1));
}

/// A CA certificate, PEM.
fn authority() -> String {
    let directory = tempfile::tempdir().expect("a directory");
    let names = base::pki::ServingNames::default();
    let pki = base::pki::Pki::open(&directory.path().join("pki"), &names, jiff::Timestamp::now());
    pki.expect("certificates").server_authority.certificate_pem
}
