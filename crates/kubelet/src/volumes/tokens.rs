//! Service account tokens of pods, for volumes and CSI drivers, cached until renewal.

use std::collections::HashMap;

use client::{Client, ClientError};
use jiff::{SignedDuration, Timestamp};
use objects::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use objects::core::v1::Pod;
use parking_lot::Mutex;

/// Pod, audience (the API server's own if empty) and requested lifetime.
type Key = (String, String, Option<i64>);

/// A token with its lifetime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    pub text: String,
    pub ends: Timestamp,
    renew_at: Timestamp,
}

/// Tokens of the pods of a node.
#[derive(Debug, Default)]
pub struct Tokens(Mutex<HashMap<Key, Token>>);

impl Tokens {
    /// Returns a cached or new token of the pod's service account for an audience.
    pub async fn get(
        &self,
        client: &Client,
        pod: &Pod,
        audience: &str,
        seconds: Option<i64>,
        now: Timestamp,
    ) -> Result<Token, ClientError> {
        let meta = &pod.metadata;
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let key = (text(&meta.uid), audience.to_owned(), seconds);
        if let Some(token) = self.0.lock().get(&key).filter(|token| now < token.renew_at) {
            return Ok(token.clone());
        }
        let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone());
        let account = account.filter(|name| !name.is_empty()).unwrap_or_else(|| "default".to_owned());
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                audiences: (!audience.is_empty()).then(|| vec![audience.to_owned()]),
                expiration_seconds: seconds,
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Pod".to_owned()),
                    name: meta.name.clone(),
                    uid: meta.uid.clone(),
                }),
            }),
            ..TokenRequest::default()
        };
        let path = format!("/api/v1/namespaces/{}/serviceaccounts/{account}/token", text(&meta.namespace));
        let answer: TokenRequest = client.post(&path, &request).await?;
        let status = answer.status.unwrap_or_default();
        let ends = status.expiration_timestamp.map_or(now, |time| time.0);
        let token = Token { text: status.token.unwrap_or_default(), ends, renew_at: renewal(now, ends) };
        self.0.lock().insert(key, token.clone());
        Ok(token)
    }

    /// Next renewal time of a token of the pod. Overdue ones are excluded: they are unused, or their request failed
    /// and is repeated with the next volume refresh.
    #[must_use]
    pub fn renewal(&self, uid: &str, now: Timestamp) -> Option<Timestamp> {
        let all = self.0.lock();
        let own = all.iter().filter(|(key, _)| key.0 == uid).map(|(_, token)| token.renew_at);
        own.filter(|at| *at > now).min()
    }

    pub fn forget(&self, uid: &str) {
        self.0.lock().retain(|key, _| key.0 != uid);
    }
}

/// Renewal after 80 % of the lifetime, or a day if that is earlier.
fn renewal(now: Timestamp, ends: Timestamp) -> Timestamp {
    let life = (ends.duration_since(now) * 4 / 5).min(SignedDuration::from_hours(24));
    now.saturating_add(life).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_renewal_time() {
        let at = |seconds: i64| Timestamp::from_second(seconds).expect("a time");
        assert_eq!(renewal(at(0), at(1000)), at(800));
        assert_eq!(renewal(at(0), at(1_000_000)), at(86_400));
        let tokens = Tokens::default();
        let token = |renew_at| Token { text: String::new(), ends: at(1000), renew_at: at(renew_at) };
        let key = |uid: &str, audience: &str| (uid.to_owned(), audience.to_owned(), None);
        tokens.0.lock().extend([
            (key("a", ""), token(500)),
            (key("a", "x"), token(100)),
            (key("b", ""), token(300)),
        ]);
        assert_eq!(tokens.renewal("a", at(50)), Some(at(100)));
        assert_eq!(tokens.renewal("a", at(100)), Some(at(500)), "overdue tokens are excluded");
        tokens.forget("a");
        assert_eq!(tokens.renewal("a", at(0)), None);
        assert_eq!(tokens.renewal("b", at(0)), Some(at(300)));
    }
}
