//! Follows services, endpoints and this node, and keeps the backend's rules at what the plan says.

use futures_util::future::BoxFuture;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use base::tasks::TaskGroup;
use objects::core::v1 as core;
use objects::discovery::v1::EndpointSlice;
use parking_lot::Mutex;
use runtime::{Cache, Haste, Informers, Kept, keep};
use tokio::sync::Notify;

use crate::backend::{Backend, BackendError};
use crate::feed::{service_of, view};
use crate::health::{Health, ServicePorts};
use crate::metrics::ProxyMetrics;
use crate::model::{Node, ServiceName};
use crate::plan::{Entry, plan};
use crate::stale::Answers;
use crate::state::{Difference, State};

const BY_SERVICE: &str = "service";
const ZONE: &str = "topology.kubernetes.io/zone";
/// What a cluster autoscaler marks a node with that is about to go.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// What the driver follows and what it has done.
pub struct Driver {
    node: Node,
    backend: Box<dyn Backend>,
    services: Cache<core::Service>,
    slices: Cache<EndpointSlice>,
    nodes: Cache<core::Node>,
    changed: Arc<Changed>,
    state: State,
    health: Arc<Health>,
    metrics: Arc<ProxyMetrics>,
    /// Who may answer for UDP services that changed since flows were last looked at.
    answers: Answers,
}

/// What may differ from what was planned.
struct Changed {
    names: Mutex<BTreeSet<ServiceName>>,
    any: Notify,
    health: Arc<Health>,
    metrics: Arc<ProxyMetrics>,
}

impl Changed {
    fn add(&self, name: ServiceName) {
        self.names.lock().insert(name);
        self.health.queued();
        self.metrics.last_queued.set(self.health.now().as_second());
        self.any.notify_one();
    }
}

fn name_of(service: &core::Service) -> ServiceName {
    let meta = &service.metadata;
    ServiceName {
        namespace: meta.namespace.clone().unwrap_or_default(),
        name: meta.name.clone().unwrap_or_default(),
    }
}

impl Driver {
    #[must_use]
    pub fn new(
        node: Node,
        backend: Box<dyn Backend>,
        informers: &Informers,
        health: Arc<Health>,
        metrics: Arc<ProxyMetrics>,
    ) -> Self {
        let (services, slices) = (informers.of::<core::Service>(), informers.of::<EndpointSlice>());
        let nodes = informers.of::<core::Node>();
        let changed = Arc::new(Changed {
            names: Mutex::default(),
            any: Notify::new(),
            health: Arc::clone(&health),
            metrics: Arc::clone(&metrics),
        });
        slices.add_index(BY_SERVICE, |slice| {
            service_of(slice).map(|name| name.to_string()).into_iter().collect()
        });
        let of_service = Arc::clone(&changed);
        services.on_event(move |change| {
            of_service.metrics.service_changes.inc();
            of_service.add(name_of(change.object()));
        });
        let of_slice = Arc::clone(&changed);
        slices.on_event(move |change| {
            of_slice.metrics.endpoint_changes.inc();
            for slice in change.old().into_iter().chain([change.object()]) {
                service_of(slice).into_iter().for_each(|name| of_slice.add(name));
            }
        });
        let (of_node, name) = (Arc::clone(&changed), node.name.clone());
        nodes.on_event(move |change| {
            if change.object().metadata.name.as_deref() == Some(&name) {
                of_node.any.notify_one();
            }
        });
        let (state, answers) = (State::default(), Answers::default());
        Self { node, backend, services, slices, nodes, changed, state, health, metrics, answers }
    }

    /// Keeps the rules up to date until `tasks` stop. `ready` is called when all of them are in force.
    pub fn run<'a>(self, tasks: TaskGroup, ready: Box<dyn FnOnce() + Send + 'a>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let ports = ServicePorts::new(Arc::clone(&self.health), &tasks);
            keep(Running { driver: self, ports, ready: Some(ready) }, &tasks).await;
        })
    }

    /// Another zone changes what is near for every service.
    fn look_at_node(&mut self) {
        // A machine that is no node has no name.
        if self.node.name.is_empty() || !self.nodes.is_synced() {
            return;
        }
        let node = self.nodes.get("", &self.node.name);
        let taints = node.as_ref().and_then(|node| node.spec.as_ref()?.taints.clone()).unwrap_or_default();
        let leaving = node.as_ref().is_none_or(|node| node.metadata.deletion_timestamp.is_some())
            || taints.iter().any(|taint| taint.key == TO_BE_DELETED);
        self.health.set_eligible(!leaving);
        let Some(node) = node else { return };
        let zone = node.metadata.labels.as_ref().and_then(|labels| labels.get(ZONE)).cloned();
        if zone != self.node.zone {
            self.node.zone = zone;
            self.changed.names.lock().extend(self.services.all().iter().map(|service| name_of(service)));
        }
    }

    /// Plans the services that changed since the last time.
    fn plan_changed(&mut self, ports: &mut ServicePorts) -> Difference {
        let names = std::mem::take(&mut *self.changed.names.lock());
        let mut total = Difference::default();
        for name in names {
            let service = self.services.get(&name.namespace, &name.name);
            let slices = self.slices.indexed(BY_SERVICE, &name.to_string());
            let seen = service.and_then(|service| view(&service, &slices, &self.node.name));
            ports.set(&name, seen.as_ref());
            let entries = seen.as_ref().map(|service| plan(service, &self.node)).unwrap_or_default();
            let difference = self.state.set(&name, entries);
            if let Some(service) = &seen
                && touches_udp(&difference)
            {
                self.answers.note(service);
            }
            total.merge(difference);
        }
        total
    }

    fn apply(&self, difference: &Difference) -> Result<(), BackendError> {
        if difference.is_empty() { Ok(()) } else { self.backend.apply(difference, &self.state) }
    }

    fn made(&self) {
        // A change that came meanwhile is still to be made.
        if self.changed.names.lock().is_empty() {
            self.health.made();
        }
        self.metrics.last_sync.set(self.health.now().as_second());
    }

    /// Ends UDP flows that lead to endpoints which are gone. What fails now is noticed by clients, not by us.
    fn forget_flows(&mut self) {
        if self.answers.is_empty() {
            return;
        }
        match std::mem::take(&mut self.answers).forget_others() {
            Ok(count) => self.metrics.forgotten_flows.inc_by(count as u64),
            Err(error) => tracing::debug!(%error, "flows cannot be looked at"),
        }
    }
}

/// A driver at work.
struct Running<R> {
    driver: Driver,
    ports: ServicePorts,
    ready: Option<R>,
}

impl<R: FnOnce() + Send> Kept for Running<R> {
    type Error = BackendError;

    fn name(&self) -> &'static str {
        "the rules of services"
    }

    async fn known(&mut self) {
        self.driver.services.synced().await;
        self.driver.slices.synced().await;
    }

    fn bring(&mut self, whole: bool) -> Result<(), BackendError> {
        let driver = &mut self.driver;
        driver.look_at_node();
        let begun = Instant::now();
        let difference = driver.plan_changed(&mut self.ports);
        let outcome = if whole { driver.backend.replace(&driver.state) } else { driver.apply(&difference) };
        if outcome.is_err() {
            driver.metrics.failures.inc();
            return outcome;
        }
        if whole || !difference.is_empty() {
            driver.metrics.sync_seconds.observe(begun.elapsed().as_secs_f64());
        }
        driver.made();
        self.ready.take().into_iter().for_each(|ready| ready());
        driver.forget_flows();
        Ok(())
    }

    async fn changed(&mut self) -> Haste {
        self.driver.changed.any.notified().await;
        Haste::None
    }
}

fn touches_udp(difference: &Difference) -> bool {
    difference.added.iter().chain(&difference.removed).any(|entry| match entry {
        Entry::Service { front, .. } | Entry::Endpoint { front, .. } | Entry::Closed { front, .. } => {
            front.protocol == crate::model::Protocol::Udp
        }
        _ => false,
    })
}
