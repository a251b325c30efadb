//! Starting one container.

use std::collections::BTreeMap;
use std::sync::Arc;

use objects::core::v1::Pod;

use super::worker::Worker;
use super::{hooks, pull, users};
use crate::configure::container::{self, Request};
use crate::configure::sandbox;
use crate::configure::sources::of_environment;
use crate::events::Kind;
use crate::lifecycle::plan::Start;
use crate::lifecycle::status::Waiting;
use crate::lifecycle::{Kill, KillReason, Member, Observed, ObservedSandbox};
use crate::volumes::{self, Prepared};

/// A container that does not run: why, and when to try again.
pub(super) struct NotStarted {
    pub waiting: Waiting,
    pub retry_at: Option<jiff::Timestamp>,
    /// It was made, and counts as a failure.
    pub created: bool,
}

fn because(reason: &str, message: String) -> NotStarted {
    NotStarted { waiting: Waiting { reason: reason.to_owned(), message }, retry_at: None, created: false }
}

/// Most bytes of a file of variables.
const LARGEST: u64 = 1 << 20;

/// The files that the container's variables come from, as far as they are there.
fn files(member: &Member, prepared: &Prepared) -> Result<BTreeMap<(String, String), String>, String> {
    let mut found = BTreeMap::new();
    for env in member.container.env.iter().flatten() {
        let Some(key) = env.value_from.as_ref().and_then(|from| from.file_key_ref.as_ref()) else { continue };
        let volume = prepared.get(&key.volume_name).filter(|volume| !volume.device && volume.image.is_none());
        let Some(volume) = volume else {
            return Err(format!("cannot find the volume {:?} referenced by FileKeyRef", key.volume_name));
        };
        let text = volumes::read_file(&volume.path, &key.path, LARGEST)
            .map_err(|error| format!("failed to open environment variable file {:?}: {error}", key.path))?;
        found.extend(text.map(|text| ((key.volume_name.clone(), key.path.clone()), text)));
    }
    Ok(found)
}

impl Worker {
    pub(super) async fn start(
        &mut self,
        pod: &Arc<Pod>,
        start: &Start,
        on: &ObservedSandbox,
        observed: &Observed,
    ) -> Result<(), NotStarted> {
        let shared = Arc::clone(&self.shared);
        let member = &start.member;
        let name = member.name();
        let tell = |kind, reason, text: String| shared.recorder.container(pod, name, kind, reason, text);
        let mut sandbox_config = sandbox::config(pod, on.attempt, &shared.settings);

        let image_name = member.container.image.clone().unwrap_or_default();
        let policy = member.container.image_pull_policy.as_deref().unwrap_or("IfNotPresent");
        let image = pull::ensure(&shared, pod, name, &image_name, policy, &sandbox_config).await;
        let image = image.map_err(|none| {
            tell(Kind::Warning, "Failed", format!("Error: {}", none.waiting.reason));
            NotStarted { waiting: none.waiting, retry_at: none.retry_at, created: false }
        })?;
        let mut volume_images = BTreeMap::new();
        let prepared = self.prepared.clone().unwrap_or_default();
        for (volume, ready) in prepared.iter() {
            let used = member.container.volume_mounts.iter().flatten().any(|mount| mount.name == *volume);
            if let Some((reference, policy)) = ready.image.as_ref().filter(|_| used) {
                let pulled = pull::ensure(&shared, pod, name, reference, policy, &sandbox_config).await;
                let pulled = pulled.map_err(|none| NotStarted {
                    waiting: none.waiting,
                    retry_at: none.retry_at,
                    created: false,
                })?;
                volume_images.insert(volume.clone(), pulled.id);
            }
        }

        let wrong = |text: String| {
            tell(Kind::Warning, "Failed", format!("Error: {text}"));
            because("CreateContainerConfigError", text)
        };
        let references = of_environment(pod);
        let mut sources = shared.sources(pod, &references).await.map_err(|error| wrong(error.to_string()))?;
        sources.files = files(member, &prepared).map_err(wrong)?;
        let allocatable = Arc::clone(&shared.allocatable.read());
        let host_network = pod.spec.as_ref().and_then(|spec| spec.host_network) == Some(true);
        let ips = if host_network { &shared.settings.host_ips } else { &on.ips };
        let facts = shared.facts(ips, &allocatable);
        let environment = container::environment(pod, member, &sources, &facts)
            .map_err(|error| wrong(error.to_string()))?;
        let restarts = self.restarts(pod, start);
        let recursive = shared.engine.features("").recursive_read_only_mounts;
        let mounts = volumes::mounts(
            member,
            restarts,
            &prepared,
            &self.directories,
            &environment,
            recursive,
            &|volume| volume_images.get(volume).cloned().unwrap_or_default(),
        )
        .map_err(|error| wrong(error.to_string()))?;
        let devices = volumes::devices(member, &prepared).map_err(|error| wrong(error.to_string()))?;
        let target = member
            .target
            .as_deref()
            .and_then(|target| observed.container(target))
            .map(|target| target.id.as_str());
        let mut config = container::config(Request {
            pod,
            member,
            restarts,
            image_ref: &image.id,
            image_user: &image.user,
            facts: &facts,
            node: &shared.settings,
            mounts,
            devices,
            target,
            volume_groups: &[],
            environment: &environment,
        })
        .map_err(|error| wrong(error.to_string()))?;
        if users::wanted(pod) {
            let range = shared.users.of(&self.uid).map_err(|error| wrong(error.to_string()))?;
            range.tell_sandbox(&mut sandbox_config);
            range.tell_container(&mut config);
        }
        let logs = self.log_directory(pod).join(name);
        tokio::fs::create_dir_all(&logs).await.map_err(|error| wrong(error.to_string()))?;

        let (engine, sandbox) = (shared.engine.clone(), on.id.clone());
        let create = async move { engine.create_container(&sandbox, config, sandbox_config).await };
        let created = self.making.run(create).await;
        let id = created.map_err(|error| {
            tell(Kind::Warning, "Failed", format!("Error: {error}"));
            because("CreateContainerError", error.to_string())
        })?;
        tell(Kind::Normal, "Created", "Container created".to_owned());
        let (engine, made) = (shared.engine.clone(), id.clone());
        let started = self.making.run(async move { engine.start_container(&made).await }).await;
        if let Err(error) = started {
            tell(Kind::Warning, "Failed", format!("Error: {error}"));
            return Err(NotStarted { created: true, ..because("RunContainerError", error.to_string()) });
        }
        tell(Kind::Normal, "Started", "Container started".to_owned());
        tracing::info!(pod = %self.uid, container = name, id, restarts, "started");

        let hook = member.container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.post_start.as_ref());
        let Some(hook) = hook else { return Ok(()) };
        let ip = ips.first().map(String::as_str).unwrap_or_default();
        if let Err(text) = hooks::run(&shared.engine, hook, &id, &member.container, pod, ip).await {
            tell(Kind::Warning, "FailedPostStartHook", "PostStartHook failed".to_owned());
            let kill = Kill {
                id,
                name: name.to_owned(),
                reason: KillReason::PodEnds,
                message: "FailedPostStartHook".to_owned(),
            };
            self.end_one(pod, &kill).await;
            return Err(NotStarted { created: true, ..because("PostStartHookError", text) });
        }
        Ok(())
    }

    /// How often the container was started before. A runtime that lost its memory is reminded by the status.
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
