//! Leader election by Lease, as in Kubernetes' components: of several candidates, one is active.
//!
//! Expiry is measured from when this process saw the lease change, never by comparing the clocks of two machines.

use std::sync::Arc;
use std::time::Duration;

use base::clock::Clock;
use base::metrics::IntGauge;
use base::tasks::TaskGroup;
use client::{Client, ClientError};
use objects::coordination::v1::{Lease, LeaseSpec};
use objects::meta::v1::{MicroTime, ObjectMeta};
use parking_lot::Mutex;
use rand::Rng;
use tokio::time::Instant;

use crate::{LoopMetrics, Recorder};

/// Time past the end of the lease after which the health check of a leader fails.
const TOLERANCE: Duration = Duration::from_secs(20);

/// Time of the last renewal, while this process leads.
#[derive(Clone, Debug, Default)]
pub struct LastRenewal(Arc<Mutex<Option<Instant>>>);

/// Lease name, identity and timing. The times are Kubernetes' defaults.
#[derive(Clone, Debug)]
pub struct LeaderElection {
    pub namespace: String,
    pub name: String,
    /// Unique among the candidates.
    pub identity: String,
    /// Time after which other candidates may take a lease that is not renewed.
    pub lease_duration: Duration,
    /// Time for which the leader retries a renewal before it gives up.
    pub renew_deadline: Duration,
    pub retry_period: Duration,
    /// 1 while this process holds the lease.
    pub status: Option<IntGauge>,
    /// Shared by clones.
    pub last_renewal: LastRenewal,
}

impl LeaderElection {
    #[must_use]
    pub fn new(name: &str, identity: impl Into<String>) -> Self {
        Self {
            namespace: "kube-system".to_owned(),
            name: name.to_owned(),
            identity: identity.into(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
            status: None,
            last_renewal: LastRenewal::default(),
        }
    }

    /// The same election, whose status `metrics` has.
    #[must_use]
    pub fn with_metrics(self, metrics: &LoopMetrics) -> Self {
        Self { status: Some(metrics.leader(&self.name)), ..self }
    }

    /// Fails if this process leads and has not renewed its lease for much longer than the lease lasts: a task that
    /// hangs, which cannot give up the lease.
    pub fn check(&self) -> Result<(), String> {
        let renewed = *self.last_renewal.0.lock();
        match renewed.filter(|renewed| renewed.elapsed() > self.lease_duration.saturating_add(TOLERANCE)) {
            Some(_) => Err(format!("failed election to renew leadership on lease {}", self.name)),
            None => Ok(()),
        }
    }

    /// The lease, without its content.
    fn lease(&self) -> Lease {
        Lease {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                namespace: Some(self.namespace.clone()),
                ..ObjectMeta::default()
            },
            spec: None,
        }
    }

    fn set_status(&self, leads: bool) {
        *self.last_renewal.0.lock() = leads.then(Instant::now);
        if let Some(status) = &self.status {
            status.set(i64::from(leads));
        }
    }
}

/// Reason why leading ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leading {
    /// Stopped on request; the lease is released.
    Stopped,
    /// The lease was not renewed in time; another instance may hold it.
    Lost,
}

/// Waits for the lease, calls `start`, and renews the lease until `tasks` stops or the lease is lost. On loss, the
/// caller must immediately end what `start` began.
///
/// ```no_run
/// use runtime::{LeaderElection, Leading, lead};
///
/// # async fn run(client: client::Client, clock: base::clock::Clock, tasks: base::tasks::TaskGroup) {
/// let election = LeaderElection::new("example-controller", "host-1");
/// let ended = lead(&client, &election, &clock, &tasks, || println!("leading")).await;
/// if ended == Leading::Lost {
///     std::process::exit(1);
/// }
/// # }
/// ```
pub async fn lead(
    client: &Client,
    election: &LeaderElection,
    clock: &Clock,
    tasks: &TaskGroup,
    start: impl FnOnce(),
) -> Leading {
    election.set_status(false);
    let mut candidate = Candidate { client, election, clock, observed: None };
    loop {
        match candidate.acquire_or_renew().await {
            Ok(true) => break,
            Ok(false) => {}
            Err(error) => tracing::debug!(lease = election.name, %error, "failed to acquire the lease"),
        }
        let jitter = rand::rng().random_range(1.0..2.2);
        if tasks.until_stopped(tokio::time::sleep(election.retry_period.mul_f64(jitter))).await.is_none() {
            return Leading::Stopped;
        }
    }
    tracing::info!(lease = election.name, identity = election.identity, "acquired the leader lease");
    let recorder = Recorder::new(client.clone(), &election.name, clock.clone(), tasks);
    let record = |what: &str| {
        let note = format!("{} {what}", election.identity);
        recorder.normal(&election.lease(), "LeaderElection", note);
    };
    record("became leader");
    election.set_status(true);
    start();
    let outcome = renew(&mut candidate, tasks).await;
    election.set_status(false);
    if outcome == Leading::Lost {
        record("stopped leading");
    }
    outcome
}

/// Renews the lease until `tasks` stops or the lease is lost.
async fn renew(candidate: &mut Candidate<'_>, tasks: &TaskGroup) -> Leading {
    let election = candidate.election;
    let mut renewed = Instant::now();
    loop {
        tokio::select! {
            () = tasks.stopping() => {
                candidate.release().await;
                return Leading::Stopped;
            }
            () = tokio::time::sleep(election.retry_period) => {}
        }
        let left = election.renew_deadline.saturating_sub(renewed.elapsed());
        match tokio::time::timeout(left, candidate.acquire_or_renew()).await {
            Ok(Ok(true)) => {
                renewed = Instant::now();
                election.set_status(true);
            }
            Ok(Ok(false)) => {
                tracing::error!(lease = election.name, "another instance holds the leader lease");
                return Leading::Lost;
            }
            Ok(Err(error)) => tracing::debug!(lease = election.name, %error, "failed to renew the lease"),
            Err(_) => {}
        }
        if renewed.elapsed() >= election.renew_deadline {
            tracing::error!(lease = election.name, "failed to renew the lease before the deadline");
            return Leading::Lost;
        }
    }
}

struct Candidate<'a> {
    client: &'a Client,
    election: &'a LeaderElection,
    clock: &'a Clock,
    /// The lease at its last observed change, and the time of that observation.
    observed: Option<(LeaseSpec, Instant)>,
}

impl Candidate<'_> {
    /// Acquires or renews the lease; true if this candidate holds it.
    async fn acquire_or_renew(&mut self) -> Result<bool, ClientError> {
        let election = self.election;
        let lease = match self.client.get::<Lease>(&election.namespace, &election.name).await {
            Ok(lease) => lease,
            Err(error) if error.is_not_found() => {
                let lease = Lease { spec: Some(self.lease_spec(None)), ..election.lease() };
                return match self.client.create(&election.namespace, &lease).await {
                    Ok(_) => Ok(true),
                    Err(error) if error.is_already_exists() => Ok(false),
                    Err(error) => Err(error),
                };
            }
            Err(error) => return Err(error),
        };
        let held = lease.spec.clone().unwrap_or_default();
        let changed = self.observed.as_ref().is_none_or(|(seen, _)| *seen != held);
        if changed {
            self.observed = Some((held.clone(), Instant::now()));
        }
        let holder = held.holder_identity.as_deref().unwrap_or_default();
        let seen = self.observed.as_ref().map_or_else(Instant::now, |(_, at)| *at);
        let duration = held.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let life = duration.map_or(election.lease_duration, Duration::from_secs);
        if !holder.is_empty() && holder != election.identity && seen.elapsed() < life {
            return Ok(false);
        }
        let mut taken = lease;
        taken.spec = Some(self.lease_spec(Some(&held)));
        match self.client.update(&taken).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_conflict() => Ok(holder == election.identity && seen.elapsed() < life),
            Err(error) => Err(error),
        }
    }

    fn lease_spec(&self, held: Option<&LeaseSpec>) -> LeaseSpec {
        let now = MicroTime(self.clock.now());
        let identity = &self.election.identity;
        let held = held.cloned().unwrap_or_default();
        let is_own = held.holder_identity.as_ref() == Some(identity);
        let transitions = held.lease_transitions.unwrap_or(0);
        LeaseSpec {
            holder_identity: Some(identity.clone()),
            lease_duration_seconds: i32::try_from(self.election.lease_duration.as_secs()).ok(),
            acquire_time: if is_own { held.acquire_time } else { Some(now.clone()) },
            renew_time: Some(now),
            lease_transitions: Some(match (is_own, held.holder_identity.is_some()) {
                (true, _) | (false, false) => transitions,
                (false, true) => transitions.saturating_add(1),
            }),
            preferred_holder: None,
            strategy: held.strategy,
        }
    }

    /// Releases the lease, so that the next leader need not wait for its expiry.
    async fn release(&mut self) {
        let election = self.election;
        let Ok(mut lease) = self.client.get::<Lease>(&election.namespace, &election.name).await else {
            return;
        };
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_ref() != Some(&election.identity) {
            return;
        }
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        let now = MicroTime(self.clock.now());
        (spec.acquire_time, spec.renew_time) = (Some(now.clone()), Some(now));
        if let Err(error) = self.client.update(&lease).await {
            tracing::debug!(lease = election.name, %error, "failed to release the lease");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn leader_that_does_not_renew_is_unhealthy() {
        let election = LeaderElection::new("test", "this process");
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(election.check(), Ok(()), "a candidate is healthy");
        election.clone().set_status(true);
        tokio::time::advance(Duration::from_secs(34)).await;
        assert_eq!(election.check(), Ok(()));
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(election.check(), Err("failed election to renew leadership on lease test".to_owned()));
        election.set_status(false);
        assert_eq!(election.check(), Ok(()));
    }
}
