//! The bootstrap signer. Watches the `cluster-info` config map and bootstrap tokens; keeps in the map a signature of
//! its kubeconfig for every token, by which a joining node verifies the cluster.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use objects::core::v1::{ConfigMap, Secret};
use runtime::{Action, Cache, Context, Descriptor, Key, Loop, LoopError};

use super::{NAMESPACE, expiration, field, is_token};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "bootstrap-signer-controller",
    resource: "configmaps",
    identity: "system:serviceaccount:kube-system:bootstrap-signer",
    workers: 1,
};

const MAP: (&str, &str) = ("kube-public", "cluster-info");
const KUBECONFIG: &str = "kubeconfig";
const SIGNATURE: &str = "jws-kubeconfig-";

struct Signer {
    maps: Cache<ConfigMap>,
    secrets: Cache<Secret>,
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    let key = || Key::new(MAP.0, MAP.1);
    let maps = ctx.watch::<ConfigMap>(move |change| {
        let changed = Key::of(&**change.object());
        if changed == key() { vec![changed] } else { Vec::new() }
    });
    let secrets = ctx.watch::<Secret>(move |change| {
        let secret = change.object();
        let concerns = is_token(secret) && secret.metadata.namespace.as_deref() == Some(NAMESPACE);
        if concerns { vec![key()] } else { Vec::new() }
    });
    Box::new(Signer { maps, secrets })
}

#[async_trait]
impl Loop for Signer {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let Some(map) = self.maps.get_key(key) else { return Ok(Action::Done) };
        let secrets = self.secrets.list(NAMESPACE);
        let Some(data) = plan(&map, &secrets, ctx.clock.now()) else { return Ok(Action::Done) };
        let mut updated = map.as_ref().clone();
        updated.data = Some(data);
        ctx.client.update(&updated).await?;
        Ok(Action::Done)
    }
}

/// Data of the map with the current signatures; `None` if they are up to date.
fn plan(map: &ConfigMap, secrets: &[Arc<Secret>], now: Timestamp) -> Option<BTreeMap<String, String>> {
    let data = map.data.as_ref()?;
    let content = data.get(KUBECONFIG)?;
    let mut wanted = data.clone();
    wanted.retain(|key, _| !key.starts_with(SIGNATURE));
    for secret in secrets {
        if let Some((id, key)) = signing_token(secret, now) {
            wanted.insert(format!("{SIGNATURE}{id}"), sign(content, id, key));
        }
    }
    (wanted != *data).then_some(wanted)
}

/// Id and secret of a signing token.
fn signing_token(secret: &Secret, now: Timestamp) -> Option<(&str, &str)> {
    let (id, key) = (field(secret, "token-id")?, field(secret, "token-secret")?);
    let named = secret.metadata.name.as_deref()? == format!("bootstrap-token-{id}");
    let signs = field(secret, "usage-bootstrap-signing") == Some("true");
    let alive = expiration(secret).is_none_or(|end| end > now);
    (is_token(secret) && named && signs && alive && !key.is_empty()).then_some((id, key))
}

/// Detached JWS: header and signature, with the content left out between them.
fn sign(content: &str, id: &str, key: &str) -> String {
    let header = serde_json::json!({ "alg": "HS256", "kid": id }).to_string();
    let header = URL_SAFE_NO_PAD.encode(header);
    let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(content));
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes()), signed.as_bytes());
    format!("{header}..{}", URL_SAFE_NO_PAD.encode(tag.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::super::token;
    use super::*;
    use crate::shared::fixture::{at, meta};

    #[test]
    fn signatures_exist_for_unexpired_tokens_only() {
        let data = [(KUBECONFIG, "payload"), ("jws-kubeconfig-gone00", "x"), ("other", "y")];
        let data = data.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let mut map =
            ConfigMap { metadata: meta("cluster-info"), data: Some(data.into()), ..ConfigMap::default() };
        let secrets = [
            Arc::new(token("abcdef", &[])),
            Arc::new(token("no0000", &[("usage-bootstrap-signing", "false")])),
            Arc::new(token("old000", &[("expiration", "1970-01-01T00:00:05Z")])),
        ];
        let data = plan(&map, &secrets, at(10)).expect("a change");
        let keys: Vec<_> = data.keys().map(String::as_str).collect();
        assert_eq!(keys, ["jws-kubeconfig-abcdef", KUBECONFIG, "other"]);
        // Test vector: key and content as in the specification of bootstrap tokens.
        let header = URL_SAFE_NO_PAD.encode(r#"{"alg":"HS256","kid":"abcdef"}"#);
        assert!(data["jws-kubeconfig-abcdef"].starts_with(&format!("{header}..")));
        map.data = Some(data);
        assert_eq!(plan(&map, &secrets, at(10)), None);
    }
}
