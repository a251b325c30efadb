//! Edits of a container by CDI devices.

use std::path::{Path, PathBuf};

use super::CdiError;
use super::spec::{CdiHook, CdiMount, ContainerEdits, DeviceNode};
use crate::shim::spec::{Device, DeviceAttributes, Hook, Mount, Propagation, Source, Spec};

/// The hook that is supported: it runs before the container's program, with the container's mounts and the host's
/// programs.
const HOOK: &str = "createContainer";
/// Default limit of a hook in seconds, and the longest one.
const HOOK_SECONDS: u64 = 30;
const MAX_HOOK_SECONDS: u64 = 300;

/// Adds the edits of a device to a spec.
pub fn apply(spec: &mut Spec, device: &str, edits: &ContainerEdits) -> Result<(), CdiError> {
    let unsupported = |reason: String| CdiError::Unsupported { device: device.to_owned(), reason };
    if edits.intel_rdt.is_some() {
        return Err(unsupported("intelRdt is not supported by this runtime".to_owned()));
    }
    if !edits.net_devices.is_empty() {
        return Err(unsupported("netDevices are not supported by this runtime".to_owned()));
    }
    for variable in &edits.env {
        let pair = variable.split_once('=').filter(|(name, value)| !name.is_empty() && !value.contains('\0'));
        let (name, value) = pair.ok_or_else(|| unsupported(format!("invalid variable {variable:?}")))?;
        spec.process.environment.retain(|(known, _)| known != name);
        spec.process.environment.push((name.to_owned(), value.to_owned()));
    }
    for node in &edits.device_nodes {
        let device = device_of(node).map_err(unsupported)?;
        spec.devices.retain(|known| known.target != device.target);
        spec.devices.push(device);
    }
    for mount in &edits.mounts {
        let mount = mount_of(mount).map_err(unsupported)?;
        spec.mounts.retain(|known| known.target != mount.target);
        let depth = |mount: &Mount| mount.target.components().count();
        // Parents are mounted before their children.
        let at = spec.mounts.iter().rposition(|known| depth(known) <= depth(&mount)).map_or(0, |at| at + 1);
        spec.mounts.insert(at, mount);
    }
    for hook in &edits.hooks {
        spec.hooks.push(hook_of(hook).map_err(unsupported)?);
    }
    for gid in edits.additional_gids.iter().filter(|gid| **gid != 0) {
        if !spec.process.user.supplemental.contains(gid) {
            spec.process.user.supplemental.push(*gid);
        }
    }
    Ok(())
}

fn absolute(path: &str, what: &str) -> Result<PathBuf, String> {
    let path = Path::new(path);
    if path.is_absolute() { Ok(path.to_owned()) } else { Err(format!("{what} {path:?} is not absolute")) }
}

fn device_of(node: &DeviceNode) -> Result<Device, String> {
    let target = absolute(&node.path, "device path")?;
    let host =
        if node.host_path.is_empty() { target.clone() } else { absolute(&node.host_path, "device path")? };
    if !["", "b", "c", "u"].contains(&node.r#type.as_str()) {
        return Err(format!("type {:?} of device {:?} is not supported", node.r#type, node.path));
    }
    let permissions = if node.permissions.is_empty() { "rwm" } else { &node.permissions };
    if permissions.chars().any(|c| !"rwm".contains(c)) {
        return Err(format!("invalid permissions {permissions:?} of device {:?}", node.path));
    }
    check_numbers(node, &host)?;
    let attributes =
        DeviceAttributes { mode: node.file_mode.map(|mode| mode & 0o7777), uid: node.uid, gid: node.gid };
    Ok(Device { host, target, permissions: permissions.to_owned(), attributes })
}

/// Rejects numbers that are not those of the host's device: only devices of the host can be added.
fn check_numbers(node: &DeviceNode, host: &Path) -> Result<(), String> {
    use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
    let found = std::fs::metadata(host)
        .map_err(|error| format!("failed to stat device {}: {error}", host.display()))?;
    let kind = found.file_type();
    let is_kind = match node.r#type.as_str() {
        "b" => kind.is_block_device(),
        "" => kind.is_block_device() || kind.is_char_device(),
        _ => kind.is_char_device(),
    };
    let numbers = [
        (node.major, i64::from(rustix::fs::major(found.rdev()))),
        (node.minor, i64::from(rustix::fs::minor(found.rdev()))),
    ];
    // Zero numbers are unset ones.
    let is_same = node.major.unwrap_or(0) == 0
        || numbers.iter().all(|(wanted, actual)| wanted.is_none_or(|wanted| wanted == *actual));
    if is_kind && is_same { Ok(()) } else { Err(format!("{} is not the specified device", host.display())) }
}

fn mount_of(mount: &CdiMount) -> Result<Mount, String> {
    let target = absolute(&mount.container_path, "mount path")?;
    let has = |option: &str| mount.options.iter().any(|known| known == option);
    let source = match mount.r#type.as_str() {
        "" | "bind" | "none" => {
            let path = absolute(&mount.host_path, "mount source")?;
            let path = std::fs::canonicalize(&path)
                .map_err(|error| format!("failed to resolve {}: {error}", path.display()))?;
            Source::Bind(path)
        }
        "tmpfs" => {
            const FLAGS: [&str; 10] =
                ["ro", "rw", "nodev", "nosuid", "noexec", "dev", "suid", "exec", "rprivate", "private"];
            let data = mount.options.iter().filter(|option| !FLAGS.contains(&option.as_str()));
            let options = data.cloned().collect::<Vec<_>>().join(",");
            let (no_exec, no_suid, no_dev) = (has("noexec"), has("nosuid"), has("nodev"));
            Source::Kernel { kind: "tmpfs".to_owned(), options, no_exec, no_suid, no_dev }
        }
        other => return Err(format!("mount type {other:?} is not supported")),
    };
    let propagation = match () {
        () if has("rshared") || has("shared") => Propagation::Bidirectional,
        () if has("rslave") || has("slave") => Propagation::HostToContainer,
        () => Propagation::Private,
    };
    Ok(Mount {
        target,
        source,
        read_only: has("ro"),
        recursive_read_only: has("rro"),
        propagation,
        mapped: false,
    })
}

fn hook_of(hook: &CdiHook) -> Result<Hook, String> {
    if hook.hook_name != HOOK {
        return Err(format!("hook {:?} is not supported by this runtime, only {HOOK} is", hook.hook_name));
    }
    let pair = |variable: &String| {
        let pair = variable.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        pair.ok_or_else(|| format!("invalid variable {variable:?} of a hook"))
    };
    Ok(Hook {
        program: absolute(&hook.path, "hook path")?,
        arguments: hook.args.clone(),
        environment: hook.env.iter().map(pair).collect::<Result<_, _>>()?,
        seconds: hook.timeout.filter(|seconds| *seconds > 0).unwrap_or(HOOK_SECONDS).min(MAX_HOOK_SECONDS),
    })
}
