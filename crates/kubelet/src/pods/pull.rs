//! Images: present, pulled, or the reason why not, in Kubernetes' words.

use std::collections::HashMap;
use std::time::Instant;

use cri::v1::PodSandboxConfig;
use objects::core::v1::{Pod, Secret};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::registry_auth;
use crate::engine::{PresentImage, with_default_tag};
use crate::events::Kind;
use crate::lifecycle::Backoff;
use crate::lifecycle::status::Waiting;
use crate::shared::Shared;

/// Pulls at the same time.
const PARALLEL: usize = 4;

/// Pulls of this node: how many at once, and which have to wait.
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

/// An image that is not to be had now.
#[derive(Clone, Debug)]
pub struct NoImage {
    pub waiting: Waiting,
    pub retry_at: Option<jiff::Timestamp>,
}

fn no(reason: &str, message: String) -> NoImage {
    NoImage { waiting: Waiting { reason: reason.to_owned(), message }, retry_at: None }
}

/// The image of a container or volume, pulled if its policy says so.
pub async fn ensure(
    shared: &Shared,
    pod: &Pod,
    container: &str,
    image: &str,
    policy: &str,
    sandbox: &PodSandboxConfig,
) -> Result<PresentImage, NoImage> {
    let tagged = with_default_tag(image);
    let tell =
        |kind, reason, message: String| shared.recorder.container(pod, container, kind, reason, message);
    if tagged.chars().any(|c| c.is_ascii_uppercase() || c.is_whitespace()) && is_malformed(&tagged) {
        let message = format!(
            "Failed to apply default image tag {image:?}: couldn't parse image name {image:?}: invalid reference format"
        );
        tell(Kind::Warning, "InspectFailed", message.clone());
        return Err(no("InvalidImageName", message));
    }
    if policy != "Always" {
        match shared.engine.image(&tagged).await {
            Ok(Some(found)) => {
                let message = format!(
                    "Container image {image:?} already present on machine and can be accessed by the pod"
                );
                tell(Kind::Normal, "Pulled", message);
                return Ok(found);
            }
            Ok(None) => {}
            Err(error) => {
                let message = format!("Failed to inspect image {image:?}: {error}");
                tell(Kind::Warning, "InspectFailed", message.clone());
                return Err(no("ImageInspectError", message));
            }
        }
        if policy == "Never" {
            let message = format!("Container image {image:?} is not present with pull policy of Never");
            tell(Kind::Warning, "ErrImageNeverPull", message.clone());
            return Err(no("ErrImageNeverPull", message));
        }
    }
    pull(shared, pod, container, image, &tagged, sandbox).await
}

/// Repositories are lower case; tags are not.
fn is_malformed(image: &str) -> bool {
    let repository = image.split('@').next().unwrap_or(image);
    let repository = match repository.rfind(':') {
        Some(at) if !repository[at..].contains('/') => &repository[..at],
        _ => repository,
    };
    let path = repository.split_once('/').map_or(repository, |(first, rest)| {
        if first.contains('.') || first.contains(':') { rest } else { repository }
    });
    image.chars().any(char::is_whitespace) || path.chars().any(|c| c.is_ascii_uppercase())
}

async fn pull(
    shared: &Shared,
    pod: &Pod,
    container: &str,
    image: &str,
    tagged: &str,
    sandbox: &PodSandboxConfig,
) -> Result<PresentImage, NoImage> {
    let tell =
        |kind, reason, message: String| shared.recorder.container(pod, container, kind, reason, message);
    let key = format!("{}_{tagged}", pod.metadata.uid.as_deref().unwrap_or(""));
    let now = shared.clock.now();
    if let Some(until) = shared.pulls.waits_until(&key, now) {
        let message = format!("Back-off pulling image {image:?}");
        tell(Kind::Normal, "BackOff", message.clone());
        let message = match shared.pulls.failures.lock().get(&key) {
            Some(before) => format!("{message}: ErrImagePull: {before}"),
            None => message,
        };
        return Err(NoImage { retry_at: Some(until), ..no("ImagePullBackOff", message) });
    }
    tell(Kind::Normal, "Pulling", format!("Pulling image {image:?}"));
    let asked = Instant::now();
    let _slot = shared.pulls.slots.acquire().await;
    let begun = Instant::now();
    let secrets = pull_secrets(shared, pod).await;
    let mut credentials: Vec<_> = registry_auth::for_image(tagged, &secrets).into_iter().map(Some).collect();
    credentials.push(None);
    let mut outcome = Err(String::new());
    for auth in credentials {
        outcome = shared.engine.pull(tagged, auth, sandbox.clone()).await.map_err(|error| error.to_string());
        if outcome.is_ok() {
            break;
        }
    }
    let found = match &outcome {
        Ok(reference) => match shared.engine.image(reference).await {
            Ok(Some(found)) => Ok(found),
            // Some runtimes know the image by its name only.
            _ => match shared.engine.image(tagged).await {
                Ok(Some(found)) => Ok(found),
                Ok(None) => Err("the image is gone after it was pulled".to_owned()),
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
                rounded(asked.elapsed()),
                found.size
            );
            tell(Kind::Normal, "Pulled", text);
            shared.pulls.backoff.lock().forget(&key);
            shared.pulls.failures.lock().remove(&key);
            Ok(found)
        }
        Err(error) => {
            tell(Kind::Warning, "Failed", format!("Failed to pull image {image:?}: {error}"));
            let now = shared.clock.now();
            let until = shared.pulls.failed(&key, &error, now);
            Err(NoImage { retry_at: Some(until), ..no("ErrImagePull", error) })
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
            Err(error) => tracing::warn!(%error, secret = reference.name, "no pull secret"),
        }
    }
    secrets
}

/// A duration as Kubernetes shows it, in milliseconds.
fn rounded(duration: std::time::Duration) -> String {
    let milliseconds = duration.as_millis();
    if milliseconds < 1000 { format!("{milliseconds}ms") } else { format!("{:.3}s", duration.as_secs_f64()) }
}

impl Pulls {
    fn waits_until(&self, key: &str, now: jiff::Timestamp) -> Option<jiff::Timestamp> {
        self.backoff.lock().until_since_update(key, now)
    }

    fn failed(&self, key: &str, error: &str, now: jiff::Timestamp) -> jiff::Timestamp {
        let mut backoff = self.backoff.lock();
        backoff.prune(now);
        backoff.step(key, now, now);
        let mut failures = self.failures.lock();
        if failures.len() > 1000 {
            failures.clear();
        }
        failures.insert(key.to_owned(), error.to_owned());
        backoff.until_since_update(key, now).unwrap_or(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_names() {
        for (image, want) in [
            ("busybox:1.36", false),
            ("busybox:Latest", false),
            ("Busybox", true),
            ("Reg.example.com/a:B", false),
            ("a b", true),
        ] {
            assert_eq!(is_malformed(image), want, "{image}");
        }
    }
}
