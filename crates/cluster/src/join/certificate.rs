//! Certificates of a node, signed by the cluster: for its user, and for its kubelet's API.

use std::time::{Duration, Instant};

use base::pki::ServingNames;
use client::Client;
use objects::ByteString;
use objects::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use objects::meta::v1::ObjectMeta;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};

use super::JoinError;

/// How long the signer may take, and how often it is asked. A certificate to serve with is for people to approve.
const PATIENCE: Duration = Duration::from_secs(120);
const PEOPLE: Duration = Duration::from_secs(900);
const FIRST_LOOK: Duration = Duration::from_millis(50);
const LAST_LOOK: Duration = Duration::from_secs(2);

/// What a certificate is for.
#[derive(Clone, Copy, Debug)]
pub enum Asked<'a> {
    /// The node as a client.
    Client,
    /// The kubelet's API, under these names.
    Serving(&'a ServingNames),
}

/// Asks for a certificate and waits for it: the chain and its key, as PEM.
pub async fn request(client: &Client, node: &str, asked: Asked<'_>) -> Result<String, JoinError> {
    let (signer, usage, patience) = match asked {
        Asked::Client => ("kubernetes.io/kube-apiserver-client-kubelet", "client auth", PATIENCE),
        Asked::Serving(_) => ("kubernetes.io/kubelet-serving", "server auth", PEOPLE),
    };
    let key = KeyPair::generate().map_err(JoinError::Key)?;
    let mut name = DistinguishedName::new();
    name.push(DnType::OrganizationName, "system:nodes");
    name.push(DnType::CommonName, format!("system:node:{node}"));
    let mut parameters = CertificateParams::default();
    if let Asked::Serving(names) = asked {
        let dns: Vec<String> = names.dns.iter().cloned().collect();
        parameters = CertificateParams::new(dns).map_err(JoinError::Key)?;
        parameters.subject_alt_names.extend(names.ips.iter().map(|ip| SanType::IpAddress(*ip)));
    }
    parameters.distinguished_name = name;
    let asked = parameters.serialize_request(&key).and_then(|asked| asked.pem()).map_err(JoinError::Key)?;
    let object = CertificateSigningRequest {
        metadata: ObjectMeta { generate_name: Some("node-csr-".to_owned()), ..ObjectMeta::default() },
        spec: CertificateSigningRequestSpec {
            request: ByteString(asked.into_bytes()),
            signer_name: signer.to_owned(),
            usages: Some(vec!["digital signature".to_owned(), usage.to_owned()]),
            ..CertificateSigningRequestSpec::default()
        },
        ..CertificateSigningRequest::default()
    };
    let made = client.create("", &object).await.map_err(JoinError::Request)?;
    let name = made.metadata.name.unwrap_or_default();
    let (begun, mut wait) = (Instant::now(), FIRST_LOOK);
    while begun.elapsed() < patience {
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
    Err(JoinError::Unsigned(patience))
}
