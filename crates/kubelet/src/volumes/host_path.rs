//! `hostPath` volumes.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

/// Checks the path against the requested type, or creates it.
pub fn prepare(path: &Path, kind: &str) -> Result<(), String> {
    let found = fs::metadata(path);
    let shown = path.display();
    let wrong = |what: &str| Err(format!("hostPath type check failed: {shown} is not a {what}"));
    let make = |outcome: io::Result<()>| outcome.map_err(|error| format!("cannot create {shown}: {error}"));
    match (kind, &found) {
        ("", _) => Ok(()),
        ("DirectoryOrCreate", Err(_)) => make(
            fs::create_dir_all(path)
                .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o755))),
        ),
        ("FileOrCreate", Err(_)) => make(
            fs::File::create(path).and_then(|file| file.set_permissions(fs::Permissions::from_mode(0o644))),
        ),
        ("DirectoryOrCreate" | "Directory", Ok(meta)) if meta.is_dir() => Ok(()),
        ("FileOrCreate" | "File", Ok(meta)) if meta.is_file() => Ok(()),
        ("Socket", Ok(meta)) if meta.file_type().is_socket() => Ok(()),
        ("CharDevice", Ok(meta)) if meta.file_type().is_char_device() => Ok(()),
        ("BlockDevice", Ok(meta)) if meta.file_type().is_block_device() => Ok(()),
        ("DirectoryOrCreate" | "Directory", _) => wrong("directory"),
        ("FileOrCreate" | "File", _) => wrong("file"),
        ("Socket", _) => wrong("socket file"),
        ("CharDevice", _) => wrong("character device"),
        ("BlockDevice", _) => wrong("block device"),
        (other, _) => Err(format!("hostPath type {other:?} is not known")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_path_types_are_checked() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path();
        let file = path.join("f");
        fs::write(&file, "").expect("a file");
        assert_eq!(prepare(path, "Directory"), Ok(()));
        assert_eq!(prepare(&file, "File"), Ok(()));
        assert!(prepare(&file, "Directory").is_err());
        assert!(prepare(&path.join("none"), "File").is_err());
        assert_eq!(prepare(&path.join("none"), ""), Ok(()));
        assert_eq!(prepare(&path.join("new/dir"), "DirectoryOrCreate"), Ok(()));
        assert!(path.join("new/dir").is_dir());
        assert_eq!(prepare(&path.join("made"), "FileOrCreate"), Ok(()));
        assert!(path.join("made").is_file());
    }
}
