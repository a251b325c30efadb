//! Health checks of controllers and scheduler, as their ports list them.

use std::sync::Arc;

use base::readiness::{Probes, Readiness};
use base::tasks::TaskGroup;
use objects::core::v1::Pod;
use parking_lot::Mutex;
use runtime::{Cache, Informers, LeaderElection, SyncStatus};

const HEALTHZ: Probes = Probes { healthz: true, livez: false, readyz: false };
const LIVEZ: Probes = Probes { healthz: false, livez: true, readyz: false };
const HEALTHZ_AND_READYZ: Probes = Probes { healthz: true, livez: false, readyz: true };

/// Sync state of the informers that a component uses now: none before it leads.
#[derive(Clone, Default)]
pub(crate) struct ActiveInformers(Arc<Mutex<Option<SyncStatus>>>);

impl ActiveInformers {
    pub fn set(&self, informers: &Informers) {
        *self.0.lock() = Some(informers.sync_status());
    }

    fn check(&self) -> Result<(), String> {
        let active = self.0.lock().clone();
        active.map_or(Ok(()), |active| active.check())
    }
}

/// Checks of the components of a process.
#[derive(Clone, Default)]
pub(crate) struct ComponentChecks {
    controllers: Readiness,
    scheduler: Readiness,
    /// Pods in the scheduler's cache; `None` before it is the leader.
    pods: Arc<Mutex<Option<Cache<Pod>>>>,
}

impl ComponentChecks {
    /// Sets the informers that the scheduler uses now.
    pub fn set_scheduler_informers(&self, informers: &Informers) {
        *self.pods.lock() = Some(informers.of());
    }

    /// Pods in the scheduler's cache.
    pub fn scheduler_pods(&self) -> Vec<Arc<Pod>> {
        self.pods.lock().as_ref().map(Cache::all).unwrap_or_default()
    }

    /// Checks of a component by its name.
    pub fn of(&self, component: &str) -> Readiness {
        if component == "kube-scheduler" { self.scheduler.clone() } else { self.controllers.clone() }
    }

    /// Adds the checks of controllers: their lease, each controller by name, and their caches.
    pub fn add_controllers(
        &self,
        names: impl IntoIterator<Item = &'static str>,
        election: Option<&LeaderElection>,
        informers: &ActiveInformers,
        tasks: &TaskGroup,
    ) {
        if let Some(election) = election.cloned() {
            self.controllers.register("leaderElection", Probes::ALL, move || election.check());
        }
        for name in names {
            let supervision = tasks.supervision().clone();
            self.controllers
                .register(name, Probes::ALL, move || supervision.check_tasks(|task| task == name));
        }
        let informers = informers.clone();
        self.controllers.register("informer-sync", Probes::ALL, move || informers.check());
    }

    /// Adds the checks of the scheduler: its lease, its task, shutdown and its caches.
    pub fn add_scheduler(
        &self,
        election: Option<&LeaderElection>,
        informers: &ActiveInformers,
        tasks: &TaskGroup,
    ) {
        let readiness = &self.scheduler;
        match election.cloned() {
            Some(election) => {
                readiness.register("leaderElection", HEALTHZ_AND_READYZ, move || election.check());
            }
            None => readiness.register("ping", HEALTHZ, || Ok(())),
        }
        readiness.register("ping", LIVEZ, || Ok(()));
        let group = tasks.clone();
        readiness.register("shutdown", Probes::READYZ, move || {
            if group.is_stopping() { Err("process is shutting down".to_owned()) } else { Ok(()) }
        });
        for name in ["sched-handler-sync", "informer-sync"] {
            let informers = informers.clone();
            readiness.register(name, Probes::READYZ, move || informers.check());
        }
        let supervision = tasks.supervision().clone();
        readiness.register_extra("kube-scheduler", Probes::ALL, move || {
            supervision.check_tasks(|task| task == "kube-scheduler")
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::readiness::Probe;

    async fn failed(readiness: &Readiness, probe: Probe) -> Vec<String> {
        let outcomes = readiness.run(probe, |_| false).await;
        outcomes.into_iter().filter(|outcome| outcome.result.is_err()).map(|outcome| outcome.name).collect()
    }

    #[tokio::test]
    async fn checks_have_the_names_of_kubernetes() {
        let (checks, tasks) = (ComponentChecks::default(), TaskGroup::new());
        let election = LeaderElection::new("kube-scheduler", "this process");
        let informers = ActiveInformers::default();
        checks.add_scheduler(Some(&election), &informers, &tasks);
        checks.add_controllers(["job-controller"], Some(&election), &informers, &tasks);
        let scheduler = checks.of("kube-scheduler");
        assert_eq!(scheduler.names(Probe::Healthz)[..1], ["leaderElection"]);
        assert_eq!(scheduler.names(Probe::Livez)[..1], ["ping"]);
        let names = ["leaderElection", "shutdown", "sched-handler-sync", "informer-sync"];
        assert_eq!(scheduler.names(Probe::Readyz)[..4], names);
        let names = ["leaderElection", "job-controller", "informer-sync"];
        assert_eq!(checks.of("kube-controller-manager").names(Probe::Healthz), names);
        assert!(failed(&scheduler, Probe::Readyz).await.is_empty());
        tasks.stop();
        assert_eq!(failed(&scheduler, Probe::Readyz).await, ["shutdown"]);
    }

    #[tokio::test]
    async fn unsynced_informer_fails_readiness() {
        let server = testkit::Server::start().await.expect("a server");
        let client = client::Client::connect(&server.kubeconfig, "test").expect("a client");
        let (checks, tasks) = (ComponentChecks::default(), TaskGroup::new());
        let (active, informers) = (ActiveInformers::default(), Informers::new(client, &tasks));
        checks.add_scheduler(None, &active, &tasks);
        active.set(&informers);
        let cache = informers.of::<objects::core::v1::Node>();
        let readiness = checks.of("kube-scheduler");
        // The list has not been read yet: this thread has not yielded.
        assert_eq!(failed(&readiness, Probe::Readyz).await, ["sched-handler-sync", "informer-sync"]);
        cache.synced().await;
        assert!(failed(&readiness, Probe::Readyz).await.is_empty());
        tasks.stop();
        server.stop().await.expect("stopped");
    }
}
