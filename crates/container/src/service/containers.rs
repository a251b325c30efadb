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
use crate::launch::{self, hear};
use crate::shim::{Started, Task};

/// How long a killed container may take to be gone.
const PATIENCE: Duration = Duration::from_secs(60);
/// The code of a container that never ran, as other runtimes have it.
const NEVER_RAN: i32 = 128;
/// The code of a container whose end nobody saw.
const UNSEEN: i32 = 255;

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
                Ok(hear(&mut BufReader::new(&socket))?)
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

    /// Follows a container's shim to its end.
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
                        tokio::select! {
                            _ = shim.readable() => {}
                            () = runtime.tasks.stopping() => return,
                        }
                    }
                    Err(error) => {
                        tracing::error!(%error, "a container cannot be watched");
                        return;
                    }
                }
            }
            let ours = Arc::clone(&container);
            let ended = runtime.blocking(move |runtime| runtime.conclude(&ours, &started)).await;
            match ended {
                Ok(phase) => {
                    container.phase.send_replace(phase);
                    runtime.emit(&container, ContainerEventType::ContainerStoppedEvent);
                    if !runtime.state.read().containers.values().any(|other| other.running().is_some()) {
                        sys::cgroups::apart::remove_if_empty(crate::shim::GROUP);
                    }
                }
                Err(error) => tracing::error!(%error, container = container.meta.id, "no end of a container"),
            }
        });
    }

    /// After the shim: reads how the container ended. If the shim did not come to tell, cleans up in its place.
    fn conclude(&self, container: &Container, started: &Started) -> Result<Phase, RuntimeError> {
        let path = container.directory.join("exit");
        if let Some(exited) = records::read(&path)? {
            return Ok(Phase::Exited { started: started.at, exited });
        }
        let group =
            Hierarchy::detect().doing(|| "find the control groups".to_owned())?.group(&container.meta.cgroup);
        if let Some(group) = group {
            group.kill(PATIENCE).doing(|| "end a container without a shim".to_owned())?;
            group.remove().doing(|| "remove a control group".to_owned())?;
        }
        let exited = Exited {
            code: UNSEEN,
            at: now(),
            message: "the container's shim ended before it".to_owned(),
            ..Exited::default()
        };
        records::write(&path, &exited)?;
        Ok(Phase::Exited { started: started.at, exited })
    }

    /// Asks a container to end, and after the grace makes it.
    pub(super) async fn stop_container(
        self: &Arc<Self>,
        container: &Arc<Container>,
        grace: i64,
    ) -> Result<(), RuntimeError> {
        let Some(started) = container.running() else { return Ok(()) };
        let mut phase = container.phase.subscribe();
        let signal = |number: i32| {
            // The id may be another's by now.
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
        if ended(&mut phase, PATIENCE).await {
            return Ok(());
        }
        Err(RuntimeError::TimedOut(format!("container {} does not end", container.meta.id)))
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
            records::vanish(&directory)?;
            records::remove_private(&directory)
        })
        .await?;
        if self.state.write().containers.remove(&container.meta.id).is_some() {
            self.emit(container, ContainerEventType::ContainerDeletedEvent);
        }
        Ok(())
    }

    /// Reads the containers that an earlier daemon left, and follows those that run.
    pub(super) fn find_containers(self: &Arc<Self>) -> Result<(), RuntimeError> {
        let boot = process::boot_id().doing(|| "read the boot id".to_owned())?;
        let directories = records::directories(&self.config.root.join("containers"))?;
        records::settle_private(&self.config.root, &directories)?;
        for directory in directories {
            let meta: Option<ContainerMeta> = records::read(&directory.join("meta.json"))?;
            let (Some(meta), Some(config)) = (meta, records::read_config(&directory)?) else {
                records::remove_tree(&directory)?;
                continue;
            };
            // A shim that another daemon started may be on its way still.
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

/// What a container's end is called.
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
    fn reasons() {
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
