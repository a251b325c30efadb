//! Replaces a set of files atomically, as seen by containers.
//!
//! Files are in a directory with a timestamp in its name; `..data` is a symbolic link to the current one, and every
//! top-level name is a link through `..data`. Renaming `..data` switches all files at once.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use super::payload::Payload;

const DATA: &str = "..data";
const NEXT: &str = "..data_tmp";

/// Writes `payload` into `target` unless it is current; true if anything changed. `finish` is called on the new
/// directory before it becomes visible, to set ownership.
pub fn write(
    target: &Path,
    payload: &Payload,
    now: jiff::Timestamp,
    finish: impl FnOnce(&Path) -> io::Result<()>,
) -> io::Result<bool> {
    for path in payload.keys() {
        check(path)?;
    }
    let data = target.join(DATA);
    let old = fs::read_link(&data).ok().map(|link| target.join(link));
    if let Some(old) = &old
        && is_current(old, payload)?
    {
        return Ok(false);
    }
    let stamp = now.strftime("..%Y_%m_%d_%H_%M_%S").to_string();
    let fresh = target.join(format!("{stamp}.{:010}", now.subsec_nanosecond()));
    fs::create_dir_all(&fresh)?;
    fs::set_permissions(&fresh, fs::Permissions::from_mode(0o755))?;
    for (path, file) in payload {
        let location = fresh.join(path);
        if let Some(parent) = location.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&location, &file.content)?;
        fs::set_permissions(&location, fs::Permissions::from_mode(file.mode))?;
        if let Some(owner) = file.owner {
            std::os::unix::fs::chown(&location, Some(owner), None)?;
        }
    }
    finish(&fresh)?;
    let next = target.join(NEXT);
    match fs::remove_file(&next) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let name = fresh.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    symlink(name, &next)?;
    fs::rename(&next, &data)?;
    link_names(target, payload)?;
    if let Some(old) = old.filter(|old| *old != fresh) {
        fs::remove_dir_all(old).or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        })?;
    }
    Ok(true)
}

/// Validates a path within the volume: relative, without `..`, and not one of the writer's own names.
fn check(path: &str) -> io::Result<()> {
    let sound = !path.is_empty()
        && !path.starts_with("..")
        && Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
    if sound {
        Ok(())
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, format!("invalid path {path:?}")))
    }
}

fn is_current(directory: &Path, payload: &Payload) -> io::Result<bool> {
    let mut present = BTreeSet::new();
    collect(directory, Path::new(""), &mut present, 0)?;
    if present.len() != payload.len() {
        return Ok(false);
    }
    for (path, file) in payload {
        let location = directory.join(path);
        let same = fs::read(&location).is_ok_and(|content| content == file.content)
            && fs::metadata(&location)
                .is_ok_and(|meta| meta.permissions().mode() & 0o700 == file.mode & 0o700);
        if !present.contains(path) || !same {
            return Ok(false);
        }
    }
    Ok(true)
}

fn collect(root: &Path, below: &Path, out: &mut BTreeSet<String>, depth: usize) -> io::Result<()> {
    if depth > 64 {
        return Ok(());
    }
    for entry in fs::read_dir(root.join(below))? {
        let entry = entry?;
        let path = below.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            collect(root, &path, out, depth + 1)?;
        } else {
            out.insert(path.to_string_lossy().into_owned());
        }
    }
    Ok(())
}

/// Links every top-level name to the current data, and removes stale links.
fn link_names(target: &Path, payload: &Payload) -> io::Result<()> {
    let names: BTreeSet<PathBuf> = payload
        .keys()
        .filter_map(|path| Path::new(path).components().next())
        .map(|first| PathBuf::from(first.as_os_str()))
        .collect();
    for name in &names {
        let link = target.join(name);
        if fs::symlink_metadata(&link).is_err() {
            symlink(Path::new(DATA).join(name), &link)?;
        }
    }
    for entry in fs::read_dir(target)? {
        let entry = entry?;
        let name = PathBuf::from(entry.file_name());
        let own = entry.file_name().to_string_lossy().starts_with("..");
        if !own && !names.contains(&name) && entry.file_type()?.is_symlink() {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volumes::payload::File;
    use jiff::{SignedDuration, Timestamp};

    fn payload(files: &[(&str, &str)]) -> Payload {
        files
            .iter()
            .map(|(path, text)| {
                let file = File { content: text.as_bytes().to_vec(), mode: 0o644, owner: None };
                ((*path).to_owned(), file)
            })
            .collect()
    }

    #[test]
    fn atomic_write_replaces_all_files() {
        let directory = tempfile::tempdir().expect("a directory");
        let target = directory.path();
        let mut now = Timestamp::UNIX_EPOCH;
        let mut put = |files: &[(&str, &str)]| {
            now += SignedDuration::from_secs(1);
            write(target, &payload(files), now, |_| Ok(())).expect("written")
        };
        let read = |path: &str| fs::read_to_string(target.join(path)).ok();
        assert!(put(&[("a", "1"), ("d/b", "2")]));
        assert!(!put(&[("a", "1"), ("d/b", "2")]), "an identical payload changes nothing");
        assert_eq!((read("a"), read("d/b")), (Some("1".to_owned()), Some("2".to_owned())));
        assert!(put(&[("a", "3"), ("c", "4")]));
        assert_eq!((read("a"), read("d/b"), read("c")), (Some("3".to_owned()), None, Some("4".to_owned())));
        let left = fs::read_dir(target).expect("a directory").count();
        assert_eq!(left, 4, "a, c, ..data and one directory");
    }

    #[test]
    fn atomic_write_rejects_paths_outside_volume() {
        let directory = tempfile::tempdir().expect("a directory");
        for path in ["../x", "/etc/x", "a/../../x", "", "..data", "./../x"] {
            let result = write(directory.path(), &payload(&[(path, "x")]), Timestamp::UNIX_EPOCH, |_| Ok(()));
            assert!(result.is_err(), "{path}");
        }
        assert_eq!(fs::read_dir(directory.path()).expect("a directory").count(), 0);
    }
}
