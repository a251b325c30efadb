//! Starts one container.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use cri::v1::{ContainerConfig, PodSandboxConfig};
use objects::core::v1::Pod;

use super::pull::NoImage;
use super::worker::Worker;
use super::{hooks, pull, spans, users};
use crate::configure::container::{self, Request};
use crate::configure::sandbox;
use crate::configure::sources::{Sources, of_environment};
use crate::devices::DeviceOptions;
use crate::engine::PresentImage;
use crate::events::Kind;
use crate::lifecycle::plan::Start;
use crate::lifecycle::status::Waiting;
use crate::lifecycle::{Kill, KillReason, Member, ObservedPod, ObservedSandbox};
use crate::shared::Shared;
use crate::volumes::{self, Prepared};

/// A container that was not started: waiting reason and retry time.
pub(super) struct NotStarted {
    pub waiting: Waiting,
    pub retry_at: Option<jiff::Timestamp>,
    /// It was created, which counts as a failed start.
    pub created: bool,
}

fn not_started(reason: &str, message: String) -> NotStarted {
    NotStarted { waiting: Waiting { reason: reason.to_owned(), message }, retry_at: None, created: false }
}

fn text(error: impl ToString) -> String {
    error.to_string()
}

/// Maximum size of an environment file.
const MAX_ENV_FILE: u64 = 1 << 20;

/// Environment files of the container that exist.
fn files(member: &Member, prepared: &Prepared) -> Result<BTreeMap<(String, String), String>, String> {
    let mut found = BTreeMap::new();
    for env in member.container.env.iter().flatten() {
        let Some(key) = env.value_from.as_ref().and_then(|from| from.file_key_ref.as_ref()) else { continue };
        let volume = prepared.get(&key.volume_name).filter(|volume| !volume.device && volume.image.is_none());
        let Some(volume) = volume else {
            return Err(format!("cannot find the volume {:?} referenced by FileKeyRef", key.volume_name));
        };
        let text = volumes::read_file(&volume.path, &key.path, MAX_ENV_FILE)
            .map_err(|error| format!("failed to open environment variable file {:?}: {error}", key.path))?;
        found.extend(text.map(|text| ((key.volume_name.clone(), key.path.clone()), text)));
    }
    Ok(found)
}

/// Events of one container.
struct Events<'a> {
    shared: &'a Shared,
    pod: &'a Pod,
    container: &'a str,
}

impl Events<'_> {
    fn record(&self, kind: Kind, reason: &'static str, text: impl Into<String>) {
        self.shared.recorder.container(self.pod, self.container, kind, reason, text);
    }

    /// Records that the container was not started, for the waiting `reason`.
    fn failed(&self, reason: &str, error: impl ToString) -> NotStarted {
        let error = error.to_string();
        self.record(Kind::Warning, "Failed", format!("Error: {error}"));
        not_started(reason, error)
    }
}

/// Images of the container, and of its image volumes by volume name.
struct Images {
    container: PresentImage,
    volumes: BTreeMap<String, String>,
}

impl Worker {
    pub(super) async fn start(
        &mut self,
        pod: &Arc<Pod>,
        start: &Start,
        on: &ObservedSandbox,
        observed: &ObservedPod,
    ) -> Result<(), NotStarted> {
        let shared = Arc::clone(&self.shared);
        let (member, name) = (&start.member, start.member.name());
        let events = Events { shared: &shared, pod, container: name };
        let mut sandbox_config = sandbox::config(pod, on.attempt, &shared.settings, &shared.host_dns());
        let begun = Instant::now();
        let images = self.pull_images(&events, member, &sandbox_config).await;
        self.startup.pulled(begun.elapsed());
        let images = images?;

        let references = of_environment(pod);
        let sources = shared.sources(pod, &references).await;
        let sources = sources.map_err(|error| events.failed("CreateContainerConfigError", error))?;
        let restarts = self.restarts(pod, start);
        let target = member.target.as_deref().and_then(|target| observed.container(target));
        let target = target.map(|target| target.id.as_str());
        let devices = shared.devices.options(pod, &member.container).await;
        let mut devices = devices.map_err(|error| events.failed("CreateContainerConfigError", error))?;
        let claimed = shared.dra.cdi_devices(pod, &member.container);
        let claimed = claimed.map_err(|error| events.failed("CreateContainerConfigError", error))?;
        claimed.iter().for_each(|name| devices.add_cdi_device(name));
        let config = self
            .configure(pod, member, restarts, on, &images, sources, target, devices, &mut sandbox_config)
            .map_err(|error| events.failed("CreateContainerConfigError", error))?;
        let logs = self.log_directory(pod).join(name);
        let made = tokio::fs::create_dir_all(&logs).await;
        made.map_err(|error| events.failed("CreateContainerConfigError", error))?;

        let created = self.create_and_start(&events, &on.id, config, sandbox_config).await;
        if !images.volumes.is_empty() {
            let error = created.as_ref().err().map(|error| error.waiting.message.as_str());
            shared.metrics.pods.image_volumes(images.volumes.len(), error);
        }
        let id = created?;
        tracing::info!(pod = %self.uid, container = name, id, restarts, "container started");
        self.post_start(&events, pod, member, on, id).await
    }

    async fn pull_images(
        &mut self,
        events: &Events<'_>,
        member: &Member,
        sandbox_config: &PodSandboxConfig,
    ) -> Result<Images, NotStarted> {
        let Events { shared, pod, container: name } = *events;
        let none =
            |none: NoImage| NotStarted { waiting: none.waiting, retry_at: none.retry_at, created: false };
        let image_name = member.container.image.clone().unwrap_or_default();
        let policy = member.container.image_pull_policy.as_deref().unwrap_or("IfNotPresent");
        let image = pull::ensure(shared, pod, name, &image_name, policy, sandbox_config).await;
        let image = image.map_err(|missing| {
            events.record(Kind::Warning, "Failed", format!("Error: {}", missing.waiting.reason));
            none(missing)
        })?;
        let mut images = Images { container: image, volumes: BTreeMap::new() };
        let prepared = self.prepared.clone().unwrap_or_default();
        for (volume, ready) in prepared.iter() {
            let used = member.container.volume_mounts.iter().flatten().any(|mount| mount.name == *volume);
            if let Some((reference, policy)) = ready.image.as_ref().filter(|_| used) {
                let pulled = pull::ensure(shared, pod, name, reference, policy, sandbox_config).await;
                images.volumes.insert(volume.clone(), pulled.map_err(none)?.id);
            }
        }
        Ok(images)
    }

    /// CRI configuration of the container.
    #[expect(clippy::too_many_arguments, reason = "inputs of one configuration")]
    fn configure(
        &self,
        pod: &Pod,
        member: &Member,
        restarts: u32,
        on: &ObservedSandbox,
        images: &Images,
        mut sources: Sources,
        target: Option<&str>,
        device_options: DeviceOptions,
        sandbox_config: &mut PodSandboxConfig,
    ) -> Result<ContainerConfig, String> {
        let shared = &self.shared;
        let prepared = self.prepared.clone().unwrap_or_default();
        sources.files = files(member, &prepared)?;
        let allocatable = Arc::clone(&shared.allocatable.read());
        let host_ips = shared.addresses.ips();
        let host_network = pod.spec.as_ref().and_then(|spec| spec.host_network) == Some(true);
        let pod_ips = if host_network { &host_ips } else { &on.ips[..] };
        let facts = shared.facts(pod_ips, &host_ips, &allocatable);
        let environment = container::environment(pod, member, &sources, &facts).map_err(text)?;
        let mounts = volumes::mounts(&volumes::MountInputs {
            member,
            restarts,
            prepared: &prepared,
            directories: &self.directories,
            environment: &environment,
            recursive_read_only: shared.engine.features("").recursive_read_only_mounts,
            images: &images.volumes,
        })
        .map_err(text)?;
        let devices = volumes::devices(member, &prepared).map_err(text)?;
        let mut config = container::config(Request {
            pod,
            member,
            restarts,
            image_ref: &images.container.id,
            image_user: &images.container.user,
            facts: &facts,
            node: &shared.settings,
            mounts,
            devices,
            device_options,
            target,
            volume_groups: &[],
            environment: &environment,
        })
        .map_err(text)?;
        config.linux.get_or_insert_default().resources = Some(self.limits_of(pod, &member.container));
        if users::wanted(pod) {
            let range = shared.users.of(&self.uid).map_err(text)?;
            range.apply_to_sandbox(sandbox_config);
            range.apply_to_container(&mut config);
        }
        Ok(config)
    }

    /// Creates and starts the container; returns its ID.
    async fn create_and_start(
        &mut self,
        events: &Events<'_>,
        sandbox: &str,
        config: ContainerConfig,
        sandbox_config: PodSandboxConfig,
    ) -> Result<String, NotStarted> {
        let (engine, sandbox) = (self.shared.engine.clone(), sandbox.to_owned());
        let create = async move { engine.create_container(&sandbox, config, sandbox_config).await };
        let span = spans::call_of_container(spans::CREATE_CONTAINER, events.container);
        let created = self.create_calls.run(create).await;
        spans::end(span, &created);
        let id = created.map_err(|error| events.failed("CreateContainerError", error))?;
        events.record(Kind::Normal, "Created", "Container created");
        let (engine, made) = (self.shared.engine.clone(), id.clone());
        let span = spans::call_of_container(spans::START_CONTAINER, events.container);
        let started = self.create_calls.run(async move { engine.start_container(&made).await }).await;
        spans::end(span, &started);
        if let Err(error) = started {
            return Err(NotStarted { created: true, ..events.failed("RunContainerError", error) });
        }
        events.record(Kind::Normal, "Started", "Container started");
        Ok(id)
    }

    /// Runs the postStart hook; the container is killed if it fails.
    async fn post_start(
        &mut self,
        events: &Events<'_>,
        pod: &Arc<Pod>,
        member: &Member,
        on: &ObservedSandbox,
        id: String,
    ) -> Result<(), NotStarted> {
        let hook = member.container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.post_start.as_ref());
        let Some(hook) = hook else { return Ok(()) };
        let ip = self.address(pod, &on.ips).ip();
        let engine = self.shared.engine.clone();
        let Err(text) = hooks::run(&engine, hook, &id, &member.container, pod, &ip).await else {
            return Ok(());
        };
        events.record(Kind::Warning, "FailedPostStartHook", "PostStartHook failed");
        let kill = Kill {
            id,
            name: member.name().to_owned(),
            reason: KillReason::PodEnds,
            message: "FailedPostStartHook".to_owned(),
        };
        self.kill_container(pod, &kill).await;
        Err(NotStarted { created: true, ..not_started("PostStartHookError", text) })
    }

    /// Restart count of the container; the status fills in for a runtime that lost its state.
    fn restarts(&self, pod: &Pod, start: &Start) -> u32 {
        if start.restarts > 0 {
            return start.restarts;
        }
        let logs = self.log_directory(pod).join(start.member.name());
        let Ok(entries) = std::fs::read_dir(logs) else { return 0 };
        let numbers = entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.strip_suffix(".log")?.parse::<u32>().ok());
        numbers.max().map_or(0, |last| last.saturating_add(1))
    }
}
