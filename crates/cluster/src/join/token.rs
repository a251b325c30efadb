//! Bootstrap tokens: `id.secret`, stored as secrets of kube-system.

use futures_util::future::BoxFuture;
use std::collections::BTreeMap;
use std::time::Duration;

use client::{Client, ClientError, DeleteOptions, ListOptions};
use jiff::{SignedDuration, Timestamp};
use objects::core::v1::{ConfigMap, Secret};
use objects::meta::v1::ObjectMeta;
use rand::Rng;

const NAMESPACE: &str = "kube-system";
const TYPE: &str = "bootstrap.kubernetes.io/token";
const LETTERS: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// Invalid token syntax.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the token must be of the form abcdef.0123456789abcdef")]
pub struct TokenError;

/// Bootstrap token of nodes.
#[derive(Clone, PartialEq, Eq)]
pub struct BootstrapToken {
    pub id: String,
    secret: String,
}

impl std::fmt::Debug for BootstrapToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BootstrapToken").field("id", &self.id).finish_non_exhaustive()
    }
}

impl std::fmt::Display for BootstrapToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.id, self.secret)
    }
}

impl BootstrapToken {
    pub fn parse(text: &str) -> Result<Self, TokenError> {
        let (id, secret) = text.trim().split_once('.').ok_or(TokenError)?;
        let plain = |text: &str| text.bytes().all(|byte| LETTERS.contains(&byte));
        if id.len() != 6 || secret.len() != 16 || !plain(id) || !plain(secret) {
            return Err(TokenError);
        }
        Ok(Self { id: id.to_owned(), secret: secret.to_owned() })
    }

    /// Random token.
    #[must_use]
    pub fn random() -> Self {
        let mut random = rand::rng();
        let mut text = |length: usize| -> String {
            (0..length).map(|_| char::from(LETTERS[random.random_range(0..LETTERS.len())])).collect()
        };
        Self { id: text(6), secret: text(16) }
    }

    pub(super) fn secret(&self) -> &str {
        &self.secret
    }
}

/// Creates the secret of a token, which expires after `life`, or never.
pub fn create<'a>(
    client: &'a Client,
    token: &'a BootstrapToken,
    life: Option<Duration>,
    description: &'a str,
    now: Timestamp,
) -> BoxFuture<'a, Result<(), ClientError>> {
    Box::pin(async move {
        let mut data: BTreeMap<String, String> = [
            ("token-id", token.id.as_str()),
            ("token-secret", token.secret()),
            ("usage-bootstrap-authentication", "true"),
            ("usage-bootstrap-signing", "true"),
            ("description", description),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
        if let Some(life) = life {
            let life = SignedDuration::try_from(life).unwrap_or(SignedDuration::MAX);
            let end = now.checked_add(life).unwrap_or(Timestamp::MAX);
            data.insert("expiration".to_owned(), end.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
        }
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(format!("bootstrap-token-{}", token.id)),
                namespace: Some(NAMESPACE.to_owned()),
                ..ObjectMeta::default()
            },
            type_: Some(TYPE.to_owned()),
            string_data: Some(data),
            ..Secret::default()
        };
        client.create(NAMESPACE, &secret).await.map(drop)
    })
}

/// Token as described by its secret.
#[derive(Clone, Debug)]
pub struct TokenInfo {
    pub id: String,
    /// Expiration as RFC 3339 text; `None` if the token does not expire.
    pub expiration: Option<String>,
    pub description: String,
}

/// All tokens of the cluster.
pub fn list(client: &Client) -> BoxFuture<'_, Result<Vec<TokenInfo>, ClientError>> {
    Box::pin(async move {
        let options = ListOptions { field_selector: format!("type={TYPE}"), ..ListOptions::default() };
        let found = client.list::<Secret>(NAMESPACE, &options).await?;
        let tokens = found.items.into_iter().map(|secret| {
            let data = secret.data.unwrap_or_default();
            let field = |key: &str| data.get(key).map(|value| String::from_utf8_lossy(&value.0).into_owned());
            TokenInfo {
                id: field("token-id").unwrap_or_default(),
                expiration: field("expiration"),
                description: field("description").unwrap_or_default(),
            }
        });
        Ok(tokens.collect())
    })
}

pub fn delete<'a>(client: &'a Client, id: &'a str) -> BoxFuture<'a, Result<(), ClientError>> {
    Box::pin(async move {
        client.delete::<Secret>(NAMESPACE, &format!("bootstrap-token-{id}"), &DeleteOptions::default()).await
    })
}

/// URL of the API server in the public cluster-info.
pub fn advertised_server(client: &Client) -> BoxFuture<'_, Result<String, ClientError>> {
    Box::pin(async move {
        let map: ConfigMap = client.get("kube-public", "cluster-info").await?;
        let text = map.data.unwrap_or_default().remove("kubeconfig").unwrap_or_default();
        let line = text.lines().find_map(|line| line.trim().strip_prefix("server: "));
        Ok(line.unwrap_or_default().to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bootstrap_token_is_parsed_and_formatted() {
        let token = BootstrapToken::random();
        assert_eq!(BootstrapToken::parse(&token.to_string()), Ok(token.clone()));
        assert!(!format!("{token:?}").contains(token.secret()));
        for bad in ["", "abcdef", "abcdef.0123", "ABCDEF.0123456789abcdef", "abcdef.0123456789abcde!"] {
            assert_eq!(BootstrapToken::parse(bad), Err(TokenError), "{bad}");
        }
    }
}
