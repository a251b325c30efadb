//! Follows services and endpoints, and keeps the backend's rules at what the plan says.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use base::tasks::TaskGroup;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use parking_lot::Mutex;
use runtime::{Cache, Informers};
use sys::nftables::NftError;
use tokio::sync::Notify;

use crate::feed::{service_of, view};
use crate::model::{Node, ServiceName};
use crate::nftables::Nftables;
use crate::plan::plan;
use crate::state::{Difference, State};

/// Changes that come within this time are made together.
const GATHER: Duration = Duration::from_millis(5);
const FIRST_RETRY: Duration = Duration::from_millis(200);
const LAST_RETRY: Duration = Duration::from_secs(30);
const BY_SERVICE: &str = "service";

/// What the driver follows and what it has done.
pub struct Driver {
    node: Node,
    backend: Nftables,
    services: Cache<core::Service>,
    slices: Cache<EndpointSlice>,
    changed: Arc<Changed>,
    state: State,
}

/// The names of services that may differ from what was planned.
#[derive(Default)]
struct Changed {
    names: Mutex<BTreeSet<ServiceName>>,
    any: Notify,
}

impl Changed {
    fn add(&self, name: ServiceName) {
        self.names.lock().insert(name);
        self.any.notify_one();
    }
}

impl Driver {
    #[must_use]
    pub fn new(node: Node, backend: Nftables, informers: &Informers) -> Self {
        let (services, slices) = (informers.of::<core::Service>(), informers.of::<EndpointSlice>());
        let changed = Arc::new(Changed::default());
        slices.add_index(BY_SERVICE, |slice| {
            service_of(slice).map(|name| name.to_string()).into_iter().collect()
        });
        let of_service = Arc::clone(&changed);
        services.on_event(move |change| {
            let meta = &change.object().metadata;
            let (namespace, name) = (meta.namespace.clone(), meta.name.clone());
            of_service.add(ServiceName {
                namespace: namespace.unwrap_or_default(),
                name: name.unwrap_or_default(),
            });
        });
        let of_slice = Arc::clone(&changed);
        slices.on_event(move |change| {
            for slice in change.old().into_iter().chain([change.object()]) {
                service_of(slice).into_iter().for_each(|name| of_slice.add(name));
            }
        });
        Self { node, backend, services, slices, changed, state: State::default() }
    }

    /// Keeps the rules up to date until `tasks` stop. `ready` is called when all of them are in force.
    pub async fn run(mut self, tasks: TaskGroup, ready: impl FnOnce() + Send) {
        let stopping = tasks.stopping();
        tokio::pin!(stopping);
        tokio::select! {
            () = &mut stopping => return,
            () = async { self.services.synced().await; self.slices.synced().await } => {}
        }
        let mut whole = true;
        let mut ready = Some(ready);
        let mut retry = FIRST_RETRY;
        loop {
            let difference = self.plan_changed();
            let outcome = if whole { self.replace() } else { self.apply(&difference) };
            let wait = match outcome {
                Ok(()) => {
                    (whole, retry) = (false, FIRST_RETRY);
                    ready.take().into_iter().for_each(|ready| ready());
                    None
                }
                // Somebody else may have been at the table: begin anew.
                Err(error) => {
                    tracing::warn!(error = %chain(&error), "the rules of services could not be set; trying again");
                    whole = true;
                    let wait = retry;
                    retry = (retry * 2).min(LAST_RETRY);
                    Some(wait)
                }
            };
            let next = async {
                match wait {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => {
                        self.changed.any.notified().await;
                        tokio::time::sleep(GATHER).await;
                    }
                }
            };
            tokio::select! {
                () = &mut stopping => return,
                () = next => {}
            }
        }
    }

    /// Plans the services that changed since the last time.
    fn plan_changed(&mut self) -> Difference {
        let names = std::mem::take(&mut *self.changed.names.lock());
        let mut total = Difference::default();
        for name in names {
            let service = self.services.get(&name.namespace, &name.name);
            let slices = self.slices.indexed(BY_SERVICE, &name.to_string());
            let seen = service.and_then(|service| view(&service, &slices, &self.node.name));
            let entries = seen.map(|service| plan(&service, &self.node)).unwrap_or_default();
            total.merge(self.state.set(&name, entries));
        }
        total
    }

    fn replace(&self) -> Result<(), NftError> {
        self.backend.replace(&self.state.whole())
    }

    fn apply(&self, difference: &Difference) -> Result<(), NftError> {
        if difference.is_empty() { Ok(()) } else { self.backend.apply(difference) }
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}
