//! Watches services, endpoints and this node, and syncs the backend's rules with the plan.

use futures_util::future::BoxFuture;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use base::machine_network;
use base::tasks::TaskGroup;
use jiff::Timestamp;
use objects::core::v1 as core;
use objects::discovery::v1::EndpointSlice;
use parking_lot::Mutex;
use runtime::{Batching, Cache, Change, Disturbances, ExternalState, Informers, reconcile};
use sys::netlink::{Changes, notifications};
use tokio::sync::Notify;

use crate::backend::{Backend, BackendError, Mode};
use crate::feed::{service_of, view};
use crate::health::{Health, ServicePorts};
use crate::metrics::ProxyMetrics;
use crate::model::{Node, Protocol, Service, ServiceName};
use crate::plan::plan;
use crate::stale::Answers;
use crate::state::{Difference, State};

const BY_SERVICE: &str = "service";
const ZONE: &str = "topology.kubernetes.io/zone";
/// Taint by which a cluster autoscaler marks a node before its removal.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// State of the driver.
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
    /// Services with UDP ports, as they were planned last.
    udp_services: HashMap<ServiceName, Service>,
    /// Valid endpoints of UDP services that changed since the last flow cleanup.
    answers: Answers,
}

/// Annotation of a slice with the time of the change of a pod or service that led to it.
const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";
/// Limit of changes whose time is kept until the next sync.
const MAX_TRIGGERS: usize = 10_000;

/// Objects changed since the last plan.
struct Changed {
    names: Mutex<BTreeSet<ServiceName>>,
    /// Times of slice changes that are not applied yet, with their address family.
    triggers: Mutex<Vec<(&'static str, Timestamp)>>,
    started: Timestamp,
    any: Notify,
    health: Arc<Health>,
    metrics: Arc<ProxyMetrics>,
}

impl Changed {
    /// Records the time of a slice's change, if the change is new and happened since this proxy started.
    fn note_trigger(&self, old: Option<&EndpointSlice>, new: &EndpointSlice) {
        let before = old.and_then(trigger_time);
        let Some(at) = trigger_time(new).filter(|at| Some(*at) != before && *at > self.started) else {
            return;
        };
        let family = if new.address_type == "IPv6" { "IPv6" } else { "IPv4" };
        let mut triggers = self.triggers.lock();
        if triggers.len() < MAX_TRIGGERS {
            triggers.push((family, at));
        }
    }

    fn add(&self, name: ServiceName) {
        self.names.lock().insert(name);
        self.health.queued();
        self.metrics.last_queued.set(self.health.now().as_second());
        self.any.notify_one();
    }
}

fn trigger_time(slice: &EndpointSlice) -> Option<Timestamp> {
    slice.metadata.annotations.as_ref()?.get(TRIGGER_TIME)?.parse().ok()
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
            triggers: Mutex::default(),
            started: health.now(),
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
            of_service.metrics.services_pending.inc();
            of_service.add(name_of(change.object()));
        });
        let of_slice = Arc::clone(&changed);
        slices.on_event(move |change| {
            of_slice.metrics.endpoint_changes.inc();
            of_slice.metrics.endpoints_pending.inc();
            if !matches!(change, Change::Deleted(_)) {
                of_slice.note_trigger(change.old().map(AsRef::as_ref), change.object());
            }
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
        let (state, answers, udp_services) = (State::default(), Answers::default(), HashMap::new());
        Self {
            node,
            backend,
            services,
            slices,
            nodes,
            changed,
            state,
            health,
            metrics,
            udp_services,
            answers,
        }
    }

    /// Keeps the rules up to date until `tasks` stop. `ready` is called once all of them are applied.
    pub fn run<'a>(self, tasks: TaskGroup, ready: Box<dyn FnOnce() + Send + 'a>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let ports = ServicePorts::new(Arc::clone(&self.health), &tasks);
            let disturbances = Disturbances::new(notifications(Changes::Tables));
            let network = base::machine_network::subscribe();
            let ready = Some(ready);
            let running =
                Running { driver: self, ports, disturbances, network, machine_changed: false, ready };
            reconcile(running, &tasks).await;
        })
    }

    /// A change of the node's zone affects the topology hints of every service.
    fn look_at_node(&mut self) {
        // A machine that is not a node has no name.
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

    /// Plans the services that changed since the last call.
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
            // Even without a difference of the rules: an endpoint that only serves while it terminates may be gone.
            let last = self.udp_services.remove(&name);
            match seen.filter(has_udp) {
                Some(service) => {
                    if last.as_ref().is_none_or(|last| *last != service) {
                        self.answers.note(&service);
                        last.iter().for_each(|last| self.answers.note_removed_ports(last, &service));
                    }
                    self.udp_services.insert(name, service);
                }
                None => last.iter().for_each(|last| self.answers.note_removed(last)),
            }
            total.merge(difference);
        }
        total
    }

    fn apply(&self, difference: &Difference) -> Result<(), BackendError> {
        if difference.is_empty() { Ok(()) } else { self.backend.apply(difference, &self.state) }
    }

    fn made(&self) {
        // A change that arrived during the sync remains pending.
        if self.changed.names.lock().is_empty() {
            self.health.made();
        }
        self.metrics.last_sync.set(self.health.now().as_second());
    }

    /// Ends UDP flows to removed endpoints. Failures affect clients only.
    fn forget_flows(&mut self) {
        if self.answers.is_empty() {
            return;
        }
        let begun = Instant::now();
        match std::mem::take(&mut self.answers).forget_others() {
            Ok(counts) => {
                self.metrics.forgotten_flows.add(counts);
                self.metrics.conntrack_seconds.observe(begun.elapsed().as_secs_f64());
            }
            Err(error) => tracing::debug!(%error, "failed to list conntrack entries"),
        }
    }
}

/// A running driver.
struct Running<R> {
    driver: Driver,
    ports: ServicePorts,
    disturbances: Disturbances,
    network: machine_network::Changes,
    /// Addresses of the machine changed since the last call of the backend.
    machine_changed: bool,
    ready: Option<R>,
}

impl<R: FnOnce() + Send> ExternalState for Running<R> {
    type Error = BackendError;

    fn name(&self) -> &'static str {
        "the rules of services"
    }

    async fn ready(&mut self) {
        self.driver.services.synced().await;
        self.driver.slices.synced().await;
    }

    fn apply(&mut self, whole: bool) -> Result<(), BackendError> {
        let whole = whole || std::mem::take(&mut self.machine_changed);
        let driver = &mut self.driver;
        driver.look_at_node();
        let begun = Instant::now();
        let pending = (driver.metrics.services_pending.get(), driver.metrics.endpoints_pending.get());
        let triggers = std::mem::take(&mut *driver.changed.triggers.lock());
        let difference = driver.plan_changed(&mut self.ports);
        let outcome = if whole { driver.backend.replace(&driver.state) } else { driver.apply(&difference) };
        if whole && outcome.is_ok() {
            driver.health.set_intact(true);
        }
        if outcome.is_err() {
            driver.metrics.failures.inc();
            driver.changed.triggers.lock().extend(triggers);
            return outcome;
        }
        if whole || !difference.is_empty() {
            let seconds = begun.elapsed().as_secs_f64();
            driver.metrics.sync_seconds.observe(seconds);
            let of_kind =
                if whole { &driver.metrics.full_sync_seconds } else { &driver.metrics.partial_sync_seconds };
            of_kind.observe(seconds);
        }
        // Changes that arrived during the sync remain pending.
        driver.metrics.services_pending.sub(pending.0);
        driver.metrics.endpoints_pending.sub(pending.1);
        let now = driver.health.now();
        for (family, at) in triggers {
            let seconds = now.duration_since(at).as_secs_f64().max(0.0);
            driver.metrics.network_programming.with_label_values(&[family]).observe(seconds);
        }
        driver.made();
        self.ready.take().into_iter().for_each(|ready| ready());
        driver.forget_flows();
        Ok(())
    }

    fn is_intact(&mut self) -> Result<bool, BackendError> {
        let outcome = self.driver.backend.is_intact();
        self.driver.health.set_intact(*outcome.as_ref().unwrap_or(&false));
        outcome
    }

    async fn changed(&mut self) -> Batching {
        tokio::select! {
            () = self.driver.changed.any.notified() => Batching::None,
            () = self.disturbances.next() => Batching::Disturbed,
            _ = self.network.next() => {
                // Other backends match any local address.
                self.machine_changed = matches!(self.driver.backend.mode(), Mode::Ipvs | Mode::Userspace);
                Batching::None
            }
        }
    }
}

fn has_udp(service: &Service) -> bool {
    service.ports.iter().any(|port| port.protocol == Protocol::Udp)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::clock::Clock;
    use base::metrics::Metrics;

    fn slice(family: &str, trigger: &str) -> EndpointSlice {
        serde_json::from_value(serde_json::json!({
            "addressType": family,
            "metadata": {"name": "a", "annotations": {TRIGGER_TIME: trigger}},
        }))
        .expect("a slice")
    }

    #[test]
    fn trigger_times_are_noted_once_and_not_from_before_the_start() {
        let metrics = Metrics::new(&Clock::system()).expect("a registry");
        let changed = Changed {
            names: Mutex::default(),
            triggers: Mutex::default(),
            started: "2026-01-01T00:00:00Z".parse().expect("a time"),
            any: Notify::new(),
            health: Arc::new(Health::new(&Clock::system())),
            metrics: Arc::new(ProxyMetrics::new(&metrics).expect("new names")),
        };
        let new = slice("IPv6", "2026-01-01T00:00:05Z");
        changed.note_trigger(None, &slice("IPv4", "2025-12-31T23:59:59Z"));
        changed.note_trigger(None, &slice("IPv4", "nonsense"));
        changed.note_trigger(Some(&slice("IPv6", "2026-01-01T00:00:01Z")), &new);
        changed.note_trigger(Some(&new), &new);
        let want = ("IPv6", "2026-01-01T00:00:05Z".parse().expect("a time"));
        assert_eq!(*changed.triggers.lock(), [want]);
    }
}
