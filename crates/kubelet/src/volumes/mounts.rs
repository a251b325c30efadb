//! Mounts of a container: its volumes, hosts file and termination message file.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;

use cri::v1::{ImageSpec, Mount, MountPropagation};
use objects::core::v1::VolumeMount;

use super::directories::PodDirectories;
use super::prepare::Prepared;
use super::sub_path;
use crate::configure::expansion::expand;
use crate::lifecycle::Member;

/// Inputs of the mounts of a container.
pub struct MountInputs<'a> {
    pub member: &'a Member,
    pub restarts: u32,
    pub prepared: &'a Prepared,
    pub directories: &'a PodDirectories,
    pub environment: &'a [(String, String)],
    /// The runtime supports recursive read-only mounts.
    pub recursive_read_only: bool,
    /// References of pulled image volumes, by volume.
    pub images: &'a BTreeMap<String, String>,
}

/// Mounts of a container.
pub fn mounts(inputs: &MountInputs<'_>) -> io::Result<Vec<Mount>> {
    let container = &inputs.member.container;
    let mut out = Vec::new();
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        out.push(volume_mount(inputs, index, mount)?);
    }
    let taken = |path: &str| {
        container.volume_mounts.iter().flatten().any(|mount| absolute(&mount.mount_path) == path)
    };
    if !taken("/etc/hosts") {
        out.push(Mount {
            container_path: "/etc/hosts".to_owned(),
            host_path: inputs.directories.etc_hosts().display().to_string(),
            ..Mount::default()
        });
    }
    out.extend(termination_message_mount(inputs)?);
    Ok(out)
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

/// The mount of a volume; `index` is its position in the container.
fn volume_mount(inputs: &MountInputs<'_>, index: usize, mount: &VolumeMount) -> io::Result<Mount> {
    let container = &inputs.member.container;
    let Some(volume) = inputs.prepared.get(&mount.name).filter(|volume| !volume.device) else {
        return Err(invalid(format!("volume {:?} is not mounted", mount.name)));
    };
    let part = sub_path_of(mount, inputs.environment)?;
    if mount.recursive_read_only.as_deref() == Some("Enabled") && !inputs.recursive_read_only {
        return Err(invalid(format!(
            "failed to resolve recursive read-only mode: volume {:?} requested recursive read-only mode, but it is not supported by the runtime",
            mount.name
        )));
    }
    let mut made = Mount {
        container_path: absolute(&mount.mount_path),
        readonly: mount.read_only == Some(true) || volume.read_only,
        propagation: match mount.mount_propagation.as_deref() {
            Some("HostToContainer") => MountPropagation::PropagationHostToContainer,
            Some("Bidirectional") => MountPropagation::PropagationBidirectional,
            _ => MountPropagation::PropagationPrivate,
        } as i32,
        recursive_read_only: is_recursive(mount, inputs.recursive_read_only),
        ..Mount::default()
    };
    if volume.image.is_some() {
        let image = inputs.images.get(&mount.name).cloned().unwrap_or_default();
        made.image = Some(ImageSpec { image, ..ImageSpec::default() });
        made.image_sub_path = part;
    } else if part.is_empty() {
        made.host_path = volume.path.display().to_string();
    } else {
        let target =
            inputs.directories.sub_paths().join(&mount.name).join(&container.name).join(index.to_string());
        sub_path::bind(&volume.path, &part, &target).map_err(|error| {
            let text = format!(
                "failed to prepare subPath for volumeMount {:?} of container {:?}: {error}",
                mount.name, container.name
            );
            io::Error::new(error.kind(), text)
        })?;
        made.host_path = target.display().to_string();
    }
    Ok(made)
}

/// Path within the volume, with variables of the container replaced; empty for the whole volume.
fn sub_path_of(mount: &VolumeMount, environment: &[(String, String)]) -> io::Result<String> {
    let lookup =
        |name: &str| environment.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.clone());
    match (&mount.sub_path, &mount.sub_path_expr) {
        (_, Some(text)) if !text.is_empty() => {
            let part = expand(text, &lookup);
            if part.contains("$(") { Err(invalid(format!("missing value for {text:?}"))) } else { Ok(part) }
        }
        (Some(part), _) => Ok(part.clone()),
        _ => Ok(String::new()),
    }
}

/// Creates the file for the termination message, if the container has one.
fn termination_message_mount(inputs: &MountInputs<'_>) -> io::Result<Option<Mount>> {
    let container = &inputs.member.container;
    let message = container.termination_message_path.as_deref().unwrap_or("");
    if message.is_empty() {
        return Ok(None);
    }
    let file = inputs.directories.termination_log(&container.name, inputs.restarts);
    if let Some(parent) = file.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::OpenOptions::new().create(true).append(true).open(&file)?;
    // Writable for any user that the container runs as.
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666))?;
    Ok(Some(Mount {
        container_path: absolute(message),
        host_path: file.display().to_string(),
        ..Mount::default()
    }))
}

/// Returns true if a mount is recursively read-only, given the runtime's support.
pub fn is_recursive(mount: &VolumeMount, possible: bool) -> bool {
    mount.read_only == Some(true)
        && match mount.recursive_read_only.as_deref() {
            Some("Enabled") => true,
            Some("IfPossible") => possible,
            _ => false,
        }
}

fn absolute(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
}
