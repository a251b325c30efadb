//! Named health checks behind `/livez`, `/readyz` and `/healthz`.
//!
//! Components register checks while the server is built; results are listed in the order of registration.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

/// The health endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    Healthz,
    Livez,
    Readyz,
}

/// The probes a check belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probes {
    pub healthz: bool,
    pub livez: bool,
    pub readyz: bool,
}

impl Probes {
    pub const ALL: Self = Self { healthz: true, livez: true, readyz: true };
    pub const READYZ: Self = Self { healthz: false, livez: false, readyz: true };

    fn include(self, probe: Probe) -> bool {
        match probe {
            Probe::Healthz => self.healthz,
            Probe::Livez => self.livez,
            Probe::Readyz => self.readyz,
        }
    }
}

type Answer = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

struct HealthCheck {
    name: String,
    probes: Probes,
    /// Listed only while it fails: Kubernetes has no such check, and clients compare the list.
    extra: bool,
    run: Box<dyn Fn() -> Answer + Send + Sync>,
    last: Mutex<LastOutcome>,
}

/// Result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckOutcome {
    pub name: String,
    pub result: Result<(), String>,
}

/// The registered checks. Clones share them.
///
/// ```
/// use base::readiness::{Probe, Probes, Readiness};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let readiness = Readiness::new();
/// let gate = readiness.gate("caches", Probes::READYZ);
/// assert!(readiness.run(Probe::Readyz, |_| false).await[0].result.is_err());
/// gate.open();
/// assert!(readiness.run(Probe::Readyz, |_| false).await[0].result.is_ok());
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Readiness {
    checks: Arc<RwLock<Vec<Arc<HealthCheck>>>>,
}

impl std::fmt::Debug for Readiness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.checks.read().iter().map(|check| &check.name)).finish()
    }
}

impl Readiness {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a synchronous check.
    pub fn register<F>(&self, name: impl Into<String>, probes: Probes, check: F)
    where
        F: Fn() -> Result<(), String> + Send + Sync + 'static,
    {
        self.register_async(name, probes, move || std::future::ready(check()));
    }

    /// Adds a check that Kubernetes does not have. It is listed only while it fails; its own path always works.
    pub fn register_extra<F>(&self, name: impl Into<String>, probes: Probes, check: F)
    where
        F: Fn() -> Result<(), String> + Send + Sync + 'static,
    {
        let run = Box::new(move || Box::pin(std::future::ready(check())) as Answer);
        self.add(HealthCheck { name: name.into(), probes, extra: true, run, last: Mutex::default() });
    }

    /// Adds an asynchronous check.
    pub fn register_async<F, A>(&self, name: impl Into<String>, probes: Probes, check: F)
    where
        F: Fn() -> A + Send + Sync + 'static,
        A: Future<Output = Result<(), String>> + Send + 'static,
    {
        let run = Box::new(move || Box::pin(check()) as Answer);
        self.add(HealthCheck { name: name.into(), probes, extra: false, run, last: Mutex::default() });
    }

    fn add(&self, check: HealthCheck) {
        self.checks.write().push(Arc::new(check));
    }

    /// Adds a check that fails until the returned gate is opened.
    pub fn gate(&self, name: impl Into<String>, probes: Probes) -> Gate {
        let gate = Gate { closed: Arc::new(Mutex::new(Some("not finished".to_owned()))) };
        let closed = Arc::clone(&gate.closed);
        self.register(name, probes, move || closed.lock().clone().map_or(Ok(()), Err));
        gate
    }

    /// The names of a probe's checks, in order.
    #[must_use]
    pub fn names(&self, probe: Probe) -> Vec<String> {
        self.of(probe).iter().map(|check| check.name.clone()).collect()
    }

    /// Runs a probe's checks, one after the other, except the `excluded` ones.
    pub async fn run(&self, probe: Probe, excluded: impl Fn(&str) -> bool) -> Vec<CheckOutcome> {
        let mut outcomes = Vec::new();
        for check in self.of(probe) {
            if excluded(&check.name) {
                continue;
            }
            let outcome = check.outcome().await;
            if !check.extra || outcome.result.is_err() {
                outcomes.push(outcome);
            }
        }
        outcomes
    }

    /// Runs one check; an error if the probe has none of that name.
    pub async fn run_one(&self, probe: Probe, name: &str) -> Option<CheckOutcome> {
        let check = self.of(probe).into_iter().find(|check| check.name == name)?;
        Some(check.outcome().await)
    }

    fn of(&self, probe: Probe) -> Vec<Arc<HealthCheck>> {
        self.checks.read().iter().filter(|check| check.probes.include(probe)).cloned().collect()
    }
}

/// Outcome of the last run of a check.
#[derive(Debug, Default)]
struct LastOutcome {
    error: Option<String>,
    has_passed: bool,
}

impl HealthCheck {
    /// Runs the check; changes of the result are logged once.
    async fn outcome(&self) -> CheckOutcome {
        let result = (self.run)().await;
        let mut last = self.last.lock();
        match (&result, last.error.as_deref()) {
            (Err(error), was) if was != Some(error) => {
                if last.has_passed {
                    tracing::warn!(check = self.name, error, "health check failed");
                } else {
                    // Usual while the process starts.
                    tracing::debug!(check = self.name, error, "health check does not pass yet");
                }
                last.error = Some(error.clone());
            }
            (Ok(()), Some(_)) => {
                if last.has_passed {
                    tracing::info!(check = self.name, "health check passes again");
                }
                *last = LastOutcome { error: None, has_passed: true };
            }
            (Ok(()), None) => last.has_passed = true,
            _ => {}
        }
        CheckOutcome { name: self.name.clone(), result }
    }
}

/// Controls a check created by [`Readiness::gate`].
#[derive(Clone, Debug)]
pub struct Gate {
    closed: Arc<Mutex<Option<String>>>,
}

impl Gate {
    /// The check passes from now on.
    pub fn open(&self) {
        *self.closed.lock() = None;
    }

    /// The check fails from now on, for this reason.
    pub fn close(&self, reason: impl Into<String>) {
        *self.closed.lock() = Some(reason.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn extra_check_is_listed_only_while_it_fails() {
        let readiness = Readiness::new();
        let gate = Gate { closed: Arc::default() };
        let closed = Arc::clone(&gate.closed);
        readiness.register("ping", Probes::ALL, || Ok(()));
        readiness.register_extra("store", Probes::ALL, move || closed.lock().clone().map_or(Ok(()), Err));
        let listed = async || readiness.run(Probe::Livez, |_| false).await.len();
        assert_eq!(listed().await, 1);
        assert!(readiness.run_one(Probe::Livez, "store").await.is_some_and(|outcome| outcome.result.is_ok()));
        gate.close("full");
        assert_eq!(listed().await, 2);
    }

    #[tokio::test]
    async fn checks_are_listed_in_order_and_by_probe() {
        let readiness = Readiness::new();
        readiness.register("ping", Probes::ALL, || Ok(()));
        let gate = readiness.gate("poststarthook/bootstrap", Probes::READYZ);
        readiness.register_async("store", Probes::ALL, || async { Err("no quorum".to_owned()) });

        let ok = |name: &str| CheckOutcome { name: name.to_owned(), result: Ok(()) };
        let bad = |name: &str, why: &str| CheckOutcome { name: name.to_owned(), result: Err(why.to_owned()) };
        assert_eq!(readiness.run(Probe::Livez, |_| false).await, [ok("ping"), bad("store", "no quorum")]);
        assert_eq!(
            readiness.run(Probe::Readyz, |name| name == "store").await,
            [ok("ping"), bad("poststarthook/bootstrap", "not finished")]
        );
        gate.open();
        let one = readiness.run_one(Probe::Readyz, "poststarthook/bootstrap").await;
        assert_eq!(one, Some(ok("poststarthook/bootstrap")));
        gate.close("draining");
        let one = readiness.run_one(Probe::Readyz, "poststarthook/bootstrap").await;
        assert_eq!(one, Some(bad("poststarthook/bootstrap", "draining")));
        assert_eq!(readiness.run_one(Probe::Livez, "nope").await, None);
        assert_eq!(readiness.names(Probe::Livez), ["ping", "store"]);
    }
}
