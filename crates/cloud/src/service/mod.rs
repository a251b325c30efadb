//! The service load balancer controller. Watches services and nodes; ensures the provider's load balancers, and
//! writes their addresses into the services' status.
//!
//! Invariant: a service of type LoadBalancer without a class has a load balancer with all its ports that targets all
//! nodes; the service is not deleted before its load balancer.

mod plan;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use base::errors::chain;
use client::{ClientError, Patch};
use objects::core::v1::{LoadBalancerStatus, Node, Service};
use parking_lot::Mutex;
use runtime::{Action, Cache, Change, Context, Descriptor, Key, Loop, LoopError};
use serde_json::json;

pub use plan::FINALIZER;
use plan::{
    Backend, Done, LoadBalancerPlan, backend, has_finalizer, needs_cleanup, needs_update, with_defaults,
};
pub(crate) use plan::{is_backend, needs_load_balancer};

use crate::{LoadBalancers, ProviderError, Settings};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "service-lb-controller",
    resource: "services",
    identity: "system:serviceaccount:kube-system:service-controller",
    workers: 2,
};

#[derive(Debug, thiserror::Error)]
enum ServiceError {
    #[error("failed to check if load balancer exists before cleanup")]
    Get(#[source] ProviderError),
    #[error("failed to ensure load balancer")]
    Ensure(#[source] ProviderError),
    #[error("failed to update load balancer hosts")]
    Update(#[source] ProviderError),
    #[error("failed to delete load balancer")]
    Delete(#[source] ProviderError),
    #[error("failed to {0} load balancer cleanup finalizer")]
    Finalizer(&'static str, #[source] ClientError),
    #[error("failed to update load balancer status")]
    Status(#[source] ClientError),
}

struct ServiceLoop {
    services: Cache<Service>,
    nodes: Cache<Node>,
    settings: Option<Settings>,
    done: Mutex<HashMap<Key, Done>>,
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    let settings = crate::settings(ctx);
    if let Some(settings) = &settings {
        settings.provider.use_informers(&ctx.informers);
    }
    let services = ctx.watch::<Service>(|change| {
        let concerned = match change {
            Change::Added(service) => needs_load_balancer(service) || needs_cleanup(service),
            Change::Updated { old, new } => needs_update(old, new) || needs_cleanup(new),
            Change::Deleted(service) => needs_load_balancer(service),
        };
        if concerned { vec![Key::of(&**change.object())] } else { Vec::new() }
    });
    let all = services.clone();
    let nodes = ctx.watch::<Node>(move |change| {
        let concerned = match change {
            Change::Updated { old, new } => {
                is_backend(old) != is_backend(new) || backend(old) != backend(new)
            }
            Change::Added(_) | Change::Deleted(_) => true,
        };
        if !concerned {
            return Vec::new();
        }
        all.all()
            .iter()
            .filter(|service| needs_load_balancer(service))
            .map(|service| Key::of(&**service))
            .collect()
    });
    Box::new(ServiceLoop { services, nodes, settings, done: Mutex::default() })
}

#[async_trait]
impl Loop for ServiceLoop {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let Some(settings) = &self.settings else { return Ok(Action::Done) };
        let Some(provider) = settings.provider.load_balancers() else { return Ok(Action::Done) };
        let reconciliation = Reconciliation { provider, cluster: &settings.cluster_name, ctx };
        let service = self.services.get_key(key);
        let nodes: Vec<Arc<Node>> = self.nodes.all().into_iter().filter(|node| is_backend(node)).collect();
        let backends: BTreeSet<Backend> = nodes.iter().map(|node| backend(node)).collect();
        let mut done = self.done.lock().get(key).cloned();
        if let LoadBalancerPlan::Release(old) = plan::plan(service.as_ref(), done.as_ref(), &backends) {
            reconciliation.release(&old).await?;
            self.done.lock().remove(key);
            self.retry_others(ctx);
            done = None;
        }
        let outcome = match plan::plan(service.as_ref(), done.as_ref(), &backends) {
            LoadBalancerPlan::Nothing | LoadBalancerPlan::Release(_) => return Ok(Action::Done),
            LoadBalancerPlan::Delete(service) => {
                let outcome = reconciliation.delete(&service).await;
                if outcome.is_ok() {
                    self.done.lock().remove(key);
                    self.retry_others(ctx);
                }
                outcome.map_err(|error| (service, error))
            }
            LoadBalancerPlan::Ensure(service) => {
                let outcome = reconciliation.ensure(&service, &nodes).await;
                if outcome.is_ok() {
                    let done = Done { service: Arc::clone(&service), backends };
                    self.done.lock().insert(key.clone(), done);
                }
                outcome.map_err(|error| (service, error))
            }
            LoadBalancerPlan::Update(service) => {
                let outcome = reconciliation.update(&service, &nodes).await;
                match &outcome {
                    Ok(()) => drop(self.done.lock().insert(key.clone(), Done { service, backends })),
                    // The retry ensures it again, as in Kubernetes.
                    Err(_) => drop(self.done.lock().remove(key)),
                }
                outcome?;
                return Ok(Action::Done);
            }
        };
        let Err((service, error)) = outcome else { return Ok(Action::Done) };
        let note = format!("Error syncing load balancer: {}", chain(&error));
        ctx.recorder.warning(&*service, "SyncLoadBalancerFailed", note);
        match error {
            ServiceError::Ensure(ProviderError::NotYet { after, .. }) => Ok(Action::RequeueAfter(after)),
            error => Err(error.into()),
        }
    }
}

impl ServiceLoop {
    /// Requeues services that may be waiting for a released address or port.
    fn retry_others(&self, ctx: &Context) {
        let done = self.done.lock();
        let waiting = self.services.all().into_iter().filter(|service| needs_load_balancer(service));
        for key in waiting.map(|service| Key::of(&*service)).filter(|key| !done.contains_key(key)) {
            ctx.queue.add(key);
        }
    }
}

/// One reconciliation of one service.
struct Reconciliation<'a> {
    provider: &'a dyn LoadBalancers,
    cluster: &'a str,
    ctx: &'a Context,
}

impl Reconciliation<'_> {
    async fn ensure(&self, service: &Service, nodes: &[Arc<Node>]) -> Result<(), ServiceError> {
        let recorder = &self.ctx.recorder;
        recorder.normal(service, "EnsuringLoadBalancer", "Ensuring load balancer");
        // Set the finalizer before creating anything that must be removed with the service.
        if !has_finalizer(service) {
            let patch = Patch::Strategic(json!({ "metadata": { "finalizers": [FINALIZER] } }));
            self.patch(service, &patch).await.map_err(|error| ServiceError::Finalizer("add", error))?;
        }
        self.warn_without(service, nodes);
        let status = match self.provider.ensure(self.cluster, service, nodes).await {
            Err(ProviderError::Elsewhere) => return Ok(()),
            outcome => outcome.map_err(ServiceError::Ensure)?,
        };
        recorder.normal(service, "EnsuredLoadBalancer", "Ensured load balancer");
        self.write(service, status).await
    }

    async fn update(&self, service: &Service, nodes: &[Arc<Node>]) -> Result<(), ServiceError> {
        match self.provider.update(self.cluster, service, nodes).await {
            Ok(status) => {
                self.warn_without(service, nodes);
                if !nodes.is_empty() {
                    let note = "Updated load balancer with new hosts";
                    self.ctx.recorder.normal(service, "UpdatedLoadBalancer", note);
                }
                match status {
                    Some(status) => self.write(service, status).await,
                    None => Ok(()),
                }
            }
            Err(ProviderError::Elsewhere) => Ok(()),
            Err(error) => {
                let names: Vec<&str> =
                    nodes.iter().take(20).filter_map(|node| node.metadata.name.as_deref()).collect();
                let note = format!(
                    "Error updating load balancer with new hosts {names:?} [node names limited, total number of \
                     nodes: {}], error: {}",
                    nodes.len(),
                    error.text()
                );
                self.ctx.recorder.warning(service, "UpdateLoadBalancerFailed", note);
                Err(ServiceError::Update(error))
            }
        }
    }

    fn warn_without(&self, service: &Service, nodes: &[Arc<Node>]) {
        if nodes.is_empty() {
            let note = "There are no available nodes for LoadBalancer";
            self.ctx.recorder.warning(service, "UnAvailableLoadBalancer", note);
        }
    }

    async fn delete(&self, service: &Service) -> Result<(), ServiceError> {
        let recorder = &self.ctx.recorder;
        if self.provider.get(self.cluster, service).await.map_err(ServiceError::Get)?.is_some() {
            recorder.normal(service, "DeletingLoadBalancer", "Deleting load balancer");
            match self.provider.delete(self.cluster, service).await {
                Ok(()) | Err(ProviderError::Elsewhere) => {}
                Err(error) => return Err(ServiceError::Delete(error)),
            }
        }
        if has_finalizer(service) {
            let patch = json!({ "metadata": { "$deleteFromPrimitiveList/finalizers": [FINALIZER] } });
            self.patch(service, &Patch::Strategic(patch))
                .await
                .map_err(|error| ServiceError::Finalizer("remove", error))?;
        }
        recorder.normal(service, "DeletedLoadBalancer", "Deleted load balancer");
        self.write(service, LoadBalancerStatus::default()).await
    }

    /// Deletes the load balancer of a service that no longer exists.
    async fn release(&self, service: &Service) -> Result<(), ServiceError> {
        let recorder = &self.ctx.recorder;
        recorder.normal(service, "DeletingLoadBalancer", "Deleting load balancer");
        match self.provider.delete(self.cluster, service).await {
            Ok(()) | Err(ProviderError::Elsewhere) => {}
            Err(error) => {
                let note = format!("Error deleting load balancer: {}", error.text());
                recorder.warning(service, "DeleteLoadBalancerFailed", note);
                return Err(ServiceError::Delete(error));
            }
        }
        recorder.normal(service, "DeletedLoadBalancer", "Deleted load balancer");
        Ok(())
    }

    async fn write(&self, service: &Service, status: LoadBalancerStatus) -> Result<(), ServiceError> {
        let status = with_defaults(status);
        let old = service.status.as_ref().and_then(|status| status.load_balancer.clone()).unwrap_or_default();
        if with_defaults(old) == status {
            return Ok(());
        }
        let patch = Patch::Merge(json!({ "status": { "loadBalancer": { "ingress": status.ingress } } }));
        self.patch(service, &patch).await.map_err(ServiceError::Status)
    }

    /// Patches through the status subresource, which this controller may write. A missing service is ignored.
    async fn patch(&self, service: &Service, patch: &Patch) -> Result<(), ClientError> {
        let (ns, name) = (&service.metadata.namespace, &service.metadata.name);
        let (ns, name) = (ns.as_deref().unwrap_or_default(), name.as_deref().unwrap_or_default());
        match self.ctx.client.patch::<Service>(ns, name, Some("status"), patch).await {
            Err(error) if error.is_not_found() => Ok(()),
            outcome => outcome.map(drop),
        }
    }
}
