//! Local volumes on block devices: formats an unformatted device, mounts its file system once per node and bind
//! mounts it into each pod's directory. Uses the node's programs (`blkid`, `mkfs`, `fsck`, `mount`, `resize2fs`), as
//! Kubernetes does.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use parking_lot::Mutex;
use sys::mounts::{bind, is_mount_point, unmount};

use super::directories::PodDirectories;

/// Directory name of local volumes in a pod's directory.
const PLUGIN: &str = "local-volume";
/// Format of a device with a partition table.
const PARTITIONS: &str = "unknown data, probably partitions";

/// Held while mounts of local volumes change: the last pod must not unmount a volume that the next one binds.
static MOUNTING: Mutex<()> = Mutex::new(());

/// Failure to mount or expand a local volume.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    #[error("only directory and block device are supported")]
    Kind,
    #[error("invalid file system type {0:?}")]
    Type(String),
    #[error("failed to get disk format of disk {}: {message}", device.display())]
    Probe { device: PathBuf, message: String },
    #[error("cannot mount unformatted disk {} as we are manipulating it in read-only mode", .0.display())]
    ReadOnly(PathBuf),
    #[error("format of disk {device:?} failed: type:({kind:?}) output:({output})")]
    Format { device: PathBuf, kind: String, output: String },
    #[error("'fsck' found errors on device {} but could not correct them: {output}", device.display())]
    Damaged { device: PathBuf, output: String },
    #[error("failed to mount device {} at {} (fstype: {kind}), error {output}", device.display(), target.display())]
    Mount { device: PathBuf, target: PathBuf, kind: String, output: String },
    #[error("resize of device {} failed: {output}", device.display())]
    Resize { device: PathBuf, output: String },
    #[error("{path}: {source}")]
    Files { path: PathBuf, source: io::Error },
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> LocalError {
    let path = path.to_owned();
    |source| LocalError::Files { path, source }
}

/// A block device of the node, used through its file system.
#[derive(Clone, Debug)]
pub struct LocalDevice {
    /// Name of the PersistentVolume.
    pub volume: String,
    pub device: PathBuf,
    /// `ext4` if empty.
    pub fs_type: String,
    pub options: Vec<String>,
    pub read_only: bool,
}

/// Node-wide mount of a volume, shared by its pods.
fn shared_mount(kubelet: &Path, volume: &str) -> PathBuf {
    kubelet.join("plugins/kubernetes.io").join(PLUGIN).join("mounts").join(volume)
}

fn is_mounted(path: &Path) -> Result<bool, LocalError> {
    match is_mount_point(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        found => found.map_err(at(path)),
    }
}

impl LocalDevice {
    /// Mounts the volume for a pod and returns the path. Idempotent.
    pub fn mount(&self, kubelet: &Path, pod: &PodDirectories) -> Result<PathBuf, LocalError> {
        let target = pod.volume(PLUGIN, &self.volume);
        let _turn = MOUNTING.lock();
        if is_mounted(&target)? {
            return Ok(target);
        }
        fs::create_dir_all(&target).map_err(at(&target))?;
        let shared = shared_mount(kubelet, &self.volume);
        if !is_mounted(&shared)? {
            fs::create_dir_all(&shared).map_err(at(&shared))?;
            if let Err(error) = self.format_and_mount(&shared) {
                for made in [&shared, &target] {
                    if let Err(error) = fs::remove_dir(made) {
                        tracing::warn!(path = %made.display(), %error, "failed to remove mount point");
                    }
                }
                return Err(error);
            }
        }
        bind(&shared, &target, false).map_err(at(&target))?;
        Ok(target)
    }

    fn format_and_mount(&self, target: &Path) -> Result<(), LocalError> {
        let kind = if self.fs_type.is_empty() { "ext4" } else { &self.fs_type };
        // The type is part of a program's name.
        if !kind.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')) {
            return Err(LocalError::Type(kind.to_owned()));
        }
        let device = fs::canonicalize(&self.device).map_err(at(&self.device))?;
        let read_only = self.read_only || self.options.iter().any(|option| option == "ro");
        match format_of(&device)? {
            None if read_only => return Err(LocalError::ReadOnly(device)),
            None => make_file_system(&device, kind)?,
            Some(_) if read_only => {}
            Some(found) => {
                if found != kind {
                    tracing::warn!(device = %device.display(), found, wanted = kind, "device has unexpected file system");
                }
                check(&device)?;
            }
        }
        let mut options: Vec<&str> = self.options.iter().map(String::as_str).collect();
        if self.read_only {
            options.push("ro");
        }
        options.push("defaults");
        let mut command = Command::new("mount");
        command.args(["-t", kind, "-o", &options.join(",")]).arg(&device).arg(target);
        let failed = |output| LocalError::Mount {
            device: device.clone(),
            target: target.to_owned(),
            kind: kind.to_owned(),
            output,
        };
        run(&mut command).map_err(failed)
    }
}

/// Unmounts a pod's local volumes, and the node-wide mounts that no pod uses any more.
pub fn release(kubelet: &Path, pod: &PodDirectories) -> io::Result<()> {
    let directory = pod.root.join("volumes").join(format!("kubernetes.io~{PLUGIN}"));
    let _turn = MOUNTING.lock();
    for entry in fs::read_dir(&directory).into_iter().flatten() {
        let entry = entry?;
        if is_mount_point(&entry.path())? {
            rustix::mount::unmount(entry.path(), rustix::mount::UnmountFlags::DETACH)?;
        }
        fs::remove_dir(entry.path())?;
        let Ok(volume) = entry.file_name().into_string() else { continue };
        let used = PodDirectories::uids(kubelet)
            .iter()
            .any(|uid| PodDirectories::of_uid(kubelet, uid).volume(PLUGIN, &volume).exists());
        let shared = shared_mount(kubelet, &volume);
        if used || !shared.exists() {
            continue;
        }
        if is_mount_point(&shared)? {
            unmount(&shared)?;
        }
        fs::remove_dir(&shared)?;
    }
    Ok(())
}

/// Expands the file system on a device to the device's size.
pub fn resize(device: &Path, mounted: &Path) -> Result<(), LocalError> {
    let mut command = match format_of(device)?.as_deref() {
        None => return Ok(()),
        Some("ext3" | "ext4") => {
            let mut command = Command::new("resize2fs");
            command.arg(device);
            command
        }
        Some("xfs") => {
            let mut command = Command::new("xfs_growfs");
            command.arg("-d").arg(mounted);
            command
        }
        Some("btrfs") => {
            let mut command = Command::new("btrfs");
            command.args(["filesystem", "resize", "max"]).arg(mounted);
            command
        }
        Some(other) => {
            let output = format!("resize of format {other} is not supported");
            return Err(LocalError::Resize { device: device.to_owned(), output });
        }
    };
    run(&mut command).map_err(|output| LocalError::Resize { device: device.to_owned(), output })
}

/// Format of a device; `None` if it has none.
fn format_of(device: &Path) -> Result<Option<String>, LocalError> {
    let failed = |message| LocalError::Probe { device: device.to_owned(), message };
    let mut command = Command::new("blkid");
    command.args(["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export"]).arg(device);
    let output = command.output().map_err(|error| failed(error.to_string()))?;
    match output.status.code() {
        Some(0) => parse_format(&String::from_utf8_lossy(&output.stdout)).map_err(failed),
        // `blkid` found no known format.
        Some(2) => Ok(None),
        _ => Err(failed(output_text(&output))),
    }
}

/// Parses the format in the output of `blkid`.
fn parse_format(output: &str) -> Result<Option<String>, String> {
    let (mut kind, mut partitions) = (None, false);
    for line in output.lines().filter(|line| !line.is_empty()) {
        let Some((name, value)) = line.split_once('=') else {
            return Err(format!("blkid returns invalid output: {output}"));
        };
        match name {
            "TYPE" => kind = Some(value.to_owned()),
            "PTTYPE" => partitions |= !value.is_empty(),
            _ => {}
        }
    }
    // Existing data must never look like an unformatted device.
    Ok(if partitions { Some(PARTITIONS.to_owned()) } else { kind })
}

fn make_file_system(device: &Path, kind: &str) -> Result<(), LocalError> {
    let options: &[&str] = match kind {
        "ext3" | "ext4" => &["-F", "-m0"],
        "xfs" => &["-f"],
        _ => &[],
    };
    tracing::info!(device = %device.display(), kind, "formatting unformatted device");
    let failed = |output| LocalError::Format { device: device.to_owned(), kind: kind.to_owned(), output };
    run(Command::new(format!("mkfs.{kind}")).args(options).arg(device)).map_err(failed)
}

/// Repairs a file system before it is mounted. Only uncorrected errors are a failure.
fn check(device: &Path) -> Result<(), LocalError> {
    let output = match Command::new("fsck").arg("-a").arg(device).output() {
        Ok(output) => output,
        Err(error) => {
            tracing::warn!(device = %device.display(), %error, "failed to run fsck");
            return Ok(());
        }
    };
    match output.status.code() {
        Some(0) => Ok(()),
        Some(4) => Err(LocalError::Damaged { device: device.to_owned(), output: output_text(&output) }),
        _ => {
            tracing::info!(device = %device.display(), output = output_text(&output), "fsck exited with non-zero status");
            Ok(())
        }
    }
}

/// Runs a program; the error is its output.
fn run(command: &mut Command) -> Result<(), String> {
    match command.output() {
        Err(error) => Err(format!("{}: {error}", command.get_program().display())),
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{}, output: {}", output.status, output_text(&output))),
    }
}

fn output_text(output: &Output) -> String {
    let text = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    String::from_utf8_lossy(&text).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_of_partitioned_device_is_not_empty() {
        for (output, wanted) in [
            ("DEVNAME=/dev/loop0\nTYPE=ext4\n", Ok(Some("ext4"))),
            ("DEVNAME=/dev/loop0\nPTTYPE=dos\n", Ok(Some(PARTITIONS))),
            ("\nTYPE=ext4\nPTTYPE=dos\n", Ok(Some(PARTITIONS))),
            ("", Ok(None)),
            ("ext4", Err("blkid returns invalid output: ext4".to_owned())),
        ] {
            assert_eq!(parse_format(output), wanted.map(|kind| kind.map(str::to_owned)), "{output:?}");
        }
    }

    #[test]
    fn fs_type_with_path_is_rejected() {
        let local = LocalDevice {
            volume: "v".to_owned(),
            device: "/dev/null".into(),
            fs_type: "ext4/../../../tmp/program".to_owned(),
            options: Vec::new(),
            read_only: false,
        };
        assert!(matches!(local.format_and_mount(Path::new("/nowhere")), Err(LocalError::Type(_))));
    }

    /// A loop device in a mount namespace of a thread: formatted once, shared by two pods, expanded, released.
    #[test]
    fn device_is_formatted_shared_expanded_and_released() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: mounts need root");
            return;
        }
        let root = tempfile::tempdir().expect("a directory");
        let file = root.path().join("disk");
        fs::File::create(&file).expect("a file").set_len(16 << 20).expect("a size");
        let attached = Command::new("losetup").args(["--find", "--show"]).arg(&file).output();
        let device = match attached {
            Ok(output) if output.status.success() => {
                PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())
            }
            other => {
                println!("skipped: no loop device: {other:?}");
                return;
            }
        };
        let kubelet = root.path().join("kubelet");
        let loop_device = device.clone();
        let outcome = std::thread::spawn(move || {
            use sys::mounts::{MountPropagationFlags, propagate};
            sys::process::unshare(&[sys::process::Namespace::Mount]).expect("a mount namespace");
            let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
            propagate(Path::new("/"), private).expect("private mounts");
            let mut local = LocalDevice {
                volume: "pv".to_owned(),
                device: loop_device,
                fs_type: String::new(),
                options: vec!["noatime".to_owned()],
                read_only: true,
            };
            let pods = ["one", "two"].map(|uid| PodDirectories::of_uid(&kubelet, uid));
            let refused = local.mount(&kubelet, &pods[0]).expect_err("no file system yet");
            assert!(matches!(refused, LocalError::ReadOnly(_)), "{refused}");
            local.read_only = false;
            let [first, second] = [0, 1].map(|pod| local.mount(&kubelet, &pods[pod]).expect("mounted"));
            assert_eq!(local.mount(&kubelet, &pods[0]).expect("mounted already"), first);
            fs::write(first.join("data"), "kept").expect("written");
            assert_eq!(fs::read_to_string(second.join("data")).expect("read"), "kept");
            let size = |path: &Path| rustix::fs::statvfs(path).expect("a file system").f_blocks;
            let before = size(&first);
            fs::File::options().write(true).open(&file).expect("the file").set_len(32 << 20).expect("a size");
            run(Command::new("losetup").arg("-c").arg(&local.device)).expect("a larger device");
            match resize(&local.device, &first) {
                Ok(()) => assert!(size(&first) > before),
                // `CAP_SYS_RESOURCE` is needed.
                Err(error) if error.to_string().contains("Permission denied to resize") => {
                    println!("partly skipped: {error}");
                }
                Err(error) => panic!("{error}"),
            }
            let shared = shared_mount(&kubelet, "pv");
            release(&kubelet, &pods[0]).expect("released");
            assert!(!first.exists() && is_mount_point(&shared).expect("a path"));
            release(&kubelet, &pods[1]).expect("released");
            assert!(!second.exists() && !shared.exists());
            // The existing file system is detected, not formatted again.
            let again = local.mount(&kubelet, &pods[1]).expect("mounted");
            assert_eq!(fs::read_to_string(again.join("data")).expect("read"), "kept");
            release(&kubelet, &pods[1]).expect("released");
        })
        .join();
        run(Command::new("losetup").arg("-d").arg(&device)).expect("detached");
        assert!(outcome.is_ok());
    }
}
