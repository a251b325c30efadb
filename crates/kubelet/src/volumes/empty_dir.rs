//! `emptyDir` volumes: on disk, in memory, or in huge pages.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use machinery::quantity::Quantity;
use objects::core::v1::{EmptyDirVolumeSource, PodSpec};
use rustix::mount::{MountFlags, mount};
use sys::mounts::is_mount_point;

use crate::lifecycle::members::members;

/// Creates the directory. A memory-backed one is a tmpfs limited by its `sizeLimit` and by `most`, the memory limit
/// of the pod.
pub fn prepare(
    path: &Path,
    source: &EmptyDirVolumeSource,
    spec: &PodSpec,
    most: Option<i64>,
) -> io::Result<()> {
    let fresh = !path.exists();
    fs::create_dir_all(path)?;
    let medium = source.medium.as_deref().unwrap_or("");
    if !medium.is_empty() && !is_mount_point(path)? {
        let (kind, options) = match medium {
            "Memory" => {
                let limit = size(source).into_iter().chain(most).min();
                (c"tmpfs", limit.map_or_else(String::new, |limit| format!("size={limit}")))
            }
            _ => (c"hugetlbfs", format!("pagesize={}", page_size(medium, spec)?)),
        };
        let options = std::ffi::CString::new(options)?;
        mount(kind, path, kind, MountFlags::empty(), Some(options.as_c_str()))?;
    }
    // Later the fsGroup may have widened it. A tmpfs keeps its own mode, with the sticky bit.
    if fresh && medium != "Memory" {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777))?;
    }
    Ok(())
}

/// Mounts a tmpfs at `path` unless one is mounted, with `noswap` if the kernel supports it.
///
/// A directory with content is left in place: an earlier version wrote it to disk, and containers have it mounted.
pub fn mount_tmpfs(path: &Path) -> io::Result<()> {
    if is_mount_point(path)? || fs::read_dir(path)?.next().is_some() {
        return Ok(());
    }
    sys::mounts::tmpfs(path, 0o777)
}

fn size(source: &EmptyDirVolumeSource) -> Option<i64> {
    let text = source.size_limit.as_ref()?;
    Quantity::parse(&text.0).ok().map(|quantity| quantity.value()).filter(|limit| *limit > 0)
}

/// Page size in bytes of a huge page medium: the size it names, which a container must request, or the only size that
/// containers request.
fn page_size(medium: &str, spec: &PodSpec) -> io::Result<i64> {
    let wrong = |text: String| io::Error::new(io::ErrorKind::InvalidInput, text);
    let bytes = |text: &str| {
        Quantity::parse(text)
            .map(|size| size.value())
            .map_err(|_| wrong(format!("invalid page size {text:?}")))
    };
    let mut requested = std::collections::BTreeSet::new();
    for member in members(spec) {
        let Some(resources) = &member.container.resources else { continue };
        let names = resources.requests.iter().chain(&resources.limits).flat_map(|list| list.keys());
        for size in names.filter_map(|name| name.strip_prefix("hugepages-")) {
            requested.insert(bytes(size)?);
        }
    }
    let Some(named) = medium.strip_prefix("HugePages").map(|rest| rest.trim_start_matches('-')) else {
        return Err(wrong(format!("unknown storage medium {medium:?}")));
    };
    if !named.is_empty() {
        let named = bytes(named)?;
        return if requested.contains(&named) {
            Ok(named)
        } else {
            Err(wrong(format!("medium {medium:?} is not in the resource requests of any container")))
        };
    }
    match requested.iter().collect::<Vec<_>>()[..] {
        [one] => Ok(*one),
        [] => Err(wrong("medium \"HugePages\" requires a container with a huge page request".to_owned())),
        _ => Err(wrong("medium \"HugePages\" requires huge pages of exactly one size".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_page_size_of_medium() {
        let spec = |sizes: &[&str]| -> PodSpec {
            let containers: Vec<_> = sizes
                .iter()
                .map(|size| {
                    let limits = serde_json::json!({format!("hugepages-{size}"): "4Mi"});
                    serde_json::json!({"name": "c", "resources": {"limits": limits}})
                })
                .collect();
            serde_json::from_value(serde_json::json!({"containers": containers})).expect("a spec")
        };
        for (medium, sizes, want) in [
            ("HugePages", &["2Mi"][..], Some(2 << 20)),
            ("HugePages", &["2Mi", "2Mi"], Some(2 << 20)),
            ("HugePages", &[], None),
            ("HugePages", &["2Mi", "1Gi"], None),
            ("HugePages-1Gi", &["2Mi", "1Gi"], Some(1 << 30)),
            ("HugePages-1Gi", &["2Mi"], None),
            ("Paper", &["2Mi"], None),
        ] {
            assert_eq!(page_size(medium, &spec(sizes)).ok(), want, "{medium} {sizes:?}");
        }
    }

    #[test]
    fn memory_backed_directory_is_sticky() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: mounts need root");
            return;
        }
        let root = tempfile::tempdir().expect("a directory");
        let path = root.path().join("v");
        let modes = std::thread::spawn(move || {
            use sys::mounts::{MountPropagationFlags, propagate};
            sys::process::unshare(&[sys::process::Namespace::Mount]).expect("a mount namespace");
            let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
            propagate(Path::new("/"), private).expect("private mounts");
            [("memory", "Memory"), ("disk", "")].map(|(name, medium)| {
                let source = EmptyDirVolumeSource {
                    medium: Some(medium.to_owned()),
                    ..EmptyDirVolumeSource::default()
                };
                let path = path.join(name);
                prepare(&path, &source, &PodSpec::default(), None).expect("prepared");
                fs::metadata(&path).expect("a directory").permissions().mode() & 0o7777
            })
        });
        assert_eq!(modes.join().expect("the thread"), [0o1777, 0o777]);
    }
}
