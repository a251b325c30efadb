//! One round for a pod that should run.

use std::sync::Arc;
use std::time::Duration;

use cri::v1::PodSandboxConfig;
use objects::core::v1::Pod;

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
use crate::lifecycle::{KillReason, MemberKind, Observed, ObservedSandbox, Plan, plan};
use crate::probes::Target;
use crate::volumes;

/// Time a sync waits for the gate. The pod is synced again afterwards, since it may have been deleted.
const GATE: Duration = Duration::from_secs(20);

impl Worker {
    pub(super) async fn sync(&mut self, order: &Order, observed: Observed) -> Result<Round, EngineError> {
        let pod = &order.pod;
        self.watch_probes(pod, &observed);
        self.resize(pod, &observed).await;
        let next = self.plan(pod, &observed);
        self.note_waiting(pod, &next);
        self.publish(pod, &observed, false).await;
        let mut wake = [next.wake_at, self.deadline(pod)].into_iter().flatten().min();
        let failed = match self.act(pod, &next, &observed).await? {
            Acted::Nothing => false,
            Acted::All => false,
            Acted::Some { retry_at } => {
                wake = [wake, retry_at].into_iter().flatten().min();
                retry_at.is_none()
            }
        };
        if !next.is_idle() {
            let observed = self.observe(pod).await?;
            self.watch_probes(pod, &observed);
            self.publish(pod, &observed, false).await;
            if !next.reset.is_empty() {
                return Ok(Round::Wait(Some(self.shared.clock.now())));
            }
            let again = self.plan(pod, &observed);
            if again.kill_pod && again.create_sandbox.is_none() && !next.kill_pod {
                return Ok(Round::Wait(Some(self.shared.clock.now())));
            }
            wake = [wake, again.wake_at].into_iter().flatten().min();
            self.remove_garbage(&observed).await;
        }
        // What the runtime would not do it may do later.
        if failed || matches!(self.resizing, Some(Some(_))) {
            return Ok(Round::Retry);
        }
        if let Some(round) = self.refresh_volumes(pod, &observed).await {
            return Ok(round);
        }
        Ok(Round::Wait([wake, self.refresh_at].into_iter().flatten().min()))
    }

    fn plan(&self, pod: &Pod, observed: &Observed) -> Plan {
        let verdicts = |id: &str| self.verdict_of(id);
        plan(pod, observed, &verdicts, &self.backoff, &labels::fingerprint, self.shared.clock.now())
    }

    /// Reasons of containers that wait for their restart; those that do not any more are forgotten.
    fn note_waiting(&mut self, pod: &Pod, next: &Plan) {
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

    async fn act(&mut self, pod: &Arc<Pod>, next: &Plan, observed: &Observed) -> Result<Acted, EngineError> {
        if next.is_idle() {
            return Ok(Acted::Nothing);
        }
        if !next.reset.is_empty() {
            self.remove_all(pod, &next.reset).await?;
            return Ok(Acted::All);
        }
        if next.kill_pod {
            self.end_all(pod, observed, None).await;
            if next.create_sandbox.is_none() {
                return Ok(Acted::All);
            }
        }
        for kill in &next.kill {
            match kill.reason {
                KillReason::NeverRan => self.shared.engine.remove_container(&kill.id).await?,
                _ => self.end_one(pod, kill).await,
            }
        }
        let mut sandbox = observed.sandbox().cloned();
        if (next.create_sandbox.is_some() || !next.start.is_empty())
            && let Err(retry) = self.prepare_volumes(pod, observed).await
        {
            return Ok(retry);
        }
        if let Some(attempt) = next.create_sandbox {
            self.put_cgroup(pod);
            let mut config = sandbox::config(pod, attempt, &self.shared.settings);
            if let Err(error) = tokio::fs::create_dir_all(&config.log_directory).await {
                tracing::warn!(%error, directory = config.log_directory, "no directory for logs");
            }
            let handler = self.runtime_handler(pod).await;
            if let Err(text) = self.users(pod, &handler, &mut config) {
                let text = format!("Failed to create pod sandbox: {text}");
                self.shared.recorder.pod(pod, Kind::Warning, "FailedCreatePodSandBox", text);
                return Ok(Acted::Some { retry_at: None });
            }
            let engine = self.shared.engine.clone();
            let made = self.making.run(async move { engine.run_sandbox(config, &handler).await }).await;
            let id = match made {
                Ok(id) => id,
                Err(error) => {
                    let text = format!(
                        "Failed to create pod sandbox: rpc error: code = {:?} desc = {error}",
                        error.0.code()
                    );
                    self.shared.recorder.pod(pod, Kind::Warning, "FailedCreatePodSandBox", text);
                    return Ok(Acted::Some { retry_at: None });
                }
            };
            let seen = self.observe(pod).await?;
            sandbox = seen.sandboxes.into_iter().find(|sandbox| sandbox.id == id);
        }
        let Some(sandbox) = sandbox else { return Ok(Acted::Some { retry_at: None }) };
        if !next.start.is_empty() && !self.passes_gate(pod, &sandbox).await {
            let text = "network is not ready: the network policies of the pod are not in force yet";
            self.shared.recorder.pod(pod, Kind::Warning, "NetworkNotReady", text.to_owned());
            return Ok(Acted::Some { retry_at: None });
        }
        self.write_hosts(pod, &sandbox.ips);
        let mut acted = Acted::All;
        for start in &next.start {
            match self.start(pod, start, &sandbox, observed).await {
                Ok(()) => {
                    self.waiting.remove(start.member.name());
                    self.note_restart(start);
                }
                Err(NotStarted { waiting, retry_at, created }) => {
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
        Ok(acted)
    }

    /// Reports whether containers may start in the sandbox: the gate has let it pass, now or in an earlier round.
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

    /// The next failure of this container waits longer than the one before it.
    fn note_restart(&mut self, start: &Start) {
        if let Some(ended) = start.ended_at {
            self.backoff.step(start.member.name(), ended, self.shared.clock.now());
        }
    }

    /// Gives the sandbox users of its own, if the pod asks for that.
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
        range.tell_sandbox(config);
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
            tracing::warn!(%error, path = %path.display(), "no hosts file");
        }
    }

    /// Makes volumes ready; what is wrong with them is told as Kubernetes does.
    async fn prepare_volumes(&mut self, pod: &Arc<Pod>, observed: &Observed) -> Result<(), Acted> {
        let failed = |text: String| {
            self.shared.recorder.pod(pod, Kind::Warning, "FailedMount", text);
            Acted::Some { retry_at: None }
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
        let facts = self.shared.facts(&ips, &allocatable);
        let context = volumes::Context {
            client: &self.shared.client,
            pod,
            directories: &self.directories,
            sources: &sources,
            facts: &facts,
            tokens: &self.shared.tokens,
            drivers: &self.shared.drivers,
            recorder: &self.shared.recorder,
            kubelet: &self.shared.config.directory,
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
                Err(Acted::Some { retry_at: None })
            }
        }
    }

    /// Brings the contents of volumes up to date when that is due.
    async fn refresh_volumes(&mut self, pod: &Arc<Pod>, observed: &Observed) -> Option<Round> {
        let due = match self.refresh_at {
            Some(at) => at <= self.shared.clock.now() || self.tells_otherwise(pod),
            // After a restart of the kubelet.
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

    /// Whether the pod says something else of itself than when its volumes were written.
    fn tells_otherwise(&self, pod: &Pod) -> bool {
        self.prepared_for.as_ref().is_some_and(|before| {
            let (a, b) = (&before.metadata, &pod.metadata);
            a.labels != b.labels || a.annotations != b.annotations || a.generation != b.generation
        })
    }

    /// Makes the pod's control group, with its limits.
    pub(super) fn put_cgroup(&self, pod: &Pod) {
        if let Err(error) = self.shared.cgroups.put(pod) {
            tracing::warn!(pod = %self.uid, %error, "the pod's control group has not the limits it should have");
        }
    }

    /// Begins to probe containers that have come to run.
    fn watch_probes(&mut self, pod: &Arc<Pod>, observed: &Observed) {
        let all = pod.spec.as_ref().map(crate::lifecycle::members::members).unwrap_or_default();
        let ips = observed.sandbox().map(|sandbox| sandbox.ips.as_slice()).unwrap_or_default();
        let host_network = pod.spec.as_ref().and_then(|spec| spec.host_network) == Some(true);
        let ip = if host_network { self.shared.settings.host_ips.first() } else { ips.first() };
        for container in observed.running() {
            let Some(member) = all.iter().find(|member| member.name() == container.name) else { continue };
            let spec = &member.container;
            let probed = spec.startup_probe.is_some()
                || spec.liveness_probe.is_some()
                || spec.readiness_probe.is_some();
            if !probed || self.probes.knows(&container.id) {
                continue;
            }
            let id = format!("{}://{}", self.shared.engine.name(), container.id);
            let statuses = pod.status.iter().flat_map(|status| {
                status
                    .container_statuses
                    .iter()
                    .flatten()
                    .chain(status.init_container_statuses.iter().flatten())
            });
            let was_started = self.seen_before
                && statuses.into_iter().any(|status| {
                    status.container_id.as_deref() == Some(&id) && status.started == Some(true)
                });
            let target = Target {
                engine: self.shared.engine.clone(),
                container_id: container.id.clone(),
                container: spec.clone(),
                pod_ip: ip.cloned().unwrap_or_default(),
            };
            self.probes.add(pod, target, container.started_at, was_started);
        }
    }

    pub(super) fn log_directory(&self, pod: &Pod) -> std::path::PathBuf {
        log_directory(&self.shared.settings.logs, pod)
    }
}

/// What became of a plan.
pub(super) enum Acted {
    Nothing,
    All,
    /// Something failed; with a time, it waits for that.
    Some {
        retry_at: Option<jiff::Timestamp>,
    },
}

impl Acted {
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
