//! Node heartbeat: renews the Lease every ten seconds, writes the status on changes.

use std::sync::Arc;
use std::time::Duration;

use base::backoff::Backoff;
use client::{ClientError, Patch};
use jiff::{SignedDuration, Timestamp};
use objects::coordination::v1::{Lease, LeaseSpec};
use objects::core::v1::{Node, NodeStatus};
use objects::meta::v1::{MicroTime, ObjectMeta, OwnerReference};

use super::capacity::{Amounts, allocatable, capacity};
use super::register::register;
use super::status::{status, status_patch};
use crate::events::Kind;
use crate::server::booted;
use crate::shared::Shared;

const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);
const FIRST_POLL: Duration = Duration::from_millis(50);
const MAX_FIRST_POLL: Duration = Duration::from_millis(800);
const LEASE_SECONDS: i32 = 40;
/// Maximum interval between status writes.
const STATUS_INTERVAL: SignedDuration = SignedDuration::from_mins(5);
const LEASE_NAMESPACE: &str = "kube-node-lease";

/// Pressure conditions of the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    pub memory: bool,
    pub disk: bool,
    pub pid: bool,
}

/// Keeps the node object up to date.
pub struct NodeLoop {
    shared: Arc<Shared>,
    port: u16,
    capacity: Amounts,
    uid: String,
    written: Option<(NodeStatus, Timestamp)>,
    lease: Option<Lease>,
    pod_cidr: Option<String>,
    pressure: Arc<parking_lot::Mutex<Pressure>>,
    /// Begin of the kubelet, and the end of the registration until the node is ready for the first time.
    started: Timestamp,
    registered: Option<Timestamp>,
}

impl NodeLoop {
    #[must_use]
    pub fn new(shared: Arc<Shared>, port: u16, pressure: Arc<parking_lot::Mutex<Pressure>>) -> Self {
        let capacity = capacity(&shared.config.directory, shared.config.max_pods);
        let started = shared.clock.now();
        Self {
            started,
            registered: None,
            shared,
            port,
            capacity,
            uid: String::new(),
            written: None,
            lease: None,
            pod_cidr: None,
            pressure,
        }
    }

    /// Registers the node and writes its first status.
    pub async fn begin(&mut self) -> Result<(), ClientError> {
        let first = self.status_now(&NodeStatus::default()).await;
        let begun = self.shared.clock.now();
        let node = register(&self.shared, first).await?;
        let registered = self.shared.clock.now();
        let times = [self.started, begun, registered];
        self.shared.metrics.node_start.registered(booted(), times);
        self.registered = Some(registered);
        self.uid = node.metadata.uid.clone().unwrap_or_default();
        if let Err(error) = crate::csi::register_node(&self.shared, &node).await {
            tracing::warn!(%error, "failed to create CSINode, retrying");
        }
        self.heartbeat_with(node).await?;
        self.poll_pod_cidr(MAX_FIRST_POLL).await;
        let name = &self.shared.config.node_name;
        self.shared.recorder.node(name, name, Kind::Normal, "Starting", "Starting kubelet.");
        Ok(())
    }

    /// Reasons why the node is not ready, by its last status.
    #[must_use]
    pub fn not_ready(&self) -> Option<String> {
        let (status, _) = self.written.as_ref()?;
        let ready = status.conditions.iter().flatten().find(|condition| condition.type_ == "Ready")?;
        (ready.status != "True").then(|| ready.message.clone().unwrap_or_default())
    }

    /// Sends heartbeats until the kubelet stops.
    pub async fn run(mut self) {
        self.poll_pod_cidr(HEARTBEAT_INTERVAL).await;
        let mut ticks = tokio::time::interval(HEARTBEAT_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        ticks.tick().await;
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.shared.node_news.notified() => {}
            }
            if let Err(error) = self.beat().await {
                tracing::warn!(%error, "node heartbeat failed");
            }
        }
    }

    /// Polls for the pod CIDR with growing intervals up to `longest`: the node cannot run pods before it is assigned,
    /// soon after registration.
    async fn poll_pod_cidr(&mut self, longest: Duration) {
        let mut poll = Backoff::new(FIRST_POLL, longest);
        while self.pod_cidr.is_none() && self.not_ready().is_some() {
            let step = poll.next_delay();
            if step >= longest {
                break;
            }
            tokio::time::sleep(step).await;
            if let Err(error) = self.beat().await {
                tracing::warn!(%error, "node heartbeat failed");
            }
        }
    }

    async fn beat(&mut self) -> Result<(), ClientError> {
        self.renew_lease().await?;
        let node = self.shared.find::<Node>("", &self.shared.config.node_name).await?;
        let node = match node {
            Some(node) => node,
            None => {
                self.written = None;
                let first = self.status_now(&NodeStatus::default()).await;
                register(&self.shared, first).await?
            }
        };
        self.write_status(node).await
    }

    async fn heartbeat_with(&mut self, node: Node) -> Result<(), ClientError> {
        self.write_status(node).await?;
        if let Err(error) = self.renew_lease().await {
            tracing::warn!(%error, "failed to renew node lease, retrying");
        }
        Ok(())
    }

    async fn status_now(&mut self, old: &NodeStatus) -> NodeStatus {
        let allocatable = allocatable(&self.capacity, &self.shared.config.housekeeping);
        // In thousandths, like container limits.
        let milli = |(name, amount): (&String, &i64)| {
            (name.clone(), if name == "cpu" { *amount } else { amount.saturating_mul(1000) })
        };
        *self.shared.allocatable.write() = Arc::new(allocatable.iter().map(milli).collect());
        let pressure = *self.pressure.lock();
        status(&self.shared, old, &self.capacity, &allocatable, pressure, self.port).await
    }

    async fn write_status(&mut self, node: Node) -> Result<(), ClientError> {
        self.note_pod_cidr(&node).await;
        let old = node.status.clone().unwrap_or_default();
        let now = self.shared.clock.now();
        let status = self.status_now(&old).await;
        let recent = self
            .written
            .as_ref()
            .is_some_and(|(before, at)| now.duration_since(*at) < STATUS_INTERVAL && same(before, &status));
        if recent && same(&old, &status) {
            return Ok(());
        }
        let patch = Patch::Strategic(status_patch(&old, &status));
        let name = &self.shared.config.node_name;
        self.shared.client.patch::<Node>("", name, Some("status"), &patch).await?;
        self.written = Some((status, now));
        if let Some(registered) = self.registered.filter(|_| self.not_ready().is_none()) {
            self.registered = None;
            self.shared.metrics.node_start.ready(booted(), registered, now);
        }
        Ok(())
    }

    async fn note_pod_cidr(&mut self, node: &Node) {
        // One of each family, if dual-stack.
        let provider_id = node.spec.as_ref().and_then(|spec| {
            let both = spec.pod_cidrs.clone().filter(|both| !both.is_empty()).map(|both| both.join(","));
            both.or_else(|| spec.pod_cidr.clone())
        });
        let cidr = provider_id.or_else(|| self.shared.config.pod_cidr.clone());
        let Some(cidr) = cidr.filter(|cidr| self.pod_cidr.as_ref() != Some(cidr)) else { return };
        match self.shared.engine.set_pod_cidr(&cidr).await {
            Ok(()) => self.pod_cidr = Some(cidr),
            Err(error) => tracing::warn!(%error, cidr, "failed to update pod CIDR of container runtime"),
        }
    }

    async fn renew_lease(&mut self) -> Result<(), ClientError> {
        let name = &self.shared.config.node_name;
        let now = MicroTime(self.shared.clock.now());
        if let Some(lease) = &mut self.lease {
            if let Some(spec) = &mut lease.spec {
                spec.renew_time = Some(now.clone());
            }
            match self.shared.client.update(lease).await {
                Ok(renewed) => {
                    self.lease = Some(renewed);
                    return Ok(());
                }
                Err(error) if error.is_conflict() || error.is_not_found() => self.lease = None,
                Err(error) => return Err(error),
            }
        }
        let wanted = Lease {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                namespace: Some(LEASE_NAMESPACE.to_owned()),
                owner_references: Some(vec![OwnerReference {
                    api_version: "v1".to_owned(),
                    kind: "Node".to_owned(),
                    name: name.clone(),
                    uid: self.uid.clone(),
                    ..OwnerReference::default()
                }]),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(name.clone()),
                lease_duration_seconds: Some(LEASE_SECONDS),
                renew_time: Some(now.clone()),
                ..LeaseSpec::default()
            }),
        };
        let lease = match self.shared.find::<Lease>(LEASE_NAMESPACE, name).await? {
            Some(mut found) => {
                found.spec = wanted.spec;
                self.shared.client.update(&found).await?
            }
            None => self.shared.client.create(LEASE_NAMESPACE, &wanted).await?,
        };
        self.lease = Some(lease);
        Ok(())
    }
}

/// Returns true if two statuses differ only in heartbeat times.
fn same(a: &NodeStatus, b: &NodeStatus) -> bool {
    let still = |status: &NodeStatus| {
        let mut status = status.clone();
        for condition in status.conditions.iter_mut().flatten() {
            condition.last_heartbeat_time = None;
        }
        status
    };
    still(a) == still(b)
}
