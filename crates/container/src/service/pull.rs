//! Image pulls for CRI: equal requests share one pull, and a pull without waiting clients is cancelled.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use cri::v1::AuthConfig;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::{Runtime, RuntimeError};
use crate::control::PullProgress;
use crate::images::{PullError, Puller};
use crate::registry::{Credentials, Progress, Registries, Timeouts};

/// Interval of progress log lines.
const REPORTS: Duration = Duration::from_secs(10);

/// Pulls in progress by image and credentials: no client gets an image with another's credentials.
#[derive(Debug, Default)]
pub(super) struct Pulls(Mutex<BTreeMap<PullKey, Weak<InFlightPull>>>);

/// Image and credentials of a request.
type PullKey = (String, Option<Credentials>);

type PullResult = Result<String, Arc<PullError>>;

/// A pull in progress, cancelled when the last waiting client drops it.
#[derive(Debug)]
pub(crate) struct InFlightPull {
    outcome: watch::Receiver<Option<PullResult>>,
    progress: Arc<Progress>,
    task: AbortHandle,
}

impl Drop for InFlightPull {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl InFlightPull {
    pub(crate) fn report(&self) -> PullProgress {
        let progress = &self.progress;
        PullProgress {
            done: progress.done.load(Relaxed),
            total: progress.total.load(Relaxed),
            layers_done: progress.layers_done.load(Relaxed),
            layers: progress.layers.load(Relaxed),
            image_id: String::new(),
        }
    }

    /// Waits for the result: the image's id.
    pub(crate) async fn end(&self, name: &str) -> Result<String, RuntimeError> {
        let mut outcome = self.outcome.clone();
        let ended = outcome.wait_for(Option::is_some).await.ok().and_then(|ended| ended.clone());
        let ended = ended.unwrap_or_else(|| Err(Arc::new(PullError::Interrupted)));
        ended.map_err(|error| RuntimeError::Pull { name: name.to_owned(), error })
    }
}

impl Runtime {
    /// Pulls an image as the registry has it now, and returns its id.
    pub(super) async fn pull(
        self: &Arc<Self>,
        name: &str,
        auth: Option<AuthConfig>,
    ) -> Result<String, RuntimeError> {
        let flight = self.begin_pull(name, auth)?;
        flight.end(name).await
    }

    /// Starts a pull, or joins one in progress.
    pub(crate) fn begin_pull(
        self: &Arc<Self>,
        name: &str,
        auth: Option<AuthConfig>,
    ) -> Result<Arc<InFlightPull>, RuntimeError> {
        let credentials = auth.and_then(|auth| credentials(name, auth));
        let mut pulls = self.pulls.0.lock();
        pulls.retain(|_, flight| flight.strong_count() > 0);
        let key = (name.to_owned(), credentials.clone());
        if let Some(flight) = pulls.get(&key).and_then(Weak::upgrade)
            && flight.outcome.borrow().is_none()
        {
            return Ok(flight);
        }
        let registries = Registries::read(&self.config.registries)
            .map_err(|error| RuntimeError::Invalid(error.to_string()))?;
        let progress = Arc::new(Progress::default());
        let puller = Puller {
            store: Arc::clone(&self.images),
            registries,
            credentials,
            timeouts: Timeouts::default(),
            progress: Arc::clone(&progress),
        };
        let (sender, outcome) = watch::channel(None);
        let image = name.to_owned();
        let task = self.tasks.spawn(async move {
            let ended = observed(&puller, &image).await;
            sender.send_replace(Some(ended.map_err(Arc::new)));
        });
        let flight = Arc::new(InFlightPull { outcome, progress, task: task.abort_handle() });
        pulls.insert(key, Arc::downgrade(&flight));
        Ok(flight)
    }
}

/// Pulls an image and logs progress.
async fn observed(puller: &Puller, image: &str) -> Result<String, PullError> {
    let begun = Instant::now();
    let pulling = puller.pull(image);
    tokio::pin!(pulling);
    let mut reports = tokio::time::interval_at(tokio::time::Instant::now() + REPORTS, REPORTS);
    let progress = &puller.progress;
    let outcome = loop {
        tokio::select! {
            outcome = &mut pulling => break outcome,
            _ = reports.tick() => tracing::info!(
                image,
                done = progress.done.load(Relaxed),
                total = progress.total.load(Relaxed),
                layers_done = progress.layers_done.load(Relaxed),
                layers = progress.layers.load(Relaxed),
                "pulling image"
            ),
        }
    };
    match &outcome {
        Ok(id) => {
            tracing::info!(image, id, bytes = progress.done.load(Relaxed), took = ?begun.elapsed(), "pulled image")
        }
        Err(error) => tracing::warn!(image, %error, "failed to pull image"),
    }
    outcome
}

/// Credentials of a CRI request; `None` if they are for another registry.
fn credentials(image: &str, auth: AuthConfig) -> Option<Credentials> {
    if !auth.server_address.is_empty() {
        let meant = auth.server_address.trim_start_matches("https://").trim_start_matches("http://");
        let meant = meant.split('/').next().unwrap_or_default();
        let reference = crate::images::Reference::parse(image).ok()?;
        let hub = ["docker.io", "index.docker.io", "registry-1.docker.io"];
        if meant != reference.registry
            && !(hub.contains(&meant) && hub.contains(&reference.registry.as_str()))
        {
            return None;
        }
    }
    let found = Credentials {
        username: auth.username,
        password: auth.password,
        auth: auth.auth,
        identity_token: auth.identity_token,
        registry_token: auth.registry_token,
    };
    (found != Credentials::default()).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_of_other_registry_are_ignored() {
        let auth = |server: &str| AuthConfig {
            username: "me".into(),
            server_address: server.into(),
            ..AuthConfig::default()
        };
        assert!(credentials("r.example/a", auth("")).is_some());
        assert!(credentials("r.example/a", auth("https://r.example/v2/")).is_some());
        assert!(credentials("r.example/a", auth("other.example")).is_none());
        assert!(credentials("busybox", auth("https://index.docker.io/v1/")).is_some());
        assert!(credentials("busybox", AuthConfig::default()).is_none());
    }
}
