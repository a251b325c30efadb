//! Service account tokens in secrets: one loop fills in and deletes them, one removes unused ones.

pub mod legacy_cleaner;

use std::sync::Arc;

use async_trait::async_trait;
use client::delete_options;
use objects::ByteString;
use objects::core::v1::{Secret, ServiceAccount};
use runtime::{Action, Cache, Change, Context, Descriptor, Key, Loop, LoopError};
use serde_json::{Value, json};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "serviceaccount-token-controller",
    resource: "secrets",
    identity: "system:kube-controller-manager",
    workers: 5,
};

const TYPE: &str = "kubernetes.io/service-account-token";
const ACCOUNT: &str = "kubernetes.io/service-account.name";
const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";

/// Signs claims as a token.
pub type Sign = dyn Fn(&Value) -> Option<String> + Send + Sync;

/// Setting: signer and CA for legacy tokens and their secrets; without it the loop only deletes.
#[derive(Clone)]
pub struct LegacyTokens {
    /// Signs claims as a token.
    pub sign: Arc<Sign>,
    /// CA certificate of the API server, in PEM.
    pub root_ca: String,
}

impl std::fmt::Debug for LegacyTokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LegacyTokens").finish_non_exhaustive()
    }
}

#[derive(Debug, thiserror::Error)]
#[error("failed to sign service account token")]
struct Unsigned;

struct Tokens {
    secrets: Cache<Secret>,
    accounts: Cache<ServiceAccount>,
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    let secrets = ctx.watch::<Secret>(|change| {
        let secret = change.object();
        if account_of(secret).is_some() { vec![Key::of(&**secret)] } else { Vec::new() }
    });
    let all = secrets.clone();
    let accounts = ctx.watch::<ServiceAccount>(move |change| {
        let account = change.object();
        if matches!(change, Change::Updated { old, new } if old.metadata.uid == new.metadata.uid) {
            return Vec::new();
        }
        let namespace = account.metadata.namespace.as_deref().unwrap_or_default();
        let name = account.metadata.name.as_deref();
        let tokens =
            all.list(namespace).into_iter().filter(|secret| account_of(secret) == name && name.is_some());
        tokens.map(|secret| Key::of(&*secret)).collect()
    });
    Box::new(Tokens { secrets, accounts })
}

/// Account of a token secret.
fn account_of(secret: &Secret) -> Option<&str> {
    if secret.type_.as_deref() != Some(TYPE) {
        return None;
    }
    annotation(secret, ACCOUNT).filter(|name| !name.is_empty())
}

fn annotation<'a>(secret: &'a Secret, key: &str) -> Option<&'a str> {
    secret.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

#[async_trait]
impl Loop for Tokens {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let Some(secret) = self.secrets.get_key(key) else { return Ok(Action::Done) };
        let Some(name) = account_of(&secret) else { return Ok(Action::Done) };
        let suits = |account: &ServiceAccount| {
            let wanted = annotation(&secret, ACCOUNT_UID).filter(|uid| !uid.is_empty());
            wanted.is_none_or(|wanted| account.metadata.uid.as_deref() == Some(wanted))
        };
        let known = self.accounts.get(&key.namespace, name).map(|account| account.as_ref().clone());
        let account = match known.filter(|account| suits(account)) {
            Some(account) => Some(account),
            None => match ctx.client.get::<ServiceAccount>(&key.namespace, name).await {
                Ok(account) => Some(account).filter(|account| suits(account)),
                Err(error) if error.is_not_found() => None,
                Err(error) => return Err(error.into()),
            },
        };
        let Some(account) = account else {
            let options = delete_options(secret.metadata.uid.as_deref(), None);
            return match ctx.client.delete::<Secret>(&key.namespace, &key.name, &options).await {
                Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error.into()),
                _ => Ok(Action::Done),
            };
        };
        let Some(settings) = ctx.setting::<LegacyTokens>() else { return Ok(Action::Done) };
        let Some(filled) = fill(&secret, &account, settings)? else { return Ok(Action::Done) };
        match ctx.client.update(&filled).await {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(Action::Done),
        }
    }
}

/// The secret with its missing fields; `None` if it is complete.
fn fill(
    secret: &Secret,
    account: &ServiceAccount,
    settings: &LegacyTokens,
) -> Result<Option<Secret>, Unsigned> {
    let namespace = secret.metadata.namespace.clone().unwrap_or_default();
    let mut filled = secret.clone();
    let data = filled.data.get_or_insert_default();
    if !settings.root_ca.is_empty() {
        data.insert("ca.crt".to_owned(), ByteString(settings.root_ca.clone().into_bytes()));
    }
    data.entry("namespace".to_owned()).or_insert_with(|| ByteString(namespace.clone().into_bytes()));
    if data.get("token").is_none_or(|token| token.0.is_empty()) {
        let token = (settings.sign)(&claims(secret, account)).ok_or(Unsigned)?;
        data.insert("token".to_owned(), ByteString(token.into_bytes()));
    }
    let annotations = filled.metadata.annotations.get_or_insert_default();
    annotations.insert(ACCOUNT_UID.to_owned(), account.metadata.uid.clone().unwrap_or_default());
    Ok((filled != *secret).then_some(filled))
}

/// Claims of a legacy token: it never expires, and is valid as long as its secret exists.
fn claims(secret: &Secret, account: &ServiceAccount) -> Value {
    let namespace = account.metadata.namespace.clone().unwrap_or_default();
    let name = account.metadata.name.clone().unwrap_or_default();
    json!({
        "iss": "kubernetes/serviceaccount",
        "sub": format!("system:serviceaccount:{namespace}:{name}"),
        "kubernetes.io/serviceaccount/namespace": namespace,
        "kubernetes.io/serviceaccount/secret.name": secret.metadata.name,
        "kubernetes.io/serviceaccount/service-account.name": name,
        "kubernetes.io/serviceaccount/service-account.uid": account.metadata.uid,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::fixture::meta;

    #[test]
    fn token_secret_is_filled_once() {
        let settings = LegacyTokens {
            sign: Arc::new(|claims| claims["sub"].as_str().map(|subject| format!("signed {subject}"))),
            root_ca: "CA".into(),
        };
        let mut metadata = meta("t");
        metadata.annotations = Some([(ACCOUNT.to_owned(), "robot".to_owned())].into());
        let secret = Secret { metadata, type_: Some(TYPE.into()), ..Secret::default() };
        let account = ServiceAccount { metadata: meta("robot"), ..ServiceAccount::default() };
        assert_eq!(account_of(&secret), Some("robot"));
        let filled = fill(&secret, &account, &settings).expect("signed").expect("a change");
        let data = filled.data.clone().expect("data");
        assert_eq!(data["token"].0, b"signed system:serviceaccount:ns:robot");
        assert_eq!(
            (data["ca.crt"].0.as_slice(), data["namespace"].0.as_slice()),
            (b"CA".as_slice(), b"ns".as_slice())
        );
        assert_eq!(annotation(&filled, ACCOUNT_UID), Some("uid-robot"));
        assert_eq!(fill(&filled, &account, &settings).expect("signed"), None);
    }
}
