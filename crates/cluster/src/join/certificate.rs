//! Certificates of a node, signed by the cluster: client certificate, and serving certificate of its kubelet.

use std::time::{Duration, Instant};

use base::backoff::Backoff;
use base::pki::ServingNames;
use client::Client;
use objects::ByteString;
use objects::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use objects::meta::v1::ObjectMeta;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};

use super::JoinError;

/// Wait limit and poll interval of the signer. Serving certificates are approved manually.
const SIGNER_WAIT_LIMIT: Duration = Duration::from_secs(120);
const APPROVAL_WAIT_LIMIT: Duration = Duration::from_secs(900);
/// Annotation of a request by a machine without credentials of an earlier join.
const NEW_MACHINE: &str = "ferry.dev/new-machine";
const POLL: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));

/// Purpose of a certificate.
#[derive(Clone, Copy, Debug)]
pub enum Purpose<'a> {
    /// Client certificate of the node.
    Client,
    /// Serving certificate of the kubelet, for these names.
    Serving(&'a ServingNames),
}

/// Requests a certificate and waits for it; returns the chain and its key, as PEM.
/// `is_new`: the machine has no credentials of an earlier join, so it must not take over an existing node.
pub async fn request(
    client: &Client,
    node: &str,
    purpose: Purpose<'_>,
    is_new: bool,
) -> Result<String, JoinError> {
    let (signer, usage, patience) = match purpose {
        Purpose::Client => ("kubernetes.io/kube-apiserver-client-kubelet", "client auth", SIGNER_WAIT_LIMIT),
        Purpose::Serving(_) => ("kubernetes.io/kubelet-serving", "server auth", APPROVAL_WAIT_LIMIT),
    };
    let key = KeyPair::generate().map_err(JoinError::Key)?;
    let mut name = DistinguishedName::new();
    name.push(DnType::OrganizationName, "system:nodes");
    name.push(DnType::CommonName, format!("system:node:{node}"));
    let mut parameters = CertificateParams::default();
    if let Purpose::Serving(names) = purpose {
        let dns: Vec<String> = names.dns.iter().cloned().collect();
        parameters = CertificateParams::new(dns).map_err(JoinError::Key)?;
        parameters.subject_alt_names.extend(names.ips.iter().map(|ip| SanType::IpAddress(*ip)));
    }
    parameters.distinguished_name = name;
    let request =
        parameters.serialize_request(&key).and_then(|request| request.pem()).map_err(JoinError::Key)?;
    let object = CertificateSigningRequest {
        metadata: ObjectMeta {
            generate_name: Some("node-csr-".to_owned()),
            annotations: is_new.then(|| [(NEW_MACHINE.to_owned(), "true".to_owned())].into_iter().collect()),
            ..ObjectMeta::default()
        },
        spec: CertificateSigningRequestSpec {
            request: ByteString(request.into_bytes()),
            signer_name: signer.to_owned(),
            usages: Some(vec!["digital signature".to_owned(), usage.to_owned()]),
            ..CertificateSigningRequestSpec::default()
        },
        ..CertificateSigningRequest::default()
    };
    let made = client.create("", &object).await.map_err(JoinError::Request)?;
    let name = made.metadata.name.unwrap_or_default();
    let (begun, mut poll) = (Instant::now(), POLL);
    while begun.elapsed() < patience {
        poll.wait().await;
        let found: CertificateSigningRequest = client.get("", &name).await.map_err(JoinError::Request)?;
        let status = found.status.unwrap_or_default();
        if let Some(certificate) = status.certificate.filter(|certificate| !certificate.0.is_empty()) {
            let chain = String::from_utf8(certificate.0)
                .map_err(|_| JoinError::Certificate("it is not valid UTF-8".to_owned()))?;
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
