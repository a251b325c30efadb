//! Tar archives with parent directories, owner root and fixed times.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::path::Path;

use anyhow::{Context, Result};
use flate2::{Compression, GzBuilder};

/// An archive in memory.
pub struct Archive {
    tar: tar::Builder<Vec<u8>>,
    directories: BTreeSet<String>,
    time: u64,
}

impl Archive {
    pub fn new(time: u64) -> Self {
        Self { tar: tar::Builder::new(Vec::new()), directories: BTreeSet::new(), time }
    }

    /// Adds a file with its parent directories. `path` is relative to the root.
    pub fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> Result<()> {
        self.parents(path)?;
        self.entry(path, tar::EntryType::Regular, mode, content)
    }

    /// Adds the file at `source`.
    pub fn copy(&mut self, path: &str, mode: u32, source: &Path) -> Result<()> {
        let content =
            std::fs::read(source).with_context(|| format!("failed to read {}", source.display()))?;
        self.file(path, mode, &content)
    }

    pub fn directory(&mut self, path: &str, mode: u32) -> Result<()> {
        self.parents(path)?;
        self.directories.insert(path.to_owned());
        self.entry(&format!("{path}/"), tar::EntryType::Directory, mode, &[])
    }

    fn parents(&mut self, path: &str) -> Result<()> {
        for (end, _) in path.match_indices('/') {
            let parent = &path[..end];
            if self.directories.insert(parent.to_owned()) {
                self.entry(&format!("{parent}/"), tar::EntryType::Directory, 0o755, &[])?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, path: &str, kind: tar::EntryType, mode: u32, content: &[u8]) -> Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(self.time);
        header.set_size(content.len() as u64);
        self.tar.append_data(&mut header, path, content).with_context(|| format!("failed to add {path}"))
    }

    pub fn finish(self) -> Result<Vec<u8>> {
        self.tar.into_inner().context("failed to finish an archive")
    }
}

/// Compresses with gzip, without a time or a name in the header.
pub fn gzip(content: &[u8]) -> Result<Vec<u8>> {
    let mut compressed = Vec::new();
    GzBuilder::new().read(content, Compression::best()).read_to_end(&mut compressed)?;
    Ok(compressed)
}

/// Writes an `ar` archive, the outer format of Debian packages.
pub fn write_ar(target: &mut impl Write, time: u64, members: &[(&str, &[u8])]) -> Result<()> {
    target.write_all(b"!<arch>\n")?;
    for (name, content) in members {
        writeln!(target, "{name:<16}{time:<12}{:<6}{:<6}{:<8}{:<10}`", 0, 0, "100644", content.len())?;
        target.write_all(content)?;
        if content.len() % 2 == 1 {
            target.write_all(b"\n")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ar_member_of_odd_size_is_padded() {
        let mut archive = Vec::new();
        write_ar(&mut archive, 7, &[("a", b"123"), ("b", b"45")]).expect("an archive");
        let text = String::from_utf8(archive).expect("ASCII");
        let header =
            |name: &str, size: u32| format!("{name:<16}7           0     0     100644  {size:<10}`\n");
        assert_eq!(text, format!("!<arch>\n{}123\n{}45", header("a", 3), header("b", 2)));
    }

    #[test]
    fn archive_lists_each_parent_once_before_its_files() {
        let mut archive = Archive::new(0);
        archive.file("usr/bin/a", 0o755, b"x").expect("a file");
        archive.file("usr/bin/b", 0o644, b"y").expect("a file");
        let bytes = archive.finish().expect("an archive");
        let mut tar = tar::Archive::new(&bytes[..]);
        let paths: Vec<_> = tar
            .entries()
            .expect("entries")
            .map(|entry| entry.expect("an entry").path().expect("a path").display().to_string())
            .collect();
        assert_eq!(paths, ["usr/", "usr/bin/", "usr/bin/a", "usr/bin/b"]);
    }
}
