//! Webhook: a remote server authenticates tokens, by TokenReview.

use super::{Authenticated, Refusal};
use crate::metrics;
use crate::outbound::{CallError, Client};
use crate::user::UserInfo;
use crate::webhook_cache::{Hash, WebhookCache, hash};
use base::backoff::Backoff;
use base::metrics::IntGauge;
use machinery::Value;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Time limit and number of attempts of a review.
const LIMIT: Duration = Duration::from_secs(30);
const ATTEMPTS: u32 = 5;
const RETRY: Backoff = Backoff::new(Duration::from_millis(500), Duration::MAX).growing_by(3, 2);

#[derive(Clone, Debug)]
pub struct WebhookTokenConfig {
    /// Connection to the remote server.
    pub kubeconfig: PathBuf,
    /// Cache duration of its decisions.
    pub cache: Duration,
    /// Version of TokenReview: `v1` or `v1beta1`.
    pub version: String,
}

pub struct WebhookTokens {
    client: Client,
    version: String,
    answers: WebhookCache<Option<CachedReview>>,
    cache: Duration,
}

/// A review in progress; it ends on drop.
struct InProgress(IntGauge);

impl InProgress {
    fn new(gauge: IntGauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Cached review of a token.
#[derive(Clone)]
struct CachedReview {
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

    /// The user of a token; `None` if the remote server does not recognize it. `own` are this server's audiences.
    pub async fn authenticate(
        &self,
        token: &str,
        audiences: Option<&[String]>,
        own: &[String],
    ) -> Result<Option<Authenticated>, Refusal> {
        let wanted = audiences.unwrap_or(own);
        let key: Hash = hash(&(token, wanted));
        let begin = Instant::now();
        let record = |fetched| {
            if let Some(metrics) = metrics::process() {
                metrics.token_looked_up(fetched, begin);
            }
        };
        let known = match self.answers.get(&key) {
            Some(known) => {
                record(None);
                known
            }
            None => {
                let active =
                    metrics::process().map(|metrics| metrics.token_active.with_label_values(&["in_flight"]));
                let _active = active.map(InProgress::new);
                let known = self.send_review(token, wanted).await;
                record(Some(known.is_ok()));
                let known = known?;
                self.answers.put(key, known.clone(), self.cache);
                known
            }
        };
        let Some(CachedReview { user, audiences: accepted }) = known else { return Ok(None) };
        // A response without audiences means this server.
        let accepted = if accepted.is_empty() { own.to_vec() } else { accepted };
        let common: Vec<String> = accepted.into_iter().filter(|audience| wanted.contains(audience)).collect();
        if common.is_empty() && !wanted.is_empty() {
            return Ok(None);
        }
        Ok(Some(Authenticated { user, audiences: common }))
    }

    async fn send_review(&self, token: &str, audiences: &[String]) -> Result<Option<CachedReview>, Refusal> {
        let review = json!({
            "apiVersion": format!("authentication.k8s.io/{}", self.version), "kind": "TokenReview",
            "metadata": {}, "spec": {"token": token, "audiences": audiences},
        });
        let mut retry = RETRY;
        let mut attempt = 1;
        let answer = loop {
            match self.client.post(&review, LIMIT).await {
                Ok(answer) => break answer,
                Err(error) if error.is_transient() && attempt < ATTEMPTS => {
                    tracing::debug!(error = error.chain(), "token webhook failed, retrying");
                    retry.wait().await;
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
        Ok(Some(CachedReview { user: user(&status["user"]), audiences: texts(&status["audiences"]) }))
    }
}

fn failed(error: &CallError) -> Refusal {
    tracing::warn!(error = error.chain(), "token webhook failed");
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
