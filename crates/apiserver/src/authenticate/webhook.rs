//! Webhook: another server says whom a token stands for, by TokenReview.

use super::{Authenticated, Refusal};
use crate::outbound::{CallError, Client};
use crate::user::UserInfo;
use crate::webhook_cache::{Hash, WebhookCache, hash};
use machinery::Value;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// How long the other server may take, and how often it is asked if it cannot answer.
const LIMIT: Duration = Duration::from_secs(30);
const ATTEMPTS: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(500);

#[derive(Clone, Debug)]
pub struct WebhookTokenConfig {
    /// How to reach the other server.
    pub kubeconfig: PathBuf,
    /// How long its answers count.
    pub cache: Duration,
    /// Version of TokenReview: `v1` or `v1beta1`.
    pub version: String,
}

pub struct WebhookTokens {
    client: Client,
    version: String,
    answers: WebhookCache<Option<Known>>,
    cache: Duration,
}

/// What the other server knows of a token.
#[derive(Clone)]
struct Known {
    user: UserInfo,
    audiences: Vec<String>,
}

impl WebhookTokens {
    pub fn new(client: Client, config: &WebhookTokenConfig) -> Self {
        Self {
            client,
            version: config.version.clone(),
            answers: WebhookCache::default(),
            cache: config.cache,
        }
    }

    /// The bearer of a token; `None`: the other server does not know it. `own` are this server's audiences.
    pub async fn authenticate(
        &self,
        token: &str,
        audiences: Option<&[String]>,
        own: &[String],
    ) -> Result<Option<Authenticated>, Refusal> {
        let wanted = audiences.unwrap_or(own);
        let key: Hash = hash(&(token, wanted));
        let known = match self.answers.get(&key) {
            Some(known) => known,
            None => {
                let known = self.ask(token, wanted).await?;
                self.answers.put(key, known.clone(), self.cache);
                known
            }
        };
        let Some(Known { user, audiences: given }) = known else { return Ok(None) };
        // One that says nothing of audiences means this server.
        let given = if given.is_empty() { own.to_vec() } else { given };
        let common: Vec<String> = given.into_iter().filter(|audience| wanted.contains(audience)).collect();
        if common.is_empty() && !wanted.is_empty() {
            return Ok(None);
        }
        Ok(Some(Authenticated { user, audiences: common }))
    }

    async fn ask(&self, token: &str, audiences: &[String]) -> Result<Option<Known>, Refusal> {
        let review = json!({
            "apiVersion": format!("authentication.k8s.io/{}", self.version), "kind": "TokenReview",
            "metadata": {}, "spec": {"token": token, "audiences": audiences},
        });
        let mut pause = FIRST_PAUSE;
        let mut attempt = 1;
        let answer = loop {
            match self.client.post(&review, LIMIT).await {
                Ok(answer) => break answer,
                Err(error) if error.is_transient() && attempt < ATTEMPTS => {
                    tracing::debug!(error = error.chain(), "token webhook");
                    tokio::time::sleep(pause).await;
                    pause = pause * 3 / 2;
                    attempt += 1;
                }
                Err(error) => return Err(failed(&error)),
            }
        };
        let status = &answer["status"];
        if status["authenticated"] != true {
            return match status["error"].as_str().filter(|why| !why.is_empty()) {
                Some(why) => Err(Refusal(why.to_owned())),
                None => Ok(None),
            };
        }
        Ok(Some(Known { user: user(&status["user"]), audiences: texts(&status["audiences"]) }))
    }
}

fn failed(error: &CallError) -> Refusal {
    tracing::warn!(error = error.chain(), "token webhook");
    Refusal(error.chain())
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn user(value: &Value) -> UserInfo {
    let text = |field: &str| value[field].as_str().unwrap_or("").to_owned();
    let extra: BTreeMap<String, Vec<String>> = value["extra"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, values)| (key.clone(), texts(values)))
        .collect();
    UserInfo { name: text("username"), uid: text("uid"), groups: texts(&value["groups"]), extra }
}
