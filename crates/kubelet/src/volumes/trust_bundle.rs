//! Cluster trust bundles in projected volumes: one by name, or all of a signer selected by labels.

use std::collections::BTreeSet;

use base::pki::certificates_from_pem;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use client::{Client, ClientError, ListOptions};
use machinery::selector::LabelSelector;
use objects::certificates::v1beta1::ClusterTrustBundle;
use objects::core::v1::ClusterTrustBundleProjection;

/// Failure to collect the certificates.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    #[error("while getting ClusterTrustBundle: {0}")]
    Read(#[from] ClientError),
    #[error("while parsing label selector: {0}")]
    Selector(String),
    #[error("combination of signerName and labelSelector matched zero ClusterTrustBundles")]
    Nothing,
    #[error("while normalizing trust anchors: {0}")]
    Malformed(String),
}

/// Certificates of a projection, as PEM. Empty if they are optional and missing.
pub async fn certificates(
    client: &Client,
    source: &ClusterTrustBundleProjection,
) -> Result<Vec<u8>, BundleError> {
    let optional = source.optional == Some(true);
    let bundles = match (&source.name, &source.signer_name) {
        (Some(name), _) => match client.get::<ClusterTrustBundle>("", name).await {
            Ok(found) => vec![found],
            Err(error) if error.is_not_found() && optional => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        },
        (None, Some(signer)) => {
            // An absent selector matches nothing, an empty one everything.
            let Some(selector) = &source.label_selector else {
                return if optional { Ok(Vec::new()) } else { Err(BundleError::Nothing) };
            };
            let selector = serde_json::to_value(selector).map_err(|error| error.to_string());
            let selector = selector.and_then(|value| {
                LabelSelector::from_object(Some(&value)).map_err(|error| error.to_string())
            });
            let selector = selector.map_err(BundleError::Selector)?;
            let options = ListOptions { label_selector: selector.to_string(), ..ListOptions::default() };
            let mut found = client.list::<ClusterTrustBundle>("", &options).await?.items;
            found.retain(|bundle| bundle.spec.signer_name.as_ref() == Some(signer));
            found
        }
        (None, None) => Vec::new(),
    };
    if bundles.is_empty() {
        return if optional { Ok(Vec::new()) } else { Err(BundleError::Nothing) };
    }
    together(bundles.iter().map(|bundle| bundle.spec.trust_bundle.as_str())).map_err(BundleError::Malformed)
}

/// Deduplicates certificates, in an order independent of that of the bundles.
fn together<'a>(bundles: impl Iterator<Item = &'a str>) -> Result<Vec<u8>, String> {
    let mut all = BTreeSet::new();
    for bundle in bundles {
        all.extend(certificates_from_pem(bundle)?.into_iter().map(|certificate| certificate.to_vec()));
    }
    let mut text = String::new();
    for certificate in all {
        text.push_str("-----BEGIN CERTIFICATE-----\n");
        let encoded = STANDARD.encode(certificate);
        for line in encoded.as_bytes().chunks(64) {
            text.push_str(&String::from_utf8_lossy(line));
            text.push('\n');
        }
        text.push_str("-----END CERTIFICATE-----\n");
    }
    Ok(text.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trust_bundle_certificates_are_deduplicated() {
        let directory = tempfile::tempdir().unwrap();
        let now = jiff::Timestamp::now();
        let made = |name: &str| {
            let mut names = base::pki::ServingNames::default();
            names.dns.insert(name.to_owned());
            let made = base::pki::KubeletPki::open(&directory.path().join(name), &names, now).unwrap();
            made.serving.chain_pem
        };
        let (a, b) = (made("a"), made("b"));
        let both = format!("{a}\n{b}");
        let text = String::from_utf8(together([a.as_str(), &both, &b].into_iter()).unwrap()).unwrap();
        assert_eq!(text.matches("BEGIN CERTIFICATE").count(), 2);
        assert_eq!(certificates_from_pem(&text).unwrap().len(), 2);
        assert_eq!(together([b.as_str(), &a].into_iter()).unwrap(), text.into_bytes());
        assert!(together(["nonsense"].into_iter()).is_err());
    }
}
