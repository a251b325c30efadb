//! Tokens stored in secrets of type `kubernetes.io/service-account-token`: they do not expire, and are valid as long
//! as the secret contains them. Their last use is recorded on the secret, once a day.

use super::service_account::ServiceAccountTokens;
use super::{Authenticated, Refusal};
use crate::registry::update::{Change, UpdateStrategy};
use crate::registry::{WriteContext, WriteRecord};
use crate::user::UserInfo;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use machinery::{Value, meta};
use serde::Deserialize;

pub const ISSUER: &str = "kubernetes/serviceaccount";
const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";

/// Claims of such a token.
#[derive(Clone, Debug, Deserialize)]
pub struct LegacyClaims {
    #[serde(default)]
    sub: String,
    #[serde(default, rename = "kubernetes.io/serviceaccount/namespace")]
    namespace: String,
    #[serde(default, rename = "kubernetes.io/serviceaccount/secret.name")]
    secret: String,
    #[serde(default, rename = "kubernetes.io/serviceaccount/service-account.name")]
    account: String,
    #[serde(default, rename = "kubernetes.io/serviceaccount/service-account.uid")]
    uid: String,
}

impl LegacyClaims {
    fn check(&self) -> Result<(), &'static str> {
        for (value, why) in [
            (&self.sub, "sub claim is missing"),
            (&self.namespace, "namespace claim is missing"),
            (&self.secret, "secretName claim is missing"),
            (&self.account, "serviceAccountName claim is missing"),
            (&self.uid, "serviceAccountUID claim is missing"),
        ] {
            if value.is_empty() {
                return Err(why);
            }
        }
        let subject = format!("system:serviceaccount:{}:{}", self.namespace, self.account);
        if self.sub == subject { Ok(()) } else { Err("sub claim is invalid") }
    }
}

impl ServiceAccountTokens {
    /// The account of a token whose signature has been verified.
    pub(super) async fn authenticate_legacy(
        &self,
        token: &str,
        claims: &LegacyClaims,
        audiences: &[String],
    ) -> Result<Authenticated, Refusal> {
        let refuse = |why: &str| Err(Refusal(why.to_owned()));
        if let Err(why) = claims.check() {
            return refuse(why);
        }
        // Such tokens have no audience: they are for this server.
        let own = &self.config.audiences;
        let common: Vec<String> =
            own.iter().filter(|audience| audiences.contains(audience)).cloned().collect();
        if common.is_empty() {
            return refuse("token audiences do not include the target audiences");
        }
        let (namespace, name) = (claims.namespace.as_str(), claims.account.as_str());
        let find = async |resource: &'static str, name: &str| {
            let found = self.registry.find(("", "v1", resource), namespace, name).await;
            found.map_err(|status| Refusal(status.message))
        };
        let Some(secret) = find("secrets", &claims.secret).await? else {
            return refuse("Token has been invalidated");
        };
        if meta::deletion_timestamp(&secret).is_some() {
            return refuse("Token has been invalidated");
        }
        let stored = STANDARD.decode(secret["data"]["token"].as_str().unwrap_or("")).unwrap_or_default();
        if aws_lc_rs::constant_time::verify_slices_are_equal(&stored, token.as_bytes()).is_err() {
            return refuse("Token does not match server's copy");
        }
        let Some(account) = find("serviceaccounts", name).await? else {
            return refuse(&format!("serviceaccounts {name:?} not found"));
        };
        if meta::deletion_timestamp(&account).is_some() {
            return refuse(&format!("ServiceAccount {namespace}/{name} has been deleted"));
        }
        if meta::uid(&account) != claims.uid {
            return refuse(&format!(
                "ServiceAccount UID ({}) does not match claim ({})",
                meta::uid(&account),
                claims.uid
            ));
        }
        self.note_use(&secret).await;
        if label(&secret, INVALID_SINCE).is_some() {
            return refuse(&format!(
                "the token in secret {namespace}/{} for service account {namespace}/{name} has been marked invalid. Use tokens from the TokenRequest API or manually created secret-based tokens, or remove the '{INVALID_SINCE}' label from the secret to temporarily allow use of this token",
                claims.secret
            ));
        }
        let user = UserInfo {
            name: claims.sub.clone(),
            uid: claims.uid.clone(),
            groups: vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")],
            ..UserInfo::default()
        };
        Ok(Authenticated { user, audiences: common })
    }

    /// Records today's use. Clocks of servers may differ by a day.
    async fn note_use(&self, secret: &Value) {
        let (now, used) = (self.now(), label(secret, LAST_USED).unwrap_or(""));
        let today = day(now);
        if used == today || used == day(now + SignedDuration::from_hours(24)) {
            return;
        }
        let (user, record) = (UserInfo::server(), WriteRecord::default());
        let context = WriteContext::server(&user, &record, meta::namespace(secret));
        let Ok(served) = self.registry.builtin("", "v1", "secrets") else { return };
        let noted = self
            .registry
            .update(
                served,
                meta::name(secret),
                UpdateStrategy::main(served.governing()),
                true,
                &context,
                |old| {
                    let mut new = old.clone();
                    let labels = meta::child_mut(&mut new["metadata"], "labels");
                    labels.insert(LAST_USED.to_owned(), today.clone().into());
                    Ok(Change::Replace(new))
                },
            )
            .await;
        if let Err(status) = noted {
            tracing::warn!(
                error = status.message,
                secret = meta::name(secret),
                "failed to record the last use of a token"
            );
        }
    }
}

fn label<'a>(object: &'a Value, name: &str) -> Option<&'a str> {
    meta::labels(object)?.get(name)?.as_str().filter(|value| !value.is_empty())
}

fn day(time: Timestamp) -> String {
    time.strftime("%Y-%m-%d").to_string()
}
