//! The config map `extension-apiserver-authentication`, which publishes the trusted CAs to extension API servers.
//!
//! Several servers may write it: certificates of others are retained, except expired ones.

use super::create;
use crate::registry::update::{Change, UpdateStrategy};
use crate::registry::{Registry, WriteContext, WriteRecord};
use crate::user::UserInfo;
use api::value::Fields;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use machinery::Value;
use machinery::status::Result;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::json;
use x509_parser::prelude::{FromDer, X509Certificate};

const NAMESPACE: &str = "kube-system";
const NAME: &str = "extension-apiserver-authentication";
const CONFIG_MAPS: (&str, &str, &str) = ("", "v1", "configmaps");
const BUNDLES: [&str; 2] = ["client-ca-file", "requestheader-client-ca-file"];

/// Trust settings of this server.
#[derive(Clone, Debug, Default)]
pub struct AuthenticationTrust {
    /// CAs of client certificates, PEM.
    pub client: String,
    /// CAs of front proxies, PEM.
    pub front_proxy: String,
    /// Common names that front proxies may have; empty: any.
    pub allowed_names: Vec<String>,
    /// CAs of kubelets' serving certificates, PEM, if they are not those of client certificates. Not published.
    pub kubelet: Option<String>,
}

impl AuthenticationTrust {
    fn data(&self) -> Vec<(&'static str, String)> {
        let mut data = Vec::new();
        if !self.client.is_empty() {
            data.push((BUNDLES[0], self.client.clone()));
        }
        if !self.front_proxy.is_empty() {
            data.extend([
                (BUNDLES[1], self.front_proxy.clone()),
                ("requestheader-allowed-names", json!(self.allowed_names).to_string()),
                ("requestheader-extra-headers-prefix", r#"["X-Remote-Extra-"]"#.to_owned()),
                ("requestheader-group-headers", r#"["X-Remote-Group"]"#.to_owned()),
                ("requestheader-uid-headers", r#"["X-Remote-Uid"]"#.to_owned()),
                ("requestheader-username-headers", r#"["X-Remote-User"]"#.to_owned()),
            ]);
        }
        data
    }
}

/// Writes the config map unless it is up to date. `now` decides which certificates have expired.
pub async fn publish(registry: &Registry, trust: &AuthenticationTrust, now: i64) -> Result<()> {
    let wanted = trust.data();
    if wanted.is_empty() {
        return Ok(());
    }
    let Some(present) = registry.find(CONFIG_MAPS, NAMESPACE, NAME).await? else {
        let data: serde_json::Map<String, Value> =
            wanted.into_iter().map(|(name, text)| (name.to_owned(), text.into())).collect();
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME, "namespace": NAMESPACE}, "data": data,
        });
        return match create(registry, CONFIG_MAPS, object, "kube-apiserver").await {
            // Conflict with another server; the next run writes what is still missing.
            Err(status) if status.reason == "AlreadyExists" => Ok(()),
            outcome => outcome.map(drop),
        };
    };
    if merged(&present, &wanted, now) == present {
        return Ok(());
    }
    let served = registry.builtin(CONFIG_MAPS.0, CONFIG_MAPS.1, CONFIG_MAPS.2)?;
    let (user, record) = (UserInfo::server(), WriteRecord::default());
    let context = WriteContext::server(&user, &record, NAMESPACE);
    let strategy = UpdateStrategy::main(served.governing());
    let written = registry
        .update(served, NAME, strategy, true, &context, |old| Ok(Change::Replace(merged(old, &wanted, now))))
        .await;
    written.map(drop)
}

fn merged(present: &Value, wanted: &[(&'static str, String)], now: i64) -> Value {
    let mut new = present.clone();
    for (name, text) in wanted {
        let old = present.field("data").text(name).to_owned();
        let value = if BUNDLES.contains(name) { bundles(&old, text, now) } else { lists(&old, text) };
        new.child_mut("data").set(name, value);
    }
    new
}

/// Union of both certificate bundles, without duplicates and expired ones.
fn bundles(old: &str, own: &str, now: i64) -> String {
    let mut seen: Vec<CertificateDer<'static>> = Vec::new();
    let mut text = String::new();
    for certificate in
        [old, own].iter().flat_map(|pem| CertificateDer::pem_slice_iter(pem.as_bytes())).flatten()
    {
        let expired = X509Certificate::from_der(&certificate)
            .is_ok_and(|(_, parsed)| parsed.validity().not_after.timestamp() < now);
        if expired || seen.contains(&certificate) {
            continue;
        }
        text.push_str(&pem(&certificate));
        seen.push(certificate);
    }
    text
}

fn pem(certificate: &[u8]) -> String {
    let encoded = STANDARD.encode(certificate);
    let mut text = "-----BEGIN CERTIFICATE-----\n".to_owned();
    let mut rest = encoded.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(64));
        text.push_str(line);
        text.push('\n');
        rest = after;
    }
    text.push_str("-----END CERTIFICATE-----\n");
    text
}

/// Union of both JSON lists, without duplicates.
fn lists(old: &str, own: &str) -> String {
    let read = |text: &str| serde_json::from_str::<Vec<String>>(text).unwrap_or_default();
    let mut texts = read(old);
    for text in read(own) {
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    json!(texts).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_lists_are_merged_without_duplicates() {
        assert_eq!(lists("", r#"["a"]"#), r#"["a"]"#);
        assert_eq!(lists(r#"["b"]"#, r#"["a","b"]"#), r#"["b","a"]"#);
        assert_eq!(lists("rubbish", "[]"), "[]");
    }
}
