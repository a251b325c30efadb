//! Directories inaccessible to other users of the machine.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;

/// Creates a directory with at most `mode`, regardless of the umask. An existing one keeps its content and loses the
/// permissions beyond `mode`.
pub fn ensure(path: &Path, mode: u32) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(mode).create(path)?;
    let found = fs::metadata(path)?.permissions().mode() & 0o7777;
    let wanted = found & (mode | 0o7000);
    if wanted != found {
        fs::set_permissions(path, Permissions::from_mode(wanted))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_wider_than_wanted_is_corrected() {
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("a/b");
        ensure(&path, 0o750).unwrap();
        assert_eq!(mode(&path) & !0o750, 0);
        for (before, after) in [(0o755, 0o750), (0o777, 0o750), (0o700, 0o700), (0o2775, 0o2750)] {
            fs::set_permissions(&path, Permissions::from_mode(before)).unwrap();
            ensure(&path, 0o750).unwrap();
            assert_eq!(mode(&path), after, "{before:o}");
        }
    }
}
