//! Follows policies, pods and namespaces, and keeps the rules of this node at what the plan says.
//!
//! As long as there is no policy in the cluster, nothing but policies is followed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use base::tasks::TaskGroup;
use client::Client;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use parking_lot::Mutex;
use runtime::{Cache, Informers, Key, Selection};
use sys::nftables::NftError;
use tokio::sync::Notify;

use crate::early::Early;
use crate::feed;
use crate::model::Name;
use crate::nftables::Nftables;
use crate::state::{Difference, State};

/// Changes that come within this time are made together.
const GATHER: Duration = Duration::from_millis(5);
const FIRST_RETRY: Duration = Duration::from_millis(200);
const LAST_RETRY: Duration = Duration::from_secs(30);
/// The service that answers for names, by namespace and name.
const NAME_SERVICE: (&str, &str) = ("kube-system", "kube-dns");
const SERVICE_LABEL: &str = "kubernetes.io/service-name";
/// Where the kernel is told that packets between ports of a bridge pass the rules too.
const BRIDGE_FILES: [&str; 2] =
    ["/proc/sys/net/bridge/bridge-nf-call-iptables", "/proc/sys/net/bridge/bridge-nf-call-ip6tables"];

/// Keeps the policies of `node` in force until `tasks` stop. `ready` is called when all of them are for the first time.
/// Needs the right to change the rules of the network namespace it is called in.
pub async fn run(
    node: &str,
    client: Client,
    early: Arc<Early>,
    tasks: TaskGroup,
    ready: impl FnOnce() + Send,
) -> Result<(), NftError> {
    let outcome = match Nftables::open() {
        Ok(backend) => {
            let informers = Informers::new(client, &tasks);
            Driver::new(node, backend, &informers, Arc::clone(&early)).run(tasks, ready).await;
            Ok(())
        }
        Err(error) => Err(error),
    };
    early.close();
    outcome
}

/// What the driver follows and what it has done.
pub struct Driver {
    node: String,
    backend: Nftables,
    informers: Informers,
    policies: Cache<NetworkPolicy>,
    /// Followed from the first policy on.
    others: Option<Others>,
    changed: Arc<Changed>,
    early: Arc<Early>,
    state: State,
    /// Whether the kernel has our table.
    installed: bool,
}

struct Others {
    pods: Cache<core::Pod>,
    namespaces: Cache<core::Namespace>,
    /// Where names are answered.
    names: Cache<EndpointSlice>,
}

/// The names of objects that may differ from what was planned.
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
    pub fn new(node: &str, backend: Nftables, informers: &Informers, early: Arc<Early>) -> Self {
        let policies = informers.of::<NetworkPolicy>();
        let changed = Arc::new(Changed::default());
        let told = Arc::clone(&changed);
        policies.on_event(move |change| told.add(|names| &mut names.policies, Key::of(&**change.object())));
        Self {
            node: node.to_owned(),
            backend,
            informers: informers.clone(),
            policies,
            others: None,
            changed,
            early,
            state: State::default(),
            installed: false,
        }
    }

    /// Keeps the rules up to date until `tasks` stop. `ready` is called when all of them are in force.
    pub async fn run(mut self, tasks: TaskGroup, ready: impl FnOnce() + Send) {
        let stopping = tasks.stopping();
        tokio::pin!(stopping);
        let policies = self.policies.clone();
        tokio::select! {
            () = &mut stopping => return,
            () = policies.synced() => {}
        }
        let mut whole = true;
        let mut ready = Some(ready);
        let mut retry = FIRST_RETRY;
        loop {
            tokio::select! {
                () = &mut stopping => return,
                () = self.follow() => {}
            }
            let difference = self.plan();
            let wait = match self.enforce(whole, &difference) {
                Ok(()) => {
                    (whole, retry) = (false, FIRST_RETRY);
                    ready.take().into_iter().for_each(|ready| ready());
                    self.early.made();
                    None
                }
                // Somebody else may have been at the table: begin anew.
                Err(error) => {
                    tracing::warn!(error = %chain(&error), "network policies could not be set; trying again");
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
                        tokio::select! {
                            () = self.changed.any.notified() => tokio::time::sleep(GATHER).await,
                            // Somebody waits for this.
                            () = self.early.any.notified() => {}
                        }
                    }
                }
            };
            tokio::select! {
                () = &mut stopping => return,
                () = next => {}
            }
        }
    }

    /// Follows pods and namespaces once there is a policy, and waits until they are all known.
    async fn follow(&mut self) {
        if self.others.is_none() && self.policies.count() > 0 {
            let (pods, namespaces) =
                (self.informers.of::<core::Pod>(), self.informers.of::<core::Namespace>());
            let told = Arc::clone(&self.changed);
            pods.on_event(move |change| told.add(|names| &mut names.pods, Key::of(&**change.object())));
            let told = Arc::clone(&self.changed);
            namespaces
                .on_event(move |change| told.add(|names| &mut names.namespaces, Key::of(&**change.object())));
            let names = self.informers.of_selected::<EndpointSlice>(Selection {
                namespace: NAME_SERVICE.0.to_owned(),
                label_selector: format!("{SERVICE_LABEL}={}", NAME_SERVICE.1),
                ..Selection::default()
            });
            let told = Arc::clone(&self.changed);
            names.on_event(move |_| told.any.notify_one());
            for_bridges();
            self.others = Some(Others { pods, namespaces, names });
        }
        if let Some(Others { pods, namespaces, names }) = &self.others {
            pods.synced().await;
            namespaces.synced().await;
            names.synced().await;
        }
    }

    /// Plans what changed since the last time.
    fn plan(&mut self) -> Difference {
        let names = std::mem::take(&mut *self.changed.names.lock());
        if let Some(Others { pods, namespaces, names: answered }) = &self.others {
            self.state.set_open(feed::name_service(answered.all().iter().map(|slice| &**slice)));
            for key in names.namespaces {
                let namespace = namespaces.get_key(&key);
                let labels = namespace.map(|one| one.metadata.labels.clone().unwrap_or_default());
                self.state.set_namespace(&key.name, labels);
            }
            let early = self.early.plan(pods);
            for (key, addresses) in names.pods.into_iter().map(|key| (key, None)).chain(early) {
                let pod = pods.get_key(&key).and_then(|pod| feed::pod(&pod, &self.node, addresses));
                self.state.set_pod(&Name::new(&key.namespace, &key.name), pod);
            }
        } else {
            self.early.forget_all();
        }
        for key in names.policies {
            let policy = self.policies.get_key(&key).and_then(|policy| feed::policy(&policy));
            self.state.set_policy(&Name::new(&key.namespace, &key.name), policy);
        }
        self.state.commit()
    }

    /// A node without pods under policies has no table at all.
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

/// Pods of one bridge reach each other without being routed; policies are to see that too.
fn for_bridges() {
    for file in BRIDGE_FILES {
        match std::fs::read_to_string(file) {
            Ok(value) if value.trim() == "1" => {}
            Ok(_) => {
                if let Err(error) = std::fs::write(file, "1") {
                    tracing::warn!(%error, file, "policies do not hold between pods of one bridge");
                }
            }
            Err(error) => {
                tracing::warn!(%error, file, "policies may not hold between pods of one bridge: is br_netfilter there?");
            }
        }
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
