//! Empty directories, on disk or in memory.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use k8s_openapi::api::core::v1::EmptyDirVolumeSource;
use machinery::quantity::Quantity;
use rustix::mount::{MountFlags, mount};

/// Makes the directory; one in memory is a file system of its own, limited if a limit is given.
pub fn prepare(path: &Path, source: &EmptyDirVolumeSource, memory_limit: Option<i64>) -> io::Result<()> {
    let fresh = !path.exists();
    fs::create_dir_all(path)?;
    let medium = source.medium.as_deref().unwrap_or("");
    if medium == "Memory" && !is_mount_point(path)? {
        let limit = source
            .size_limit
            .as_ref()
            .and_then(|text| Quantity::parse(&text.0).ok())
            .map(|quantity| quantity.value())
            .filter(|limit| *limit > 0);
        let limit = match (limit, memory_limit) {
            (Some(own), Some(of_pod)) => Some(own.min(of_pod)),
            (own, of_pod) => own.or(of_pod),
        };
        let options = limit.map_or_else(String::new, |limit| format!("size={limit}"));
        let options = std::ffi::CString::new(options)?;
        mount(c"tmpfs", path, c"tmpfs", MountFlags::empty(), Some(options.as_c_str()))?;
    }
    // Later the pod's group may have been given more.
    if fresh {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777))?;
    }
    Ok(())
}

/// Whether something is mounted on `path`: binds of the same file system count too.
pub fn is_mount_point(path: &Path) -> io::Result<bool> {
    use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let found = statx(CWD, path, flags, StatxFlags::BASIC_STATS)?;
    Ok(found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}
