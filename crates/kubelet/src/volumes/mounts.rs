//! What a container mounts: its volumes, its hosts file, the file for its last words.

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

/// The mounts of a container. `recursive_read_only` says whether the runtime can make mounts read-only with what is
/// mounted below them; `images` are the references of image volumes that were pulled, by volume.
pub fn mounts(
    member: &Member,
    restarts: u32,
    prepared: &Prepared,
    directories: &PodDirectories,
    environment: &[(String, String)],
    recursive_read_only: bool,
    images: &dyn Fn(&str) -> String,
) -> io::Result<Vec<Mount>> {
    let container = &member.container;
    let mut out = Vec::new();
    let wrong = |text: String| io::Error::new(io::ErrorKind::InvalidInput, text);
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let Some(volume) = prepared.get(&mount.name).filter(|volume| !volume.device) else {
            return Err(wrong(format!("volume {:?} is not mounted", mount.name)));
        };
        let lookup = |name: &str| {
            environment.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.clone())
        };
        let part = match (&mount.sub_path, &mount.sub_path_expr) {
            (_, Some(text)) if !text.is_empty() => {
                let part = expand(text, &lookup);
                if part.contains("$(") {
                    return Err(wrong(format!("missing value for {text:?}")));
                }
                part
            }
            (Some(part), _) => part.clone(),
            _ => String::new(),
        };
        let read_only = mount.read_only == Some(true) || volume.read_only;
        if mount.recursive_read_only.as_deref() == Some("Enabled") && !recursive_read_only {
            return Err(wrong(format!(
                "failed to resolve recursive read-only mode: volume {:?} requested recursive read-only mode, but it is not supported by the runtime",
                mount.name
            )));
        }
        let mut made = Mount {
            container_path: absolute(&mount.mount_path),
            readonly: read_only,
            propagation: match mount.mount_propagation.as_deref() {
                Some("HostToContainer") => MountPropagation::PropagationHostToContainer,
                Some("Bidirectional") => MountPropagation::PropagationBidirectional,
                _ => MountPropagation::PropagationPrivate,
            } as i32,
            recursive_read_only: is_recursive(mount, recursive_read_only),
            ..Mount::default()
        };
        if volume.image.is_some() {
            made.image = Some(ImageSpec { image: images(&mount.name), ..ImageSpec::default() });
            made.image_sub_path = part;
        } else if part.is_empty() {
            made.host_path = volume.path.display().to_string();
        } else {
            let target =
                directories.sub_paths().join(&mount.name).join(&container.name).join(index.to_string());
            sub_path::bind(&volume.path, &part, &target).map_err(|error| {
                let text = format!(
                    "failed to prepare subPath for volumeMount {:?} of container {:?}: {error}",
                    mount.name, container.name
                );
                io::Error::new(error.kind(), text)
            })?;
            made.host_path = target.display().to_string();
        }
        out.push(made);
    }
    let taken = |path: &str| {
        container.volume_mounts.iter().flatten().any(|mount| absolute(&mount.mount_path) == path)
    };
    if !taken("/etc/hosts") {
        out.push(Mount {
            container_path: "/etc/hosts".to_owned(),
            host_path: directories.etc_hosts().display().to_string(),
            ..Mount::default()
        });
    }
    let message = container.termination_message_path.as_deref().unwrap_or("");
    if !message.is_empty() {
        let file = directories.termination_log(&container.name, restarts);
        if let Some(parent) = file.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::OpenOptions::new().create(true).append(true).open(&file)?;
        // Whatever user the container runs as may write to it.
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666))?;
        out.push(Mount {
            container_path: absolute(message),
            host_path: file.display().to_string(),
            ..Mount::default()
        });
    }
    Ok(out)
}

/// Whether a mount is read-only with everything below it, where the runtime can do that.
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
