//! Containers: created, started, watched, stopped, removed.

use std::io::BufReader;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cri::v1::ContainerEventType;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use sys::cgroups::Hierarchy;
use sys::process;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use super::records::{self, Container, ContainerMeta, Exited, Phase};
use super::{Doing, Runtime, RuntimeError, now};
use crate::launch::{self, read_report};
use crate::shim::{Started, Task};

/// Time limit for a killed container to exit.
const KILL_TIMEOUT: Duration = Duration::from_secs(60);
/// Exit code of a container that never ran, as in other runtimes.
const NEVER_RAN: i32 = 128;
/// Exit code of a container whose exit was not observed.
const UNKNOWN_EXIT_CODE: i32 = 255;

impl Runtime {
    pub(super) async fn start_container(
        self: &Arc<Self>,
        container: &Arc<Container>,
    ) -> Result<(), RuntimeError> {
        let _alone = container.changing.lock().await;
        if *container.phase.borrow() != Phase::Created {
            return Err(RuntimeError::Conflict("the container was started already".to_owned()));
        }
        if !self.sandbox(&container.meta.sandbox)?.ready() {
            return Err(RuntimeError::Conflict("the container's sandbox is not ready".to_owned()));
        }
        let directory = container.directory.clone();
        let outcome = self
            .blocking(move |runtime| {
                let lock = launch::lock(&directory).doing(|| "lock the container".to_owned())?;
                let log = directory.join("shim.log");
                let socket = runtime.launcher.spawn(Task::Container, &directory, &log, Some(lock))?;
                Ok(read_report(&mut BufReader::new(&socket))?)
            })
            .await;
        if let Err(error) = outcome {
            let exited = Exited {
                code: NEVER_RAN,
                at: now(),
                reason: "StartError".to_owned(),
                message: error.to_string(),
                ..Exited::default()
            };
            records::write(&container.directory.join("exit"), &exited)?;
            container.phase.send_replace(Phase::Exited { started: 0, exited });
            return Err(error);
        }
        let started: Option<Started> = records::read(&container.directory.join("started"))?;
        let started =
            started.ok_or_else(|| RuntimeError::NotFound("the container's state is missing".to_owned()))?;
        if let Some(identity) = &started.identity {
            let _ = container.identity.set(identity.clone());
        }
        container.phase.send_replace(Phase::Running(started.clone()));
        self.emit(container, ContainerEventType::ContainerStartedEvent);
        self.watch(Arc::clone(container), &started);
        Ok(())
    }

    /// Watches a container's shim until it exits.
    fn watch(self: &Arc<Self>, container: Arc<Container>, started: &Started) {
        let opened = Pid::from_raw(started.shim_pid)
            .ok_or(rustix::io::Errno::SRCH)
            .and_then(|pid| pidfd_open(pid, PidfdFlags::NONBLOCK));
        let runtime = Arc::clone(self);
        let started = started.clone();
        self.tasks.spawn(async move {
            if let Ok(descriptor) = opened
                && process::start_time(started.shim_pid).ok() == Some(started.shim_start_time)
            {
                match watchable(descriptor) {
                    Ok(shim) => {
                        if runtime.tasks.until_stopped(shim.readable()).await.is_none() {
                            return;
                        }
                    }
                    Err(error) => {
                        tracing::error!(%error, "failed to watch container process");
                        return;
                    }
                }
            }
            let ours = Arc::clone(&container);
            let ended = runtime.blocking(move |runtime| runtime.record_exit(&ours, &started)).await;
            match ended {
                Ok(phase) => {
                    container.phase.send_replace(phase);
                    runtime.emit(&container, ContainerEventType::ContainerStoppedEvent);
                    if !runtime.state.read().containers.values().any(|other| other.running().is_some()) {
                        sys::cgroups::detach::remove_if_empty(crate::shim::GROUP);
                    }
                }
                Err(error) => {
                    tracing::error!(%error, container = container.meta.id, "failed to record container exit")
                }
            }
        });
    }

    /// After the shim's exit: reads the container's exit record. If the shim left none, cleans up in its place.
    fn record_exit(&self, container: &Container, started: &Started) -> Result<Phase, RuntimeError> {
        let path = container.directory.join("exit");
        if let Some(exited) = records::read(&path)? {
            return Ok(Phase::Exited { started: started.at, exited });
        }
        let group =
            Hierarchy::detect().doing(|| "find the control groups".to_owned())?.group(&container.meta.cgroup);
        if let Some(group) = group {
            group.kill(KILL_TIMEOUT).doing(|| "end a container without a shim".to_owned())?;
            group.remove().doing(|| "remove a control group".to_owned())?;
        }
        let exited = Exited {
            code: UNKNOWN_EXIT_CODE,
            at: now(),
            message: "the container's shim exited before the container".to_owned(),
            ..Exited::default()
        };
        records::write(&path, &exited)?;
        Ok(Phase::Exited { started: started.at, exited })
    }

    /// Sends the stop signal to a container, and kills it after the grace period.
    pub(super) async fn stop_container(
        self: &Arc<Self>,
        container: &Arc<Container>,
        grace: i64,
    ) -> Result<(), RuntimeError> {
        let Some(started) = container.running() else { return Ok(()) };
        let mut phase = container.phase.subscribe();
        let signal = |number: i32| {
            // The pid may have been reused by now.
            if process::start_time(started.pid).ok() == Some(started.start_time) {
                process::kill(started.pid, number).doing(|| "signal the container".to_owned())
            } else {
                Ok(())
            }
        };
        if let Ok(grace) = u64::try_from(grace)
            && grace > 0
        {
            signal(container.meta.stop_signal)?;
            if ended(&mut phase, Duration::from_secs(grace)).await {
                return Ok(());
            }
        }
        signal(9)?;
        if ended(&mut phase, KILL_TIMEOUT).await {
            return Ok(());
        }
        Err(RuntimeError::TimedOut(format!("container {} did not exit after SIGKILL", container.meta.id)))
    }

    pub(super) async fn remove_container(
        self: &Arc<Self>,
        container: &Arc<Container>,
    ) -> Result<(), RuntimeError> {
        self.stop_container(container, 0).await?;
        let _alone = container.changing.lock().await;
        // It may have been started in between.
        self.stop_container(container, 0).await?;
        let directory = container.directory.clone();
        self.blocking(move |_| {
            records::hide_and_remove(&directory)?;
            records::remove_private(&directory)
        })
        .await?;
        if self.state.write().containers.remove(&container.meta.id).is_some() {
            self.emit(container, ContainerEventType::ContainerDeletedEvent);
        }
        Ok(())
    }

    /// Restores the containers of an earlier daemon, and watches those that run.
    pub(super) fn restore_containers(self: &Arc<Self>) -> Result<(), RuntimeError> {
        let boot = process::boot_id().doing(|| "read the boot id".to_owned())?;
        let directories = records::directories(&self.config.root.join("containers"))?;
        records::migrate_private(&self.config.root, &directories)?;
        for directory in directories {
            let meta: Option<ContainerMeta> = records::read(&directory.join("meta.json"))?;
            let (Some(meta), Some(config)) = (meta, records::read_config(&directory)?) else {
                records::remove_tree(&directory)?;
                continue;
            };
            // A shim started by an earlier daemon may still be starting.
            launch::settled(&directory);
            let started: Option<Started> = records::read(&directory.join("started"))?;
            let exited: Option<Exited> = records::read(&directory.join("exit"))?;
            let began = started.as_ref().map_or(0, |started| started.at);
            let identity = started.as_ref().and_then(|started| started.identity.clone());
            let phase = match (started, exited) {
                (_, Some(exited)) => Phase::Exited { started: began, exited },
                (None, None) => Phase::Created,
                (Some(mut started), None) => {
                    if started.boot_id != boot {
                        started.shim_start_time = u64::MAX;
                    }
                    Phase::Running(started)
                }
            };
            let id = meta.id.clone();
            let container = Arc::new(Container {
                directory,
                resources: parking_lot::Mutex::new(config_resources(&config)),
                config,
                meta,
                identity: identity.map_or_else(OnceLock::new, OnceLock::from),
                phase: watch::Sender::new(phase.clone()),
                changing: tokio::sync::Mutex::default(),
            });
            self.state.write().containers.insert(id, Arc::clone(&container));
            if let Phase::Running(started) = phase {
                self.watch(container, &started);
            }
        }
        Ok(())
    }
}

pub(super) fn config_resources(
    config: &cri::v1::ContainerConfig,
) -> Option<cri::v1::LinuxContainerResources> {
    config.linux.as_ref().and_then(|linux| linux.resources.clone())
}

async fn ended(phase: &mut watch::Receiver<Phase>, patience: Duration) -> bool {
    let exited = phase.wait_for(|phase| matches!(phase, Phase::Exited { .. }));
    matches!(tokio::time::timeout(patience, exited).await, Ok(Ok(_)))
}

#[expect(unsafe_code, reason = "the descriptor must stay open while it is watched")]
fn watchable(descriptor: OwnedFd) -> std::io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the descriptor is owned by what is returned, and closed after it is no longer watched.
    Ok(unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) }?)
}

/// Reason of a container's exit.
pub(super) fn reason(exited: &Exited) -> &str {
    match exited {
        Exited { reason, .. } if !reason.is_empty() => reason,
        Exited { out_of_memory: true, .. } => "OOMKilled",
        Exited { code: 0, .. } => "Completed",
        _ => "Error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_reasons_match_codes() {
        let exited = |code, out_of_memory, reason: &str| Exited {
            code,
            out_of_memory,
            reason: reason.to_owned(),
            ..Exited::default()
        };
        assert_eq!(reason(&exited(0, false, "")), "Completed");
        assert_eq!(reason(&exited(1, false, "")), "Error");
        assert_eq!(reason(&exited(137, true, "")), "OOMKilled");
        assert_eq!(reason(&exited(128, false, "StartError")), "StartError");
    }
}
