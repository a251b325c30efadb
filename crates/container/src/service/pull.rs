//! Pulling images for those who ask: who asks for the same gets the same, and a pull that nobody waits for ends.

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
use crate::registry::{Credentials, Patience, Progress, Registries};

/// How often a long pull says in the log how far it is.
const REPORTS: Duration = Duration::from_secs(10);

/// Pulls under way, by what is pulled and for whom: one who may not have an image does not get it with another's right.
#[derive(Debug, Default)]
pub(super) struct Pulls(Mutex<BTreeMap<Wish, Weak<Flight>>>);

/// An image, and who asks for it.
type Wish = (String, Option<Credentials>);

type Outcome = Result<String, Arc<PullError>>;

/// A pull under way, for as long as somebody waits for it.
#[derive(Debug)]
pub(crate) struct Flight {
    outcome: watch::Receiver<Option<Outcome>>,
    progress: Arc<Progress>,
    task: AbortHandle,
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Flight {
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

    /// Waits for the end; the answer is the image's id.
    pub(crate) async fn end(&self, name: &str) -> Result<String, RuntimeError> {
        let mut outcome = self.outcome.clone();
        let ended = outcome.wait_for(Option::is_some).await.ok().and_then(|ended| ended.clone());
        let ended = ended.unwrap_or_else(|| Err(Arc::new(PullError::Interrupted)));
        ended.map_err(|error| RuntimeError::Pull { name: name.to_owned(), error })
    }
}

impl Runtime {
    /// Makes sure that an image is here, as the registry has it now; the answer is its id.
    pub(super) async fn pull(
        self: &Arc<Self>,
        name: &str,
        auth: Option<AuthConfig>,
    ) -> Result<String, RuntimeError> {
        let flight = self.begin_pull(name, auth)?;
        flight.end(name).await
    }

    /// Begins a pull, or joins one.
    pub(crate) fn begin_pull(
        self: &Arc<Self>,
        name: &str,
        auth: Option<AuthConfig>,
    ) -> Result<Arc<Flight>, RuntimeError> {
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
            patience: Patience::default(),
            progress: Arc::clone(&progress),
        };
        let (sender, outcome) = watch::channel(None);
        let image = name.to_owned();
        let task = self.tasks.spawn(async move {
            let ended = observed(&puller, &image).await;
            sender.send_replace(Some(ended.map_err(Arc::new)));
        });
        let flight = Arc::new(Flight { outcome, progress, task: task.abort_handle() });
        pulls.insert(key, Arc::downgrade(&flight));
        Ok(flight)
    }
}

/// Pulls, and tells the log how it goes.
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
                "still pulling"
            ),
        }
    };
    match &outcome {
        Ok(id) => {
            tracing::info!(image, id, bytes = progress.done.load(Relaxed), took = ?begun.elapsed(), "pulled")
        }
        Err(error) => tracing::warn!(image, %error, "not pulled"),
    }
    outcome
}

/// What CRI says of who asks; nothing, if it is meant for another registry.
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
    fn credentials_are_for_one_registry() {
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
