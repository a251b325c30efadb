//! Certificates are renewed while the server runs, without disturbing clients.

use anyhow::{Context, Result};
use base::clock::Clock;
use http::StatusCode;
use jiff::{SignedDuration, Timestamp};
use std::time::Duration;
use testkit::{Server, eventually};

const LIMIT: Duration = Duration::from_secs(30);
const DAY: SignedDuration = SignedDuration::from_hours(24);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn due_certificates_are_renewed_at_run_time() -> Result<()> {
    // The server's clock is set back, until its certificates have less than a third of their lifetime left.
    let clock = Clock::held_at(Timestamp::now().checked_sub(DAY * 250)?);
    let server = Server::start_with(|config| {
        config.clock = clock.clone();
        config.certificate_check = Duration::from_millis(20);
    })
    .await?;
    assert_eq!(server.admin.get("/readyz").await?.status, StatusCode::OK);
    let before = server.admin.server_certificate().await?;
    let kubeconfig = std::fs::read_to_string(&server.kubeconfig)?;
    clock.advance(DAY * 200);
    // Nothing must happen, which no condition shows: five periods of the check pass.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(server.admin.server_certificate().await?, before, "not yet");

    clock.advance(DAY * 50);
    let shown = async || server.admin.server_certificate().await.ok();
    let after = eventually("another certificate", LIMIT, shown, |shown| {
        shown.as_ref().is_some_and(|shown| *shown != before)
    })
    .await;
    let pem = std::fs::read_to_string(server.data_dir().join("pki/apiserver.pem"))?;
    let saved = base::pki::Identity::from_pem(&pem).map_err(anyhow::Error::msg)?;
    assert_eq!(
        saved.chain.first().context("a certificate")?,
        &after.context("shown")?,
        "the next start has it"
    );
    // The kubeconfig has a new client certificate; open connections stay open.
    let text = async || std::fs::read_to_string(&server.kubeconfig).unwrap_or_default();
    eventually("another kubeconfig", LIMIT, text, |text| !text.is_empty() && *text != kubeconfig).await;
    assert_eq!(server.admin.get("/readyz").await?.status, StatusCode::OK);
    server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_certificate_with_two_common_names_is_unauthorized() -> Result<()> {
    let server = Server::start().await?;
    let pki = server.data_dir().join("pki");
    let read = |file: &str| std::fs::read_to_string(pki.join(file));
    let authority = rcgen::KeyPair::from_pem(&read("client-ca.key")?)?;
    let issuer = rcgen::Issuer::from_ca_cert_pem(&read("client-ca.crt")?, authority)?;
    let server_authority =
        base::pki::certificates_from_pem(&read("server-ca.crt")?).map_err(anyhow::Error::msg)?;
    for (first, expected) in
        [(None, StatusCode::CREATED), (Some("system:kube-controller-manager"), StatusCode::UNAUTHORIZED)]
    {
        let mut params = rcgen::CertificateParams::default();
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        params.distinguished_name = rcgen::DistinguishedName::new();
        if let Some(first) = first {
            // A name keeps one entry per type, so the first common name is given by its OID.
            params.distinguished_name.push(rcgen::DnType::CustomDnType(vec![2, 5, 4, 3]), first);
        }
        params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:nodes");
        params.distinguished_name.push(rcgen::DnType::CommonName, "system:node:x");
        let key = rcgen::KeyPair::generate()?;
        let certificate = params.signed_by(&key, &issuer)?;
        let pem = format!("{}{}", certificate.pem(), key.serialize_pem());
        let identity = base::pki::Identity::from_pem(&pem).map_err(anyhow::Error::msg)?;
        let client = testkit::Client::new(server.address, &server_authority[0], Some(identity.into()))?;
        let review =
            serde_json::json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
        let reply = client.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", &review).await?;
        assert_eq!(reply.status, expected, "{first:?}: {}", reply.body);
    }
    server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubelet_client_may_use_kubelets_and_nothing_else() -> Result<()> {
    let server = Server::start().await?;
    for (resource, subresource, allowed) in [
        ("nodes", "proxy", true),
        ("nodes", "log", true),
        ("nodes", "metrics", true),
        ("nodes", "stats", true),
        ("secrets", "", false),
        ("pods", "", false),
        ("nodes", "status", false),
    ] {
        let review = serde_json::json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {
                "user": "kube-apiserver-kubelet-client", "groups": ["system:authenticated"],
                "resourceAttributes": {"verb": "create", "resource": resource, "subresource": subresource},
            },
        });
        let reply = server.admin.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", &review).await?;
        assert_eq!(reply.body["status"]["allowed"], allowed, "{resource}/{subresource}: {}", reply.body);
    }
    server.stop().await
}
