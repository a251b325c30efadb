//! A certificate for a node's user, signed by the cluster.

use std::time::{Duration, Instant};

use client::Client;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

use super::JoinError;

const SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// How long the signer may take, and how often it is asked.
const PATIENCE: Duration = Duration::from_secs(120);
const FIRST_LOOK: Duration = Duration::from_millis(50);
const LAST_LOOK: Duration = Duration::from_secs(2);

/// Asks for a certificate and waits for it: the chain and its key, as PEM.
pub async fn request(client: &Client, node: &str) -> Result<String, JoinError> {
    let key = KeyPair::generate().map_err(JoinError::Key)?;
    let mut name = DistinguishedName::new();
    name.push(DnType::OrganizationName, "system:nodes");
    name.push(DnType::CommonName, format!("system:node:{node}"));
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = name;
    let asked = parameters.serialize_request(&key).and_then(|asked| asked.pem()).map_err(JoinError::Key)?;
    let object = CertificateSigningRequest {
        metadata: ObjectMeta { generate_name: Some("node-csr-".to_owned()), ..ObjectMeta::default() },
        spec: CertificateSigningRequestSpec {
            request: ByteString(asked.into_bytes()),
            signer_name: SIGNER.to_owned(),
            usages: Some(vec!["digital signature".to_owned(), "client auth".to_owned()]),
            ..CertificateSigningRequestSpec::default()
        },
        ..CertificateSigningRequest::default()
    };
    let made = client.create("", &object).await.map_err(JoinError::Request)?;
    let name = made.metadata.name.unwrap_or_default();
    let (begun, mut wait) = (Instant::now(), FIRST_LOOK);
    while begun.elapsed() < PATIENCE {
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(LAST_LOOK);
        let found: CertificateSigningRequest = client.get("", &name).await.map_err(JoinError::Request)?;
        let status = found.status.unwrap_or_default();
        if let Some(certificate) = status.certificate.filter(|certificate| !certificate.0.is_empty()) {
            let chain = String::from_utf8(certificate.0)
                .map_err(|_| JoinError::Certificate("it is not text".to_owned()))?;
            return Ok(format!("{chain}\n{}", key.serialize_pem()));
        }
        let refused = status.conditions.into_iter().flatten();
        let mut refused =
            refused.filter(|condition| ["Denied", "Failed"].contains(&condition.type_.as_str()));
        if let Some(condition) = refused.next() {
            return Err(JoinError::Refused(condition.message.unwrap_or(condition.type_)));
        }
    }
    Err(JoinError::Unsigned(PATIENCE))
}
