//! Image presence and pulls, with Kubernetes' reasons and messages.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use cri::v1::PodSandboxConfig;
use objects::core::v1::{Pod, Secret};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::{image_name, registry_auth, spans};
use crate::engine::{PresentImage, with_default_tag};
use crate::events::Kind;
use crate::lifecycle::Backoff;
use crate::lifecycle::status::Waiting;
use crate::shared::Shared;

/// Maximum number of parallel pulls.
const PARALLEL: usize = 4;
/// Delay after which a failed pull is reported as `ImagePullBackOff`; shorter than the first backoff.
const BACKOFF_REPORT_DELAY: Duration = Duration::from_secs(5);

/// Image pulls of this node: concurrency limit and backoff.
pub struct Pulls {
    slots: Semaphore,
    backoff: Mutex<Backoff>,
    failures: Mutex<HashMap<String, String>>,
}

impl Default for Pulls {
    fn default() -> Self {
        Self {
            slots: Semaphore::new(PARALLEL),
            backoff: Mutex::new(Backoff::default()),
            failures: Mutex::new(HashMap::new()),
        }
    }
}

/// Failure to provide an image.
#[derive(Clone, Debug)]
pub struct NoImage {
    pub waiting: Waiting,
    pub retry_at: Option<jiff::Timestamp>,
}

fn no(reason: &str, message: String) -> NoImage {
    NoImage { waiting: Waiting { reason: reason.to_owned(), message }, retry_at: None }
}

/// Image of a container or volume, pulled according to its policy.
pub async fn ensure(
    shared: &Shared,
    pod: &Pod,
    container: &str,
    image: &str,
    policy: &str,
    sandbox: &PodSandboxConfig,
) -> Result<PresentImage, NoImage> {
    let tagged = with_default_tag(image);
    let record =
        |kind, reason, message: String| shared.recorder.container(pod, container, kind, reason, message);
    if let Err(error) = image_name::check(image) {
        let message = format!(
            "Failed to apply default image tag {image:?}: couldn't parse image name {image:?}: {error}"
        );
        record(Kind::Warning, "InspectFailed", message.clone());
        return Err(no("InvalidImageName", message));
    }
    if policy != "Always" {
        match shared.engine.image(&tagged).await {
            Ok(Some(found)) => {
                let message = format!(
                    "Container image {image:?} already present on machine and can be accessed by the pod"
                );
                record(Kind::Normal, "Pulled", message);
                shared.metrics.pods.image_ensured(policy, Some(true), Some(false));
                return Ok(found);
            }
            Ok(None) => {}
            Err(error) => {
                shared.metrics.pods.image_ensured(policy, None, None);
                let message = format!("Failed to inspect image {image:?}: {error}");
                record(Kind::Warning, "InspectFailed", message.clone());
                return Err(no("ImageInspectError", message));
            }
        }
        if policy == "Never" {
            shared.metrics.pods.image_ensured(policy, Some(false), Some(false));
            let message = format!("Container image {image:?} is not present with pull policy of Never");
            record(Kind::Warning, "ErrImageNeverPull", message.clone());
            return Err(no("ErrImageNeverPull", message));
        }
    }
    let present = if policy == "Always" { None } else { Some(false) };
    shared.metrics.pods.image_ensured(policy, present, Some(true));
    pull(shared, pod, container, image, &tagged, sandbox).await
}

async fn pull(
    shared: &Shared,
    pod: &Pod,
    container: &str,
    image: &str,
    tagged: &str,
    sandbox: &PodSandboxConfig,
) -> Result<PresentImage, NoImage> {
    let record =
        |kind, reason, message: String| shared.recorder.container(pod, container, kind, reason, message);
    let key = format!("{}_{tagged}", pod.metadata.uid.as_deref().unwrap_or(""));
    let now = shared.clock.now();
    if let Some(until) = shared.pulls.waits_until(&key, now) {
        let message = format!("Back-off pulling image {image:?}");
        record(Kind::Normal, "BackOff", message.clone());
        let message = match shared.pulls.failures.lock().get(&key) {
            Some(before) => format!("{message}: ErrImagePull: {before}"),
            None => message,
        };
        return Err(NoImage { retry_at: Some(until), ..no("ImagePullBackOff", message) });
    }
    record(Kind::Normal, "Pulling", format!("Pulling image {image:?}"));
    let started = Instant::now();
    let _slot = shared.pulls.slots.acquire().await;
    let begun = Instant::now();
    let secrets = pull_secrets(shared, pod).await;
    let mut credentials: Vec<_> = registry_auth::for_image(tagged, &secrets).into_iter().map(Some).collect();
    credentials.push(None);
    let mut outcome = Err(String::new());
    for auth in credentials {
        let mut span = spans::call_of_container(spans::PULL_IMAGE, container);
        span.record(|attributes| attributes.set_text("k8s.image", tagged));
        outcome = shared.engine.pull(tagged, auth, sandbox.clone()).await.map_err(|error| error.to_string());
        spans::end(span, &outcome);
        if outcome.is_ok() {
            break;
        }
    }
    let found = match &outcome {
        Ok(reference) => match shared.engine.image(reference).await {
            Ok(Some(found)) => Ok(found),
            // Some runtimes report the image by name only.
            _ => match shared.engine.image(tagged).await {
                Ok(Some(found)) => Ok(found),
                Ok(None) => Err("image not found after pull".to_owned()),
                Err(error) => Err(error.to_string()),
            },
        },
        Err(error) => Err(error.clone()),
    };
    match found {
        Ok(found) => {
            let text = format!(
                "Successfully pulled image {image:?} in {} ({} including waiting). Image size: {} bytes.",
                rounded(begun.elapsed()),
                rounded(started.elapsed()),
                found.size
            );
            record(Kind::Normal, "Pulled", text);
            shared.metrics.image_pulled(found.size, begun.elapsed());
            shared.pulls.backoff.lock().forget(&key);
            shared.pulls.failures.lock().remove(&key);
            Ok(found)
        }
        Err(error) => {
            record(Kind::Warning, "Failed", format!("Failed to pull image {image:?}: {error}"));
            let retry_at = shared.pulls.failed(&key, &error, shared.clock.now());
            Err(NoImage { retry_at: Some(retry_at), ..no("ErrImagePull", error) })
        }
    }
}

async fn pull_secrets(shared: &Shared, pod: &Pod) -> Vec<Secret> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
    let references =
        pod.spec.as_ref().and_then(|spec| spec.image_pull_secrets.as_deref()).unwrap_or_default();
    let mut secrets = Vec::new();
    for reference in references {
        match shared.find::<Secret>(namespace, &reference.name).await {
            Ok(Some(secret)) => secrets.push(secret),
            Ok(None) => {
                let text = format!(
                    "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
                    reference.name
                );
                shared.recorder.pod(pod, Kind::Warning, "FailedToRetrieveImagePullSecret", text);
            }
            Err(error) => tracing::warn!(%error, secret = reference.name, "failed to read image pull secret"),
        }
    }
    secrets
}

/// Formats a duration as Kubernetes does, in milliseconds.
fn rounded(duration: Duration) -> String {
    let milliseconds = duration.as_millis();
    if milliseconds < 1000 { format!("{milliseconds}ms") } else { format!("{:.3}s", duration.as_secs_f64()) }
}

impl Pulls {
    fn waits_until(&self, key: &str, now: jiff::Timestamp) -> Option<jiff::Timestamp> {
        self.backoff.lock().until_since_update(key, now)
    }

    /// Starts the backoff of a failed pull. Returns the time of the next sync of the pod, which is within the backoff,
    /// so that the pod's status becomes `ImagePullBackOff`.
    fn failed(&self, key: &str, error: &str, now: jiff::Timestamp) -> jiff::Timestamp {
        let mut backoff = self.backoff.lock();
        backoff.prune(now);
        backoff.step(key, now, now);
        let mut failures = self.failures.lock();
        if failures.len() > 1000 {
            failures.clear();
        }
        failures.insert(key.to_owned(), error.to_owned());
        let report = now.saturating_add(BACKOFF_REPORT_DELAY).unwrap_or(now);
        backoff.until_since_update(key, now).unwrap_or(now).min(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_is_synced_within_the_backoff_of_a_failed_pull() {
        let pulls = Pulls::default();
        let mut now = jiff::Timestamp::UNIX_EPOCH;
        for _ in 0..20 {
            let retry_at = pulls.failed("uid_image", "not found", now);
            let until = pulls.waits_until("uid_image", retry_at).expect("the pull is backed off");
            assert!(now < retry_at && retry_at < until, "{now} {retry_at} {until}");
            assert_eq!(pulls.waits_until("uid_image", until), None, "the next pull");
            now = until;
        }
    }
}
