//! Discovery of a cluster's certificate authority with only a token: cluster-info is public and signed with the
//! token's secret. Nothing else from the unverified server is used, and the token itself is not sent to it.

use std::path::Path;
use std::time::{Duration, Instant};

use aws_lc_rs::hmac;
use base::http::{Authorities, Client, HttpError, Limits, Origin, Trust};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http_body_util::Full;
use machinery::kubeconfig::{self, ClusterEntry, Material};
use serde_json::Value;

use super::BootstrapToken;

const PATH: &str = "/api/v1/namespaces/kube-public/configmaps/cluster-info";
const LIMIT: usize = 1 << 20;
const ATTEMPT: Duration = Duration::from_secs(10);
/// Time limit for the signer to sign a new token.
const SIGNER_WAIT_LIMIT: Duration = Duration::from_secs(10);
/// Interval of reports about a server that does not respond.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);
/// Time limit for the server to start.
const WAIT_LIMIT: Duration = Duration::from_secs(60);
const RETRY_DELAY: Duration = Duration::from_millis(250);

#[derive(Debug, thiserror::Error)]
pub enum DiscoverError {
    #[error("not an https URL")]
    Url,
    #[error("request failed")]
    Http(#[source] HttpError),
    #[error("it returned status {0}")]
    Status(http::StatusCode),
    #[error("its response is not a valid cluster-info")]
    Answer,
    #[error(
        "cluster-info has no signature of token {0}: the token is unknown or expired, list the tokens with `ferry token list` on the server"
    )]
    Unsigned(String),
    #[error(
        "the signature of cluster-info does not match the token: this may not be the cluster that issued it"
    )]
    Signature,
    #[error("request timed out")]
    Slow,
}

impl DiscoverError {
    /// Time limit of retries; `None` if none can succeed.
    fn wait_limit(&self) -> Option<Duration> {
        match self {
            Self::Url | Self::Signature | Self::Answer => None,
            Self::Unsigned(_) => Some(SIGNER_WAIT_LIMIT),
            Self::Status(status)
                if !status.is_server_error() && status.as_u16() != 404 && status.as_u16() != 429 =>
            {
                None
            }
            Self::Status(_) | Self::Http(_) | Self::Slow => Some(WAIT_LIMIT),
        }
    }
}

/// Certificate of the cluster's authority, as PEM.
pub async fn authority(server: &str, token: &BootstrapToken) -> Result<String, DiscoverError> {
    let (begun, mut reported) = (Instant::now(), None);
    loop {
        let attempt = tokio::time::timeout(ATTEMPT, fetch(server)).await.unwrap_or(Err(DiscoverError::Slow));
        match attempt.and_then(|map| verified(&map, token)) {
            Err(error) if error.wait_limit().is_some_and(|limit| begun.elapsed() < limit) => {
                // The signer signs new tokens shortly after the start.
                let is_expected = matches!(error, DiscoverError::Unsigned(_));
                if !is_expected && reported.is_none_or(|at: Instant| at.elapsed() >= REPORT_INTERVAL) {
                    tracing::warn!(
                        error = crate::chain(&error),
                        server,
                        "failed to get cluster-info, retrying"
                    );
                    reported = Some(Instant::now());
                }
                tokio::time::sleep(RETRY_DELAY).await;
            }
            outcome => return outcome,
        }
    }
}

async fn fetch(server: &str) -> Result<Value, DiscoverError> {
    // The content is verified with the token, so the server need not be.
    let trust = Trust { authorities: Authorities::Unverified, ..Trust::default() };
    let origin = Origin::of_url(server, &trust).ok().filter(Origin::is_secure).ok_or(DiscoverError::Url)?;
    let request = http::Request::get(PATH)
        .header(http::header::HOST, origin.authority())
        .header(http::header::ACCEPT, "application/json")
        .body(Full::default())
        .map_err(|_| DiscoverError::Url)?;
    let client = Client::new(Limits { max_idle: 0, ..Limits::default() });
    let response = client.send(&origin, request).await.map_err(DiscoverError::Http)?;
    if !response.status.is_success() {
        return Err(DiscoverError::Status(response.status));
    }
    let body = response.bytes(LIMIT).await.map_err(DiscoverError::Http)?;
    serde_json::from_slice(&body).map_err(|_| DiscoverError::Answer)
}

/// Content of the ConfigMap, if it is signed with the token.
fn verified(map: &Value, token: &BootstrapToken) -> Result<String, DiscoverError> {
    let text = |key: &str| map["data"][key].as_str();
    let content = text("kubeconfig").ok_or(DiscoverError::Answer)?;
    let signature = text(&format!("jws-kubeconfig-{}", token.id))
        .ok_or_else(|| DiscoverError::Unsigned(token.id.clone()))?;
    let (header, tag) = signature.split_once("..").ok_or(DiscoverError::Signature)?;
    let algorithm = URL_SAFE_NO_PAD.decode(header).ok();
    let algorithm: Value =
        algorithm.and_then(|bytes| serde_json::from_slice(&bytes).ok()).ok_or(DiscoverError::Signature)?;
    if algorithm["alg"] != "HS256" {
        return Err(DiscoverError::Signature);
    }
    let tag = URL_SAFE_NO_PAD.decode(tag).map_err(|_| DiscoverError::Signature)?;
    let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(content));
    let key = hmac::Key::new(hmac::HMAC_SHA256, token.secret().as_bytes());
    hmac::verify(&key, signed.as_bytes(), &tag).map_err(|_| DiscoverError::Signature)?;
    let parsed = kubeconfig::decode(content.as_bytes()).map_err(|_| DiscoverError::Answer)?;
    let cluster = parsed.get("clusters").and_then(|clusters| clusters.pointer("/0/cluster"));
    let cluster = cluster.and_then(|cluster| ClusterEntry::read(cluster, Path::new("")).ok());
    match cluster.and_then(|cluster| cluster.authority) {
        Some(Material::Text(authority)) => Ok(authority),
        _ => Err(DiscoverError::Answer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn signed(content: &str, secret: &str) -> Value {
        let header = URL_SAFE_NO_PAD.encode(r#"{"alg":"HS256","kid":"abcdef"}"#);
        let text = format!("{header}.{}", URL_SAFE_NO_PAD.encode(content));
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()), text.as_bytes());
        let signature = format!("{header}..{}", URL_SAFE_NO_PAD.encode(tag.as_ref()));
        json!({"data": {"kubeconfig": content, "jws-kubeconfig-abcdef": signature}})
    }

    #[test]
    fn cluster_info_requires_token_signature() {
        let token = BootstrapToken::parse("abcdef.0123456789abcdef").expect("a token");
        let content = "clusters:\n- cluster:\n    certificate-authority-data: Y2E=\n";
        assert_eq!(verified(&signed(content, "0123456789abcdef"), &token).expect("signed"), "ca");
        let forged = verified(&signed(content, "fedcba9876543210"), &token);
        assert!(matches!(forged, Err(DiscoverError::Signature)), "{forged:?}");
        let mut changed = signed(content, "0123456789abcdef");
        changed["data"]["kubeconfig"] = json!("clusters: []");
        assert!(matches!(verified(&changed, &token), Err(DiscoverError::Signature)));
        let unsigned = json!({"data": {"kubeconfig": content}});
        assert!(matches!(verified(&unsigned, &token), Err(DiscoverError::Unsigned(_))));
        assert!(matches!(verified(&json!({}), &token), Err(DiscoverError::Answer)));
    }
}
