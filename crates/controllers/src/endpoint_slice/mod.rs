//! The endpoint slice loop. Watches services, pods, nodes and its slices; writes endpoint slices.
//!
//! Invariant: the slices of a service hold exactly the pods it selects, each with its ports and its ready, serving
//! and terminating conditions; at most a hundred per slice, with as few changes of slices as possible.

mod hints;
mod plan;

use std::sync::Arc;

use async_trait::async_trait;
use client::{ClientError, delete_options};
use objects::core::v1::{Node, Pod, Service};
use objects::discovery::v1::EndpointSlice;
use runtime::{Action, Cache, Change, Context, Descriptor, Expectations, Key, Loop, LoopError};

use crate::Settings;
use crate::shared::slice_figures::{SliceFigures, SliceFiguresByService};
use crate::shared::trigger_times::TriggerTimes;
use crate::shared::{metrics, services};

pub use plan::{EndpointSlicePlan, MANAGED_BY, MANAGER, ObservedEndpoints, SERVICE_NAME, Sharing, plan};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "endpointslice-controller",
    resource: "services",
    identity: "system:serviceaccount:kube-system:endpointslice-controller",
    workers: 5,
};

#[derive(Debug, thiserror::Error)]
enum EndpointSliceError {
    #[error("failed to write the endpoint slices of {0}")]
    Write(Key, #[source] ClientError),
    #[error("node {node} of pod {pod} not found")]
    NoNode { pod: String, node: String },
}

struct EndpointSlices {
    services: Cache<Service>,
    pods: Cache<Pod>,
    nodes: Cache<Node>,
    slices: Cache<EndpointSlice>,
    expectations: Expectations,
    times: TriggerTimes,
    figures: SliceFiguresByService,
}

const BY_SERVICE: &str = "service";

fn service_of(slice: &EndpointSlice) -> Option<Key> {
    let labels = slice.metadata.labels.as_ref()?;
    let own = labels.get(MANAGED_BY).is_some_and(|manager| manager == MANAGER);
    let name = labels.get(SERVICE_NAME).filter(|_| own)?;
    Some(Key::new(slice.metadata.namespace.as_deref().unwrap_or_default(), name))
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    let services = ctx.watch_self::<Service>();
    let known = services.clone();
    let pods = ctx.watch::<Pod>(move |change| services::of_pod(change, &known));
    let known = services.clone();
    let nodes = ctx.watch::<Node>(move |change| {
        let gone = matches!(change, Change::Deleted(_));
        let moved = change.old().is_none_or(|old| plan::zone(old) != plan::zone(change.object()));
        let resized =
            gone || change.old().is_none_or(|old| hints::capacity(old) != hints::capacity(change.object()));
        if !moved && !resized {
            return Vec::new();
        }
        // A pod's node affects every service; the capacity of a zone those with topology-aware hints.
        let concerned = |service: &Arc<Service>| moved && !gone || hints::wants_zones(service);
        known.all().iter().filter(|service| concerned(service)).map(|service| Key::of(&**service)).collect()
    });
    let expectations = Expectations::default();
    let expected = expectations.clone();
    let slices = ctx.watch::<EndpointSlice>(move |change| {
        let slice = change.object();
        let Some(key) = service_of(slice) else { return Vec::new() };
        match change {
            Change::Added(_) => expected.created(&key),
            Change::Deleted(_) => expected.deleted(&key, slice.metadata.uid.as_deref().unwrap_or_default()),
            Change::Updated { .. } => {}
        }
        vec![key]
    });
    slices.add_index(BY_SERVICE, |slice: &EndpointSlice| {
        service_of(slice).map(|key| key.to_string()).into_iter().collect()
    });
    let figures = SliceFiguresByService::default();
    if let Some(metrics) = metrics::of(ctx).map(|metrics| &metrics.slices) {
        figures.show(ctx, [&metrics.endpoints, &metrics.slices, &metrics.desired_slices]);
        figures.show_distributions(ctx, &metrics.distributions);
    }
    let times = TriggerTimes::default();
    Box::new(EndpointSlices { services, pods, nodes, slices, expectations, times, figures })
}

#[async_trait]
impl Loop for EndpointSlices {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let outcome = self.sync(key, ctx).await;
        if let Some(metrics) = metrics::of(ctx) {
            let result = match &outcome {
                Ok(result) => result,
                Err(_) => "error",
            };
            metrics.slices.syncs.with_label_values(&[result]).inc();
        }
        outcome.map(|_| Action::Done)
    }
}

impl EndpointSlices {
    /// Writes the slices of a service; returns the label of the result.
    async fn sync(&self, key: &Key, ctx: &Context) -> Result<&'static str, LoopError> {
        let Some(service) = self.services.get_key(key) else {
            self.expectations.forget(key);
            self.times.forget(key);
            self.figures.forget(key);
            return Ok("success");
        };
        if !services::selects(&service) || service.metadata.deletion_timestamp.is_some() {
            self.figures.forget(key);
            return Ok("success");
        }
        // The last write must be observed first; its event requeues this service.
        if !self.expectations.satisfied(key) {
            return Ok("stale");
        }
        let existing = self.slices.indexed(BY_SERVICE, &key.to_string());
        let mut unknown = None;
        let selected = services::pods_of(&service, &self.pods);
        let since = self.times.observe(key, &service, &selected);
        let pods: Vec<(Arc<Pod>, Option<Arc<Node>>)> = selected
            .into_iter()
            .filter(|pod| services::is_reachable(pod, true))
            .filter_map(|pod| {
                let name = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
                let node = self.nodes.get("", &name);
                if node.is_none() && !services::publishes_unready(&service) {
                    unknown = Some(EndpointSliceError::NoNode {
                        pod: pod.metadata.name.clone().unwrap_or_default(),
                        node: name,
                    });
                    return None;
                }
                Some((pod, node))
            })
            .collect();
        let shares = hints::wants_zones(&service).then(|| hints::shares(&self.nodes.all()));
        let plan = plan(&ObservedEndpoints {
            service: &service,
            pods: &pods,
            existing: &existing,
            shares: shares.as_ref(),
            since,
            full: Settings::of(ctx).endpoints_per_slice,
        });
        for sharing in &plan.sharing {
            record_hints_event(sharing, &service, ctx);
        }
        self.count(key, &service, &plan, existing.len(), ctx);
        self.apply(key, plan, ctx).await.map_err(|source| EndpointSliceError::Write(key.clone(), source))?;
        match unknown {
            Some(error) => Err(error.into()),
            None => Ok("success"),
        }
    }

    fn count(&self, key: &Key, service: &Service, plan: &EndpointSlicePlan, existing: usize, ctx: &Context) {
        let Some(metrics) = metrics::of(ctx).map(|metrics| &metrics.slices) else { return };
        let (created, updated, deleted) = (plan.create.len(), plan.update.len(), plan.delete.len());
        let zones = hints::wants_zones(service);
        let spec = service.spec.as_ref();
        let traffic_distribution = spec.and_then(|spec| spec.traffic_distribution.clone()).filter(|_| !zones);
        for (added, removed) in &plan.moved {
            metrics.added.observe(*added as f64);
            metrics.removed.observe(*removed as f64);
        }
        let topology = if zones { "Auto" } else { "Disabled" };
        let labels = [topology, traffic_distribution.as_deref().unwrap_or_default()];
        let changed = created.saturating_add(updated).saturating_add(deleted);
        metrics.changed.with_label_values(&labels).observe(changed as f64);
        let slices = existing.saturating_add(created).saturating_sub(deleted);
        let (endpoints, desired) = (plan.endpoints, plan.desired);
        self.figures.set(key, SliceFigures { endpoints, slices, desired, traffic_distribution });
    }
}

fn record_hints_event(sharing: &Sharing, service: &Service, ctx: &Context) {
    match sharing {
        Sharing::Enabled { family } => {
            let note = format!("Topology Aware Hints has been enabled, addressType: {family}");
            ctx.recorder.normal(service, "TopologyAwareHintsEnabled", note);
        }
        Sharing::Disabled { family, why } => {
            ctx.recorder.warning(
                service,
                "TopologyAwareHintsDisabled",
                format!("{why}, addressType: {family}"),
            );
        }
    }
}

impl EndpointSlices {
    async fn apply(&self, key: &Key, plan: EndpointSlicePlan, ctx: &Context) -> Result<(), ClientError> {
        let ns = &*key.namespace;
        let changed = |operation: &str| {
            if let Some(metrics) = metrics::of(ctx) {
                metrics.slices.changes.with_label_values(&[operation]).inc();
            }
        };
        for slice in &plan.create {
            self.expectations.expect_creations(key, 1);
            if let Err(error) = ctx.client.create(ns, slice).await {
                self.expectations.created(key);
                return if error.is_namespace_terminating() { Ok(()) } else { Err(error) };
            }
            changed("create");
        }
        for slice in &plan.update {
            match ctx.client.update(slice).await {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => changed("update"),
            }
        }
        for slice in &plan.delete {
            let uid = slice.metadata.uid.as_deref().unwrap_or_default();
            let name = slice.metadata.name.as_deref().unwrap_or_default();
            self.expectations.expect_deletions(key, [uid]);
            if let Err(error) =
                ctx.client.delete::<EndpointSlice>(ns, name, &delete_options(Some(uid), None)).await
            {
                self.expectations.deleted(key, uid);
                if !error.is_not_found() {
                    return Err(error);
                }
            } else {
                changed("delete");
            }
        }
        Ok(())
    }
}
