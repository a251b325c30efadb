//! One sync of a pod that should run.

use std::sync::Arc;
use std::time::Duration;

use cri::v1::PodSandboxConfig;
use objects::core::v1::Pod;

use super::kill;
use super::spans;
use super::start::NotStarted;
use super::users;
use super::worker::{Order, Round, Worker};
use crate::configure::sandbox::{self, log_directory};
use crate::configure::sources::of_volumes;
use crate::configure::{hosts, labels};
use crate::engine::EngineError;
use crate::events::Kind;
use crate::lifecycle::plan::Start;
use crate::lifecycle::status::Waiting;
use crate::lifecycle::{KillReason, MemberKind, ObservedPod, ObservedSandbox, PodPlan, plan};
use crate::node::PodAddress;
use crate::probes::{ProbeResults, Target};
use crate::shared::Shared;
use crate::volumes;

/// Time a sync waits for the gate. The pod is synced again afterwards, since it may have been deleted.
const GATE: Duration = Duration::from_secs(20);

impl Worker {
    pub(super) async fn sync(&mut self, order: &Order, observed: ObservedPod) -> Result<Round, EngineError> {
        let pod = &order.pod;
        self.watch_probes(pod, &observed);
        self.resize(pod, &observed).await;
        let next = self.plan(pod, &observed);
        self.note_waiting(pod, &next);
        let published = self.publish_unless_brief(pod, &observed).await;
        let mut wake = [next.wake_at, self.deadline(pod), published].into_iter().flatten().min();
        let failed = match self.act(pod, &next, &observed).await? {
            ActOutcome::Nothing => false,
            ActOutcome::All => false,
            ActOutcome::Some { retry_at } => {
                wake = [wake, retry_at].into_iter().flatten().min();
                retry_at.is_none()
            }
        };
        if !next.is_idle() {
            let observed = self.observe(pod).await?;
            self.watch_probes(pod, &observed);
            let published = self.publish_unless_brief(pod, &observed).await;
            if !next.reset.is_empty() {
                return Ok(Round::Wait(Some(self.shared.clock.now())));
            }
            let again = self.plan(pod, &observed);
            if again.kill_pod && again.create_sandbox.is_none() && !next.kill_pod {
                return Ok(Round::Wait(Some(self.shared.clock.now())));
            }
            wake = [wake, again.wake_at, published].into_iter().flatten().min();
            self.remove_garbage(&observed).await;
        }
        // A rejected resize may succeed later.
        if failed || matches!(self.resizing, Some(Some(_))) {
            return Ok(Round::Retry);
        }
        if let Some(round) = self.refresh_volumes(pod, &observed).await {
            return Ok(round);
        }
        Ok(Round::Wait([wake, self.refresh_at].into_iter().flatten().min()))
    }

    fn plan(&self, pod: &Pod, observed: &ObservedPod) -> PodPlan {
        let verdicts = |id: &str| self.verdict_of(id);
        plan(pod, observed, &verdicts, &self.backoff, &labels::fingerprint, self.shared.clock.now())
    }

    /// Updates the waiting reasons of containers in backoff, and drops expired ones.
    fn note_waiting(&mut self, pod: &Pod, next: &PodPlan) {
        self.waiting.retain(|name, waiting| {
            waiting.reason != "CrashLoopBackOff" || next.backing_off.contains_key(name)
        });
        for (name, message) in &next.backing_off {
            let waiting = Waiting { reason: "CrashLoopBackOff".to_owned(), message: message.clone() };
            if self.waiting.insert(name.clone(), waiting.clone()).as_ref() != Some(&waiting) {
                let meta = &pod.metadata;
                let text = format!(
                    "Back-off restarting failed container {name} in pod {}_{}({})",
                    meta.name.as_deref().unwrap_or(""),
                    meta.namespace.as_deref().unwrap_or(""),
                    self.uid
                );
                self.shared.recorder.container(pod, name, Kind::Warning, "BackOff", text);
            }
        }
    }

    async fn act(
        &mut self,
        pod: &Arc<Pod>,
        next: &PodPlan,
        observed: &ObservedPod,
    ) -> Result<ActOutcome, EngineError> {
        if next.is_idle() {
            return Ok(ActOutcome::Nothing);
        }
        if !next.reset.is_empty() {
            self.remove_all(pod, &next.reset).await?;
            return Ok(ActOutcome::All);
        }
        if next.kill_pod {
            let ip = self.pod_ip(pod);
            let grace = kill::own_grace(pod);
            kill::kill_all_containers(&self.shared, &self.kill_progress, pod, observed, &ip, grace).await;
            if next.create_sandbox.is_none() {
                return Ok(ActOutcome::All);
            }
        }
        for kill in &next.kill {
            match kill.reason {
                KillReason::NeverRan => self.shared.engine.remove_container(&kill.id).await?,
                _ => self.kill_container(pod, kill).await,
            }
        }
        if (next.create_sandbox.is_some() || !next.start.is_empty())
            && let Err(retry) = self.prepare_volumes(pod, observed).await
        {
            return Ok(retry);
        }
        if next.create_sandbox.is_some()
            && let Err(error) = self.shared.dra.prepare(pod).await
        {
            let text = format!("Failed to prepare dynamic resources: prepare dynamic resources: {error}");
            self.shared.recorder.pod(pod, Kind::Warning, "FailedPrepareDynamicResources", text);
            return Ok(ActOutcome::Some { retry_at: None });
        }
        let sandbox = match next.create_sandbox {
            Some(attempt) => self.create_sandbox(pod, attempt).await?,
            None => observed.sandbox().cloned(),
        };
        let Some(sandbox) = sandbox else { return Ok(ActOutcome::Some { retry_at: None }) };
        if !next.start.is_empty() && !self.passes_gate(pod, &sandbox).await {
            let text = "network is not ready: the network policies of the pod are not enforced yet";
            self.shared.recorder.pod(pod, Kind::Warning, "NetworkNotReady", text.to_owned());
            return Ok(ActOutcome::Some { retry_at: None });
        }
        self.write_hosts(pod, &sandbox.ips);
        Ok(self.start_containers(pod, next, &sandbox, observed).await)
    }

    /// Creates the sandbox of the pod; `None` if that failed, which an event reports.
    async fn create_sandbox(
        &mut self,
        pod: &Arc<Pod>,
        attempt: u32,
    ) -> Result<Option<ObservedSandbox>, EngineError> {
        self.put_cgroup(pod);
        let mut config = sandbox::config(pod, attempt, &self.shared.settings, &self.shared.host_dns());
        let resources = config.linux.as_mut().and_then(|linux| linux.resources.as_mut());
        if let Some(resources) = resources.filter(|_| self.shared.cpus.disable_quota(&self.uid)) {
            resources.cpu_quota = -1;
        }
        if let Err(error) = tokio::fs::create_dir_all(&config.log_directory).await {
            tracing::warn!(%error, directory = config.log_directory, "failed to create pod log directory");
        }
        let handler = self.runtime_handler(pod).await;
        let failed = |shared: &Shared, text: String| {
            let text = format!("Failed to create pod sandbox: {text}");
            shared.recorder.pod(pod, Kind::Warning, "FailedCreatePodSandBox", text);
        };
        if let Err(text) = self.users(pod, &handler, &mut config) {
            failed(&self.shared, text);
            return Ok(None);
        }
        let engine = self.shared.engine.clone();
        self.shared.metrics.started_pods.inc();
        let span = spans::call(spans::RUN_POD_SANDBOX);
        let made = self.create_calls.run(async move { engine.run_sandbox(config, &handler).await }).await;
        spans::end(span, &made);
        if users::wanted(pod) {
            self.shared.metrics.pods.user_namespace(made.is_ok());
        }
        let id = match made {
            Ok(id) => id,
            Err(error) => {
                self.shared.metrics.started_pods_errors.inc();
                failed(&self.shared, format!("rpc error: code = {:?} desc = {error}", error.0.code()));
                return Ok(None);
            }
        };
        let seen = self.observe(pod).await?;
        Ok(seen.sandboxes.into_iter().find(|sandbox| sandbox.id == id))
    }

    async fn start_containers(
        &mut self,
        pod: &Arc<Pod>,
        next: &PodPlan,
        sandbox: &ObservedSandbox,
        observed: &ObservedPod,
    ) -> ActOutcome {
        let mut acted = ActOutcome::All;
        for start in &next.start {
            match self.start(pod, start, sandbox, observed).await {
                Ok(()) => {
                    self.shared.metrics.container_started(start.member.kind, None);
                    self.waiting.remove(start.member.name());
                    self.note_restart(start);
                }
                Err(NotStarted { waiting, retry_at, created }) => {
                    self.shared.metrics.container_started(start.member.kind, Some(&waiting.reason));
                    if created {
                        self.note_restart(start);
                    }
                    self.waiting.insert(start.member.name().to_owned(), waiting);
                    acted = acted.and_failed(retry_at);
                    if matches!(start.member.kind, MemberKind::Init | MemberKind::Sidecar) {
                        break;
                    }
                }
            }
        }
        acted
    }

    /// Reports whether containers may start in the sandbox: the gate has admitted it, now or in an earlier sync.
    async fn passes_gate(&mut self, pod: &Pod, sandbox: &ObservedSandbox) -> bool {
        let Some(gate) = self.shared.config.gate.clone().filter(|_| !sandbox.host_network) else {
            return true;
        };
        if self.passed_gate.as_deref() == Some(&*sandbox.id) {
            return true;
        }
        let addresses = sandbox.ips.iter().filter_map(|ip| ip.parse().ok()).collect();
        let text = |text: &'_ Option<String>| text.clone().unwrap_or_default();
        let (namespace, name) = (text(&pod.metadata.namespace), text(&pod.metadata.name));
        let passed = tokio::time::timeout(GATE, gate.pass(&namespace, &name, addresses)).await.is_ok();
        if passed {
            self.passed_gate = Some(sandbox.id.clone());
        }
        passed
    }

    /// Records a failure of this container, which increases its backoff.
    fn note_restart(&mut self, start: &Start) {
        if let Some(ended) = start.ended_at {
            self.backoff.step(start.member.name(), ended, self.shared.clock.now());
        }
    }

    /// Assigns a user namespace to the sandbox if the pod requests one.
    fn users(&self, pod: &Pod, handler: &str, config: &mut PodSandboxConfig) -> Result<(), String> {
        if !users::wanted(pod) {
            return Ok(());
        }
        if !self.shared.engine.features(handler).user_namespaces {
            let whose = match handler {
                "" => "runtime".to_owned(),
                handler => format!("RuntimeClass handler {handler:?}"),
            };
            return Err(format!(
                "can't set `spec.hostUsers: false`, {whose} does not support user namespaces"
            ));
        }
        let range = self.shared.users.of(&self.uid).map_err(|error| error.to_string())?;
        range.apply_to_sandbox(config);
        Ok(())
    }

    async fn runtime_handler(&self, pod: &Pod) -> String {
        let name = pod.spec.as_ref().and_then(|spec| spec.runtime_class_name.clone()).unwrap_or_default();
        if name.is_empty() {
            return String::new();
        }
        let class = self.shared.find::<objects::node::v1::RuntimeClass>("", &name).await;
        class.ok().flatten().map(|class| class.handler).unwrap_or(name)
    }

    fn write_hosts(&self, pod: &Pod, ips: &[String]) {
        let spec = pod.spec.as_ref();
        let aliases = spec.and_then(|spec| spec.host_aliases.as_deref()).unwrap_or_default();
        let host_network = spec.and_then(|spec| spec.host_network) == Some(true);
        let text = if host_network {
            hosts::host_network(&std::fs::read_to_string("/etc/hosts").unwrap_or_default(), aliases)
        } else {
            let (name, domain) = hosts::hostname_and_domain(pod, &self.shared.config.cluster_domain);
            hosts::own_network(ips, &name, &domain, aliases)
        };
        let path = self.directories.etc_hosts();
        if std::fs::read_to_string(&path).is_ok_and(|old| old == text) {
            return;
        }
        if let Err(error) = std::fs::write(&path, text) {
            tracing::warn!(%error, path = %path.display(), "failed to write hosts file");
        }
    }

    /// Mounts volumes; failures are reported as events like Kubernetes'.
    async fn prepare_volumes(&mut self, pod: &Arc<Pod>, observed: &ObservedPod) -> Result<(), ActOutcome> {
        let failed = |text: String| {
            self.shared.recorder.pod(pod, Kind::Warning, "FailedMount", text);
            ActOutcome::Some { retry_at: None }
        };
        if let Err(error) = sys::directories::ensure(&self.directories.root, 0o750) {
            return Err(failed(format!("Unable to attach or mount volumes: {error}")));
        }
        let references = of_volumes(pod);
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
        self.shared.followed.follow(&self.uid, namespace, &references, &self.follower);
        let sources = match self.shared.sources(pod, &references).await {
            Ok(sources) => sources,
            Err(error) => return Err(failed(format!("Unable to attach or mount volumes: {error}"))),
        };
        self.follower.note(namespace, &sources);
        let ips = observed.sandbox().map(|sandbox| sandbox.ips.clone()).unwrap_or_default();
        let allocatable = Arc::clone(&self.shared.allocatable.read());
        let host_ips = self.shared.addresses.ips();
        let facts = self.shared.facts(&ips, &host_ips, &allocatable);
        let context = volumes::VolumeContext {
            client: &self.shared.client,
            pod,
            directories: &self.directories,
            sources: &sources,
            facts: &facts,
            tokens: &self.shared.tokens,
            drivers: &self.shared.drivers,
            recorder: &self.shared.recorder,
            kubelet: &self.shared.config.directory,
            metrics: &self.shared.metrics,
            now: self.shared.clock.now(),
        };
        match volumes::prepare(&context).await {
            Ok(prepared) => {
                let prepared = Arc::new(prepared);
                self.shared.volumes.set(&self.uid, &prepared);
                self.prepared = Some(prepared);
                let has_files =
                    pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()).any(|volume| {
                        volume.config_map.is_some()
                            || volume.secret.is_some()
                            || volume.downward_api.is_some()
                            || volume.projected.is_some()
                            || volume.persistent_volume_claim.is_some()
                            || volume.ephemeral.is_some()
                            || volume.csi.is_some()
                    });
                self.refresh_at = has_files.then(|| self.next_refresh());
                self.prepared_for = Some(Arc::clone(pod));
                Ok(())
            }
            Err((name, error)) => {
                let (reason, step) = if volumes::use_of(pod, &name).mapped {
                    ("FailedMapVolume", "MapVolume.SetUpDevice")
                } else {
                    ("FailedMount", "MountVolume.SetUp")
                };
                let text = format!("{step} failed for volume {name:?} : {error}");
                self.shared.recorder.pod(pod, Kind::Warning, reason, text);
                Err(ActOutcome::Some { retry_at: None })
            }
        }
    }

    /// Refreshes volume content when due.
    async fn refresh_volumes(&mut self, pod: &Arc<Pod>, observed: &ObservedPod) -> Option<Round> {
        let due = match self.refresh_at {
            Some(at) => at <= self.shared.clock.now() || self.downward_fields_changed(pod),
            // First sync after a kubelet restart.
            None => self.prepared.is_none() && !pod.spec.as_ref()?.volumes.as_ref()?.is_empty(),
        };
        if !due && !self.follower.take_stale() {
            return None;
        }
        match self.prepare_volumes(pod, observed).await {
            Ok(()) => None,
            Err(_) => {
                self.refresh_at = Some(self.soon());
                None
            }
        }
    }

    /// Returns true if downward API fields of the pod changed since its volumes were written.
    fn downward_fields_changed(&self, pod: &Pod) -> bool {
        self.prepared_for.as_ref().is_some_and(|before| {
            let (a, b) = (&before.metadata, &pod.metadata);
            a.labels != b.labels || a.annotations != b.annotations || a.generation != b.generation
        })
    }

    /// Creates the pod's cgroup with its limits.
    pub(super) fn put_cgroup(&self, pod: &Pod) {
        if let Err(error) = self.shared.cgroups.put(pod, self.shared.cpus.disable_quota(&self.uid)) {
            tracing::warn!(pod = %self.uid, %error, "failed to apply pod cgroup limits");
        }
    }

    /// Starts probes of newly running containers.
    fn watch_probes(&mut self, pod: &Arc<Pod>, observed: &ObservedPod) {
        let all = pod.spec.as_ref().map(crate::lifecycle::members::members).unwrap_or_default();
        let ips = observed.sandbox().map(|sandbox| sandbox.ips.as_slice()).unwrap_or_default();
        let address = self.address(pod, ips);
        for container in observed.running() {
            let Some(member) = all.iter().find(|member| member.name() == container.name) else { continue };
            let spec = &member.container;
            let probed = spec.startup_probe.is_some()
                || spec.liveness_probe.is_some()
                || spec.readiness_probe.is_some();
            if !probed || self.probes.contains(&container.id) {
                continue;
            }
            let id = format!("{}://{}", self.shared.engine.name(), container.id);
            let mut statuses = pod.status.iter().flat_map(|status| {
                status
                    .container_statuses
                    .iter()
                    .flatten()
                    .chain(status.init_container_statuses.iter().flatten())
            });
            let published = statuses
                .find(|status| self.seen_before && status.container_id.as_deref() == Some(&id))
                .map(|status| ProbeResults { started: status.started == Some(true), ready: status.ready })
                .unwrap_or_default();
            let target = Target {
                engine: self.shared.engine.clone(),
                container_id: container.id.clone(),
                container: spec.clone(),
                address: address.clone(),
            };
            self.probes.add(pod, target, container.started_at, published);
        }
    }

    /// Address of a pod with these sandbox addresses.
    pub(super) fn address(&self, pod: &Pod, ips: &[String]) -> PodAddress {
        match pod.spec.as_ref().and_then(|spec| spec.host_network) {
            Some(true) => PodAddress::Node(Arc::clone(&self.shared.addresses)),
            _ => PodAddress::Own(ips.first().cloned().unwrap_or_default()),
        }
    }

    pub(super) fn log_directory(&self, pod: &Pod) -> std::path::PathBuf {
        log_directory(&self.shared.settings.logs, pod)
    }
}

/// Outcome of executing a plan.
pub(super) enum ActOutcome {
    Nothing,
    All,
    /// Something failed; retried at the given time, if any.
    Some {
        retry_at: Option<jiff::Timestamp>,
    },
}

impl ActOutcome {
    fn and_failed(self, retry_at: Option<jiff::Timestamp>) -> Self {
        match self {
            Self::Some { retry_at: Some(before) } => {
                Self::Some { retry_at: retry_at.map(|at| at.min(before)) }
            }
            Self::Some { retry_at: None } => self,
            Self::Nothing | Self::All => Self::Some { retry_at },
        }
    }
}
