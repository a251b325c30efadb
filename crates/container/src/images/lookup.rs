//! Looks up paths of an image in its layers, without mounting them.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Component, Path, PathBuf};

use crate::shim::spec::Root;

/// Limit of symbolic links, as in the kernel.
const MAX_LINKS: usize = 40;

/// Reports whether the image has this path, following links. The lookup never leaves the image.
pub(crate) fn contains(root: &Root, path: &Path) -> io::Result<bool> {
    let layers: Vec<PathBuf> = root.layers.iter().map(|name| root.store.join(name)).collect();
    let mut left = VecDeque::new();
    prepend(&mut left, path);
    // The directories from the root to the current one, each as the layers that contain a part of it, topmost first.
    let mut way = vec![layers];
    let mut links = 0;
    while let Some(name) = left.pop_front() {
        if name == ".." {
            way.truncate(way.len().saturating_sub(1).max(1));
            continue;
        }
        match find(way.last().map_or(&[], Vec::as_slice), &name)? {
            LookupResult::Nothing => return Ok(false),
            LookupResult::Directory(parts) => way.push(parts),
            LookupResult::File => return Ok(left.is_empty()),
            LookupResult::Link(target) => {
                links += 1;
                if links > MAX_LINKS {
                    return Ok(false);
                }
                if target.is_absolute() {
                    way.truncate(1);
                }
                prepend(&mut left, &target);
            }
        }
    }
    Ok(true)
}

fn prepend(left: &mut VecDeque<OsString>, path: &Path) {
    for part in path.components().rev() {
        match part {
            Component::Normal(name) => left.push_front(name.to_owned()),
            Component::ParentDir => left.push_front("..".into()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
}

enum LookupResult {
    Nothing,
    Directory(Vec<PathBuf>),
    File,
    Link(PathBuf),
}

/// Looks up a name in a directory: the topmost layer that has it wins; directories are merged with those below.
fn find(directory: &[PathBuf], name: &OsString) -> io::Result<LookupResult> {
    let mut parts = Vec::new();
    for layer in directory {
        let path = layer.join(name);
        let found = match std::fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        if found.is_dir() {
            let ends = is_opaque(&path);
            parts.push(path);
            if ends {
                break;
            }
            continue;
        }
        // A directory hides a file below it; a whiteout hides everything below it.
        return Ok(match () {
            () if !parts.is_empty() => LookupResult::Directory(parts),
            () if found.file_type().is_char_device() && found.rdev() == 0 => LookupResult::Nothing,
            () if found.is_symlink() => LookupResult::Link(std::fs::read_link(&path)?),
            () => LookupResult::File,
        });
    }
    Ok(if parts.is_empty() { LookupResult::Nothing } else { LookupResult::Directory(parts) })
}

/// Reports whether a directory hides the content of lower layers.
fn is_opaque(path: &Path) -> bool {
    let mut value = [0; 1];
    rustix::fs::lgetxattr(path, c"trusted.overlay.opaque", &mut value).is_ok_and(|_| value == *b"y")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_paths_with_links_and_whiteouts_are_resolved() {
        let directory = tempfile::tempdir().unwrap();
        let store = directory.path();
        for made in ["low/etc/deep", "low/gone", "low/both", "top/both", "top/etc"] {
            std::fs::create_dir_all(store.join(made)).unwrap();
        }
        for made in ["low/etc/passwd", "low/both/below", "low/hidden", "top/etc/new", "low/gone/inside"] {
            std::fs::write(store.join(made), "").unwrap();
        }
        for (target, link) in [
            ("../etc/deep", "top/both/relative"),
            ("/etc", "low/absolute"),
            ("/../../../../etc/passwd", "low/out"),
            ("round", "low/round"),
        ] {
            std::os::unix::fs::symlink(target, store.join(link)).unwrap();
        }
        let root =
            Root { store: store.to_owned(), layers: vec!["top".into(), "low".into()], read_only: true };
        let has = |path: &str| contains(&root, Path::new(path)).unwrap();
        for path in [
            "",
            "/",
            "etc",
            "etc/passwd",
            "etc/new",
            "/both/below",
            "both/relative",
            "absolute/deep",
            "absolute/passwd",
            "out",
            "etc/../../etc",
            "gone/inside",
        ] {
            assert!(has(path), "{path:?}");
        }
        for path in ["nothing", "etc/passwd/below", "round", "etc/deep/x", "low/etc"] {
            assert!(!has(path), "{path:?}");
        }
        // Whiteouts need root; without it they are not tested.
        let mode = rustix::fs::Mode::empty();
        let removed = store.join("top/gone");
        let kind = rustix::fs::FileType::CharacterDevice;
        if rustix::fs::mknodat(rustix::fs::CWD, &removed, kind, mode, 0).is_ok() {
            assert!(!has("gone") && !has("gone/inside"));
        }
        let both = store.join("top/both");
        let flags = rustix::fs::XattrFlags::empty();
        if rustix::fs::lsetxattr(&both, c"trusted.overlay.opaque", b"y", flags).is_ok() {
            assert!(has("both") && !has("both/below"));
        }
    }
}
