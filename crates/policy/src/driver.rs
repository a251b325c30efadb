//! Watches policies, pods and namespaces, and syncs the rules of this node with the plan.
//!
//! As long as the cluster has no policy, only policies are watched.

use futures_util::future::BoxFuture;
use std::collections::BTreeSet;
use std::sync::Arc;

use base::tasks::TaskGroup;
use client::Client;
use objects::core::v1 as core;
use objects::discovery::v1::EndpointSlice;
use objects::networking::v1::NetworkPolicy;
use parking_lot::Mutex;
use runtime::{Batching, Cache, Disturbances, ExternalState, Informers, Key, Selection, reconcile};
use sys::instance::Instance;
use sys::netlink::{Changes, notifications};
use sys::nftables::NftError;
use tokio::sync::Notify;

use crate::feed;
use crate::model::Name;
use crate::nftables::Nftables;
use crate::pod_start_gate::PodStartGate;
use crate::state::{Difference, State};

/// The DNS service, by namespace and name.
const NAME_SERVICE: (&str, &str) = ("kube-system", "kube-dns");
const SERVICE_LABEL: &str = "kubernetes.io/service-name";
/// Sysctl that passes packets between bridge ports through the rules.
const BRIDGE_FILES: [&str; 2] =
    ["/proc/sys/net/bridge/bridge-nf-call-iptables", "/proc/sys/net/bridge/bridge-nf-call-ip6tables"];

/// Keeps the policies of `node` enforced until `tasks` stop. `ready` is called once all of them are enforced. Requires
/// permission to change the rules of the caller's network namespace.
pub fn run<'a>(
    node: &'a str,
    instance: Instance,
    client: Client,
    pod_start_gate: Arc<PodStartGate>,
    tasks: TaskGroup,
    ready: Box<dyn FnOnce() + Send + 'a>,
) -> BoxFuture<'a, Result<(), NftError>> {
    Box::pin(async move {
        let outcome = match Nftables::open(instance) {
            Ok(backend) => {
                pod_start_gate.open();
                let informers = Informers::new(client, &tasks);
                Driver::new(node, backend, &informers, Arc::clone(&pod_start_gate)).run(tasks, ready).await;
                Ok(())
            }
            Err(error) => Err(error),
        };
        pod_start_gate.close();
        outcome
    })
}

/// State of the driver.
pub struct Driver {
    node: String,
    backend: Nftables,
    informers: Informers,
    policies: Cache<NetworkPolicy>,
    /// Watched from the first policy on.
    others: Option<Others>,
    changed: Arc<Changed>,
    pod_start_gate: Arc<PodStartGate>,
    state: State,
    /// True if the kernel has Ferry's table.
    installed: bool,
}

struct Others {
    pods: Cache<core::Pod>,
    namespaces: Cache<core::Namespace>,
    /// Addresses of the DNS server.
    names: Cache<EndpointSlice>,
}

/// Names of objects that may differ from the plan.
#[derive(Default)]
struct Changed {
    names: Mutex<Names>,
    any: Notify,
}

#[derive(Default)]
struct Names {
    policies: BTreeSet<Key>,
    pods: BTreeSet<Key>,
    namespaces: BTreeSet<Key>,
}

impl Changed {
    fn add(&self, to: impl FnOnce(&mut Names) -> &mut BTreeSet<Key>, key: Key) {
        to(&mut self.names.lock()).insert(key);
        self.any.notify_one();
    }
}

impl Driver {
    #[must_use]
    pub fn new(
        node: &str,
        backend: Nftables,
        informers: &Informers,
        pod_start_gate: Arc<PodStartGate>,
    ) -> Self {
        let policies = informers.of::<NetworkPolicy>();
        let changed = Arc::new(Changed::default());
        let notify = Arc::clone(&changed);
        policies.on_event(move |change| notify.add(|names| &mut names.policies, Key::of(&**change.object())));
        Self {
            node: node.to_owned(),
            backend,
            informers: informers.clone(),
            policies,
            others: None,
            changed,
            pod_start_gate,
            state: State::default(),
            installed: false,
        }
    }

    /// Keeps the rules up to date until `tasks` stop. `ready` is called once all of them are applied.
    pub async fn run(self, tasks: TaskGroup, ready: impl FnOnce() + Send) {
        let disturbances = Disturbances::new(notifications(Changes::Tables));
        reconcile(Running { driver: self, disturbances, ready: Some(ready) }, &tasks).await;
    }

    /// Watches pods and namespaces once there is a policy, and waits until both caches have synced.
    async fn follow(&mut self) {
        if self.others.is_none() && self.policies.count() > 0 {
            let (pods, namespaces) =
                (self.informers.of::<core::Pod>(), self.informers.of::<core::Namespace>());
            let notify = Arc::clone(&self.changed);
            pods.on_event(move |change| notify.add(|names| &mut names.pods, Key::of(&**change.object())));
            let notify = Arc::clone(&self.changed);
            namespaces.on_event(move |change| {
                notify.add(|names| &mut names.namespaces, Key::of(&**change.object()))
            });
            let names = self.informers.of_selected::<EndpointSlice>(Selection {
                namespace: NAME_SERVICE.0.to_owned(),
                label_selector: format!("{SERVICE_LABEL}={}", NAME_SERVICE.1),
                ..Selection::default()
            });
            let notify = Arc::clone(&self.changed);
            names.on_event(move |_| notify.any.notify_one());
            for_bridges();
            self.others = Some(Others { pods, namespaces, names });
        }
        if let Some(Others { pods, namespaces, names }) = &self.others {
            pods.synced().await;
            namespaces.synced().await;
            names.synced().await;
        }
    }

    /// Plans the changes since the last call.
    fn plan(&mut self) -> Difference {
        let names = std::mem::take(&mut *self.changed.names.lock());
        if let Some(Others { pods, namespaces, names: answered }) = &self.others {
            self.state.set_open(feed::name_service(answered.all().iter().map(|slice| &**slice)));
            for key in names.namespaces {
                let namespace = namespaces.get_key(&key);
                let labels = namespace.map(|one| one.metadata.labels.clone().unwrap_or_default());
                self.state.set_namespace(&key.name, labels);
            }
            let pod_start_gate = self.pod_start_gate.plan(pods);
            for (key, addresses) in names.pods.into_iter().map(|key| (key, None)).chain(pod_start_gate) {
                let pod = pods.get_key(&key).and_then(|pod| feed::pod(&pod, &self.node, addresses));
                self.state.set_pod(&Name::new(&key.namespace, &key.name), pod);
            }
        } else {
            self.pod_start_gate.forget_all();
        }
        for key in names.policies {
            let policy = self.policies.get_key(&key).and_then(|policy| feed::policy(&policy));
            self.state.set_policy(&Name::new(&key.namespace, &key.name), policy);
        }
        self.state.commit()
    }

    /// A node without pods under policies has no table.
    fn enforce(&mut self, whole: bool, difference: &Difference) -> Result<(), NftError> {
        if self.state.is_idle() {
            if whole || self.installed {
                self.backend.remove()?;
                self.installed = false;
            }
        } else if whole || !self.installed {
            self.backend.replace(&self.state.whole())?;
            self.installed = true;
        } else if !difference.is_empty() {
            self.backend.apply(difference)?;
        }
        Ok(())
    }
}

/// A running driver.
struct Running<R> {
    driver: Driver,
    disturbances: Disturbances,
    ready: Option<R>,
}

impl<R: FnOnce() + Send> ExternalState for Running<R> {
    type Error = NftError;

    fn name(&self) -> &'static str {
        "network policies"
    }

    async fn ready(&mut self) {
        self.driver.policies.synced().await;
        self.driver.follow().await;
    }

    fn apply(&mut self, whole: bool) -> Result<(), NftError> {
        let difference = self.driver.plan();
        self.driver.enforce(whole, &difference)?;
        self.ready.take().into_iter().for_each(|ready| ready());
        self.driver.pod_start_gate.made();
        Ok(())
    }

    fn is_intact(&mut self) -> Result<bool, NftError> {
        if self.driver.installed { self.driver.backend.is_intact() } else { Ok(true) }
    }

    async fn changed(&mut self) -> Batching {
        tokio::select! {
            () = self.driver.changed.any.notified() => Batching::None,
            () = self.driver.pod_start_gate.any.notified() => Batching::Immediate,
            () = self.disturbances.next() => Batching::Disturbed,
        }
    }
}

/// Pods on one bridge reach each other without routing; policies must apply to that traffic too.
fn for_bridges() {
    for file in BRIDGE_FILES {
        match std::fs::read_to_string(file) {
            Ok(value) if value.trim() == "1" => {}
            Ok(_) => {
                if let Err(error) = std::fs::write(file, "1") {
                    tracing::warn!(%error, file, "failed to enable bridge-nf-call, network policies are not enforced between pods of one node");
                }
            }
            Err(error) => {
                tracing::warn!(%error, file, "br_netfilter is not loaded, network policies may not be enforced between pods of one node");
            }
        }
    }
}
