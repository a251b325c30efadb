//! One container: command, environment, mounts, resources, security.

use cri::v1::{
    CDIDevice, ContainerConfig, ContainerMetadata, Device, ImageSpec, KeyValue, LinuxContainerConfig, Mount,
    Signal,
};
use objects::core::v1::Pod;

use super::downward::PodFacts;
use super::environment::{self, EnvironmentError};
use super::expansion::expand;
use super::sandbox::NodeSettings;
use super::security::{self, ImageUser, SecurityError};
use super::{Sources, labels, resources};
use crate::devices::DeviceOptions;
use crate::lifecycle::Member;

/// Failure to build a container configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    #[error(transparent)]
    Security(#[from] SecurityError),
}

/// Inputs of a container configuration.
pub struct Request<'a> {
    pub pod: &'a Pod,
    pub member: &'a Member,
    pub restarts: u32,
    /// Image reference as reported by the runtime.
    pub image_ref: &'a str,
    pub image_user: &'a ImageUser,
    pub facts: &'a PodFacts<'a>,
    pub node: &'a NodeSettings,
    pub mounts: Vec<Mount>,
    pub devices: Vec<Device>,
    /// Settings that device plugins and drivers require.
    pub device_options: DeviceOptions,
    /// ID of the target container of an ephemeral container.
    pub target: Option<&'a str>,
    pub volume_groups: &'a [i64],
    pub environment: &'a [(String, String)],
}

/// Log path of a container, relative to the pod's log directory.
#[must_use]
pub fn log_path(name: &str, restarts: u32) -> String {
    format!("{name}/{restarts}.log")
}

/// Environment variables of a container.
pub fn environment(
    pod: &Pod,
    member: &Member,
    sources: &Sources,
    facts: &PodFacts<'_>,
) -> Result<Vec<(String, String)>, ConfigError> {
    Ok(environment::variables(pod, &member.container, sources, facts)?)
}

pub fn config(request: Request<'_>) -> Result<ContainerConfig, ConfigError> {
    let Request { pod, member, node, device_options: options, .. } = request;
    let container = &member.container;
    security::check_non_root(pod, container, request.image_user)?;
    let lookup = |name: &str| {
        request.environment.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.clone())
    };
    let expanded = |words: &Option<Vec<String>>| -> Vec<String> {
        words.iter().flatten().map(|word| expand(word, &lookup)).collect()
    };
    let signal = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.stop_signal.as_deref());
    Ok(ContainerConfig {
        metadata: Some(ContainerMetadata { name: container.name.clone(), attempt: request.restarts }),
        image: Some(ImageSpec {
            image: request.image_ref.to_owned(),
            user_specified_image: container.image.clone().unwrap_or_default(),
            ..ImageSpec::default()
        }),
        command: expanded(&container.command),
        args: expanded(&container.args),
        working_dir: container.working_dir.clone().unwrap_or_default(),
        // Variables of the container override those of device plugins.
        envs: options
            .environment
            .iter()
            .chain(request.environment.iter().map(|(key, value)| (key, value)))
            .map(|(key, value)| KeyValue { key: key.clone(), value: value.clone().into_bytes() })
            .collect(),
        mounts: options.mounts.into_iter().chain(request.mounts).collect(),
        devices: request.devices.into_iter().chain(options.devices).collect(),
        cdi_devices: options.cdi_devices.into_iter().map(|name| CDIDevice { name }).collect(),
        labels: labels::of_container(pod, container),
        annotations: options
            .annotations
            .into_iter()
            .chain(labels::annotations(pod, container, request.restarts))
            .collect(),
        log_path: log_path(&container.name, request.restarts),
        stdin: container.stdin.unwrap_or(false),
        stdin_once: container.stdin_once.unwrap_or(false),
        tty: container.tty.unwrap_or(false),
        linux: Some(LinuxContainerConfig {
            resources: Some(resources::of_container(pod, container, node.memory_capacity)),
            security_context: Some(security::of_container(
                pod,
                container,
                request.image_user,
                request.target,
                &node.profiles,
                request.volume_groups,
            )),
        }),
        stop_signal: signal.map_or(Signal::RuntimeDefault, stop_signal) as i32,
        ..ContainerConfig::default()
    })
}

/// Stop signals that a pod may specify, limited to those that containers are stopped with in practice.
const SIGNALS: [(&str, Signal); 8] = [
    ("SIGTERM", Signal::Sigterm),
    ("SIGINT", Signal::Sigint),
    ("SIGQUIT", Signal::Sigquit),
    ("SIGHUP", Signal::Sighup),
    ("SIGKILL", Signal::Sigkill),
    ("SIGUSR1", Signal::Sigusr1),
    ("SIGUSR2", Signal::Sigusr2),
    ("SIGWINCH", Signal::Sigwinch),
];

fn stop_signal(name: &str) -> Signal {
    SIGNALS.iter().find(|(known, _)| *known == name).map_or(Signal::RuntimeDefault, |(_, signal)| *signal)
}

/// Name of a signal as shown in the pod status.
#[must_use]
pub fn signal_name(value: i32) -> Option<String> {
    SIGNALS.iter().find(|(_, signal)| *signal as i32 == value).map(|(name, _)| (*name).to_owned())
}
