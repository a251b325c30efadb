//! Leader election by Lease, as Kubernetes' components do it: of several that could do the work, one does.
//!
//! The lease is judged by when this process saw it change, never by comparing clocks of two machines.

use std::time::Duration;

use base::clock::Clock;
use base::tasks::TaskGroup;
use client::{Client, ClientError};
use objects::coordination::v1::{Lease, LeaseSpec};
use objects::meta::v1::{MicroTime, ObjectMeta};
use rand::Rng;
use tokio::time::Instant;

/// Which lease, for whom, and how long. The times are Kubernetes' defaults.
#[derive(Clone, Debug)]
pub struct LeaderElection {
    pub namespace: String,
    pub name: String,
    /// Unique among those who could lead.
    pub identity: String,
    /// How long others wait for a leader that does not renew.
    pub lease_duration: Duration,
    /// How long a leader tries to renew before it gives up.
    pub renew_deadline: Duration,
    pub retry_period: Duration,
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
        }
    }
}

/// How leading ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leading {
    /// It was told to stop, and has given the lease back.
    Stopped,
    /// The lease could not be renewed in time; somebody else may lead by now.
    Lost,
}

/// Waits for the lease, calls `start`, and keeps the lease until `tasks` stops or it is lost. Whoever loses it must end
/// at once what `start` began.
pub async fn lead(
    client: &Client,
    election: &LeaderElection,
    clock: &Clock,
    tasks: &TaskGroup,
    start: impl FnOnce(),
) -> Leading {
    let mut candidate = Candidate { client, election, clock, observed: None };
    loop {
        match candidate.acquire_or_renew().await {
            Ok(true) => break,
            Ok(false) => {}
            Err(error) => tracing::debug!(lease = election.name, %error, "cannot ask for the lease"),
        }
        let jitter = rand::rng().random_range(1.0..2.2);
        tokio::select! {
            () = tasks.stopping() => return Leading::Stopped,
            () = tokio::time::sleep(election.retry_period.mul_f64(jitter)) => {}
        }
    }
    tracing::info!(lease = election.name, identity = election.identity, "leads");
    start();
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
            Ok(Ok(true)) => renewed = Instant::now(),
            Ok(Ok(false)) => {
                tracing::error!(lease = election.name, "somebody else leads");
                return Leading::Lost;
            }
            Ok(Err(error)) => tracing::debug!(lease = election.name, %error, "cannot renew the lease"),
            Err(_) => {}
        }
        if renewed.elapsed() >= election.renew_deadline {
            tracing::error!(lease = election.name, "the lease could not be renewed in time");
            return Leading::Lost;
        }
    }
}

struct Candidate<'a> {
    client: &'a Client,
    election: &'a LeaderElection,
    clock: &'a Clock,
    /// The lease as it was last seen to change, and when.
    observed: Option<(LeaseSpec, Instant)>,
}

impl Candidate<'_> {
    /// Whether this candidate holds the lease now.
    async fn acquire_or_renew(&mut self) -> Result<bool, ClientError> {
        let election = self.election;
        let lease = match self.client.get::<Lease>(&election.namespace, &election.name).await {
            Ok(lease) => lease,
            Err(error) if error.is_not_found() => {
                let lease = Lease {
                    metadata: ObjectMeta {
                        name: Some(election.name.clone()),
                        namespace: Some(election.namespace.clone()),
                        ..ObjectMeta::default()
                    },
                    spec: Some(self.mine(None)),
                };
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
        taken.spec = Some(self.mine(Some(&held)));
        match self.client.update(&taken).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_conflict() => Ok(holder == election.identity && seen.elapsed() < life),
            Err(error) => Err(error),
        }
    }

    fn mine(&self, held: Option<&LeaseSpec>) -> LeaseSpec {
        let now = MicroTime(self.clock.now());
        let identity = &self.election.identity;
        let held = held.cloned().unwrap_or_default();
        let mine = held.holder_identity.as_ref() == Some(identity);
        let transitions = held.lease_transitions.unwrap_or(0);
        LeaseSpec {
            holder_identity: Some(identity.clone()),
            lease_duration_seconds: i32::try_from(self.election.lease_duration.as_secs()).ok(),
            acquire_time: if mine { held.acquire_time } else { Some(now.clone()) },
            renew_time: Some(now),
            lease_transitions: Some(match (mine, held.holder_identity.is_some()) {
                (true, _) | (false, false) => transitions,
                (false, true) => transitions.saturating_add(1),
            }),
            preferred_holder: None,
            strategy: held.strategy,
        }
    }

    /// Gives the lease back, so that the next leader need not wait.
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
            tracing::debug!(lease = election.name, %error, "the lease was not given back");
        }
    }
}
