//! Bootstrap tokens: `id.secret`, stored in secrets of kube-system, for new nodes.

use super::{Authenticated, Refusal};
use crate::registry::{Registry, store_error};
use crate::user::UserInfo;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use machinery::{Value, meta};

const NAMESPACE: &str = "kube-system";
const GROUP: &str = "system:bootstrappers";

/// The user of a bootstrap token; `None` if it is not a valid one.
pub async fn authenticate(
    registry: &Registry,
    token: &str,
    now: Timestamp,
) -> Result<Option<Authenticated>, Refusal> {
    let Some((id, secret)) = split(token) else { return Ok(None) };
    let served = registry.builtin("", "v1", "secrets").map_err(|status| Refusal(status.message))?;
    let cache = &served.storage.cache;
    let key = served.key(NAMESPACE, &format!("bootstrap-token-{id}"));
    cache.ready_for(&key).await.map_err(|error| Refusal(store_error(&error).message))?;
    let Some(entry) = cache.get(&key) else {
        return Ok(None);
    };
    let user = user(&entry.value(), id, secret, now);
    if let Err(why) = &user {
        tracing::info!(id, why, "bootstrap token rejected");
    }
    Ok(user.ok().map(|user| Authenticated { user, audiences: Vec::new() }))
}

/// Six and sixteen lower-case letters or digits.
fn split(token: &str) -> Option<(&str, &str)> {
    let (id, secret) = token.split_once('.')?;
    let plain = |text: &str| text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    (id.len() == 6 && secret.len() == 16 && plain(id) && plain(secret)).then_some((id, secret))
}

fn user(object: &Value, id: &str, secret: &str, now: Timestamp) -> Result<UserInfo, &'static str> {
    let data = |key: &str| {
        let encoded = object["data"][key].as_str().unwrap_or("");
        STANDARD.decode(encoded).unwrap_or_default()
    };
    if meta::deletion_timestamp(object).is_some() {
        return Err("is deleted and awaiting removal");
    }
    if object["type"] != "bootstrap.kubernetes.io/token" {
        return Err("has invalid type");
    }
    if !same(&data("token-secret"), secret.as_bytes()) {
        return Err("has invalid value for key token-secret");
    }
    if data("token-id") != id.as_bytes() {
        return Err("has invalid value for key token-id");
    }
    let expiration = data("expiration");
    if !expiration.is_empty() {
        let expires = std::str::from_utf8(&expiration).ok().and_then(|text| text.parse::<Timestamp>().ok());
        if expires.is_none_or(|expires| expires < now) {
            return Err("has expired");
        }
    }
    if data("usage-bootstrap-authentication") != b"true" {
        return Err("not marked usage-bootstrap-authentication=true");
    }
    let mut groups = vec![GROUP.to_owned()];
    let extra = String::from_utf8(data("auth-extra-groups")).unwrap_or_default();
    for group in extra.split(',').map(str::trim).filter(|group| !group.is_empty()) {
        if !is_bootstrap_group(group) {
            return Err("has invalid value for key auth-extra-groups");
        }
        groups.push(group.to_owned());
    }
    groups.sort_unstable();
    groups.dedup();
    Ok(UserInfo { name: format!("system:bootstrap:{id}"), groups, ..UserInfo::default() })
}

/// Only groups below `system:bootstrappers:` are accepted, so that a secret cannot create an administrator.
fn is_bootstrap_group(group: &str) -> bool {
    let Some(rest) = group.strip_prefix("system:bootstrappers:") else { return false };
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    rest.bytes().all(|b| plain(b) || matches!(b, b':' | b'-'))
        && rest.bytes().next_back().is_some_and(plain)
        && rest.len() <= 255
}

/// Constant-time comparison.
fn same(a: &[u8], b: &[u8]) -> bool {
    aws_lc_rs::constant_time::verify_slices_are_equal(a, b).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn bootstrap_token_format_is_checked() {
        for (token, want) in [
            ("abcdef.0123456789abcdef", true),
            ("abcde.0123456789abcdef", false),
            ("ABCDEF.0123456789abcdef", false),
            ("abcdef", false),
            ("abcdef.0123456789abcde.", false),
        ] {
            assert_eq!(split(token).is_some(), want, "{token}");
        }
    }

    #[test]
    fn bootstrap_token_secret_is_validated() {
        let encode = |text: &str| STANDARD.encode(text);
        let good = json!({
            "type": "bootstrap.kubernetes.io/token",
            "data": {
                "token-id": encode("abcdef"),
                "token-secret": encode("0123456789abcdef"),
                "usage-bootstrap-authentication": encode("true"),
                "auth-extra-groups": encode("system:bootstrappers:workers"),
            },
        });
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let check = |object: &Value| user(object, "abcdef", "0123456789abcdef", now);
        let found = check(&good).unwrap();
        assert_eq!(found.name, "system:bootstrap:abcdef");
        assert_eq!(found.groups, ["system:bootstrappers", "system:bootstrappers:workers"]);
        for (field, value, why) in [
            ("expiration", "2025-12-31T00:00:00Z", "has expired"),
            ("expiration", "rubbish", "has expired"),
            ("usage-bootstrap-authentication", "false", "not marked usage-bootstrap-authentication=true"),
            ("auth-extra-groups", "system:masters", "has invalid value for key auth-extra-groups"),
            ("token-secret", "x", "has invalid value for key token-secret"),
            ("token-id", "x", "has invalid value for key token-id"),
        ] {
            let mut bad = good.clone();
            bad["data"][field] = encode(value).into();
            assert_eq!(check(&bad).unwrap_err(), why);
        }
    }
}
