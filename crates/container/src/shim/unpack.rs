//! Unpacks a layer over those below it: in a separate mount namespace, with the layer's root as this process's root, so
//! that no name in the archive can reach outside.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use sys::mounts::{self, MountPropagationFlags};
use sys::process::{self, Namespace};

use super::spec::Root;
use super::{Report, ShimError, Step, failure, read_json, report, rootfs};

/// A layer to unpack.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UnpackSpec {
    /// The archive, compressed or not.
    pub archive: PathBuf,
    /// Offset and length of the archive in the file.
    pub range: Option<(u64, u64)>,
    /// The lower layers and their directory.
    pub below: Root,
    /// A directory with `upper`, `work` and `rootfs` in it.
    pub into: PathBuf,
}

/// Size limit of an unpacked layer.
const LARGEST: u64 = 256 << 30;
/// Fraction of the free disk space that stays free, whatever a layer unpacks to.
const RESERVE: u64 = 10;
/// Memory limit of this process: names and attributes of an archive can be arbitrarily long.
const MOST_MEMORY: u64 = 2 << 30;

pub(super) fn run(directory: &Path, socket: &UnixStream) -> Result<(), ShimError> {
    let spec: UnpackSpec = read_json(&directory.join("unpack.json"))?;
    let archive = File::open(&spec.archive).step(|| format!("open {}", spec.archive.display()))?;
    confine().step(|| "limit memory".to_owned())?;
    process::unshare(&[Namespace::Mount]).step(|| "make a mount namespace".to_owned())?;
    mounts::propagate(Path::new("/"), MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
        .step(|| "make the mounts private".to_owned())?;
    let target = spec.into.join("rootfs");
    rootfs::overlay(&spec.below, Some(&spec.into), &target, None)?;
    rustix::process::chroot(&target).step(|| "change the root".to_owned())?;
    std::env::set_current_dir("/").step(|| "change the root".to_owned())?;
    rustix::process::umask(rustix::fs::Mode::empty());
    let reader: Box<dyn Read> = match spec.range {
        Some((offset, length)) => {
            let mut archive = archive;
            io::Seek::seek(&mut archive, io::SeekFrom::Start(offset)).step(|| "read the layer".to_owned())?;
            Box::new(archive.take(length))
        }
        None => Box::new(archive),
    };
    let mut hashed = Hashed { inner: decompress(reader)?, hash: Sha256::new(), size: 0 };
    let mut layer = Layer {
        available_bytes: available_bytes().step(|| "read the disk usage".to_owned())?,
        ..Layer::default()
    };
    let mut tar = tar::Archive::new(&mut hashed);
    for entry in tar.entries().step(|| "read the layer".to_owned())? {
        let mut entry = entry.step(|| "read the layer".to_owned())?;
        layer.unpack(&mut entry)?;
    }
    // Adding entries changes the times of directories, so they are set last.
    for (path, time) in layer.times.into_iter().rev() {
        let _ = set_time(&path, time);
    }
    let size = layer.size;
    // The digest is of the whole archive, including data after its end marker.
    io::copy(&mut hashed, &mut io::sink()).step(|| "read the layer".to_owned())?;
    let digest = format!("sha256:{}", hex::encode(hashed.hash.finalize()));
    report(socket, &Report::Unpacked { digest, size }).step(|| "report".to_owned())
}

/// Limits this process's memory, so that a hostile archive ends this process and nothing else.
fn confine() -> io::Result<()> {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let most = Some(MOST_MEMORY);
    setrlimit(Resource::Data, Rlimit { current: most, maximum: most })?;
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    Ok(())
}

/// Number of bytes that may be written.
fn available_bytes() -> io::Result<u64> {
    let disk = rustix::fs::statvfs("/")?;
    let blocks = disk.f_bavail - disk.f_bavail / RESERVE;
    Ok(blocks.saturating_mul(disk.f_frsize).min(LARGEST))
}

/// A layer being unpacked.
#[derive(Default)]
struct Layer {
    available_bytes: u64,
    size: u64,
    /// Modification times of directories.
    times: Vec<(PathBuf, i64)>,
    /// Paths that this layer created: its own whiteouts do not hide them.
    own: std::collections::BTreeSet<PathBuf>,
}

struct Hashed<R> {
    inner: R,
    hash: Sha256,
    size: u64,
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.hash.update(&buffer[..count]);
        self.size = self.size.saturating_add(count as u64);
        if self.size > LARGEST {
            return Err(io::Error::other("the layer exceeds the size limit"));
        }
        Ok(count)
    }
}

fn decompress(mut reader: Box<dyn Read>) -> Result<Box<dyn Read>, ShimError> {
    let mut magic = [0; 4];
    let mut filled = 0;
    while filled < magic.len() {
        match reader.read(&mut magic[filled..]).step(|| "read the layer".to_owned())? {
            0 => break,
            count => filled += count,
        }
    }
    let whole = io::Cursor::new(magic[..filled].to_vec()).chain(reader);
    Ok(match magic {
        [0x1f, 0x8b, ..] => {
            Box::new(flate2::read::MultiGzDecoder::new(io::BufReader::with_capacity(64 << 10, whole)))
        }
        [0x28, 0xb5, 0x2f, 0xfd] => Box::new(
            ruzstd::decoding::StreamingDecoder::new(whole)
                .map_err(|error| failure("read the layer", error.to_string()))?,
        ),
        _ => Box::new(io::BufReader::with_capacity(64 << 10, whole)),
    })
}

/// Converts to an absolute path inside the layer; `None` for its root. Names with `..` are rejected.
fn clean(path: &Path) -> Result<Option<PathBuf>, ShimError> {
    let mut out = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::Normal(name) => out.push(name),
            Component::ParentDir => {
                return Err(failure(
                    "unpack the layer",
                    format!("the name {} is outside of the layer", path.display()),
                ));
            }
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    Ok((out != Path::new("/")).then_some(out))
}

impl Layer {
    /// Counts bytes before they are written.
    fn account(&mut self, bytes: u64) -> Result<(), ShimError> {
        self.size = self.size.saturating_add(bytes);
        if self.size > self.available_bytes {
            return Err(failure(
                "unpack the layer",
                format!("no space left: it is larger than {} bytes", self.available_bytes),
            ));
        }
        Ok(())
    }

    fn unpack<R: Read>(&mut self, entry: &mut tar::Entry<'_, R>) -> Result<(), ShimError> {
        use tar::EntryType;
        let named = entry.path().step(|| "read a name".to_owned())?.into_owned();
        let header = entry.header().clone();
        let kind = header.entry_type();
        let step = || format!("unpack {}", named.display());
        let Some(path) = clean(&named)? else {
            return metadata(entry, Path::new("/"), &header, &mut self.times).step(step);
        };
        if let Some(parent) = path.parent()
            && !parent.exists()
        {
            rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
            let made = std::fs::create_dir_all(parent);
            rustix::process::umask(rustix::fs::Mode::empty());
            made.step(step)?;
        }
        let name = path.file_name().map(|name| name.as_bytes().to_vec()).unwrap_or_default();
        if let Some(rest) = name.strip_prefix(b".wh.") {
            return self.whiteout(&path, rest).step(step);
        }
        let before = std::fs::symlink_metadata(&path).ok();
        let keeps = kind == EntryType::Directory && before.as_ref().is_some_and(std::fs::Metadata::is_dir);
        if let Some(before) = before.filter(|_| !keeps) {
            remove(&path, before.is_dir()).step(step)?;
        }
        match kind {
            EntryType::Directory => {
                if !keeps {
                    std::fs::create_dir(&path).step(step)?;
                }
            }
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                let mut file = File::options().write(true).create_new(true).open(&path).step(step)?;
                // A sparse file is longer than its data in the archive.
                self.account(entry.size().max(header.entry_size().unwrap_or(0)))?;
                let mut left = entry.take(self.available_bytes);
                let copied = io::copy(&mut left, &mut file).step(step)?;
                self.account(copied.saturating_sub(entry.size()))?;
            }
            EntryType::Symlink => {
                let to = entry
                    .link_name()
                    .step(step)?
                    .ok_or_else(|| failure(&step(), "the link has no target"))?;
                std::os::unix::fs::symlink(to, &path).step(step)?;
            }
            EntryType::Link => {
                let to = entry
                    .link_name()
                    .step(step)?
                    .ok_or_else(|| failure(&step(), "the link has no target"))?;
                let to = clean(&to)?.ok_or_else(|| failure(&step(), "the link refers to the root"))?;
                self.note(&path);
                return std::fs::hard_link(to, &path).step(step);
            }
            EntryType::Char | EntryType::Block | EntryType::Fifo => {
                use rustix::fs::{CWD, FileType, Mode};
                let part = |number: io::Result<Option<u32>>| number.ok().flatten().unwrap_or(0);
                let device = rustix::fs::makedev(part(header.device_major()), part(header.device_minor()));
                let kind = match kind {
                    EntryType::Char => FileType::CharacterDevice,
                    EntryType::Block => FileType::BlockDevice,
                    _ => FileType::Fifo,
                };
                rustix::fs::mknodat(CWD, &path, kind, Mode::from_raw_mode(0o600), device).step(step)?;
            }
            // Global headers and entry types that images do not contain.
            _ => return Ok(()),
        }
        self.note(&path);
        metadata(entry, &path, &header, &mut self.times).step(step)
    }

    /// Records a path that this layer created, with its parents.
    fn note(&mut self, path: &Path) {
        for part in path.ancestors().take_while(|part| part.parent().is_some()) {
            if !self.own.insert(part.to_owned()) {
                return;
            }
        }
    }

    /// Applies a whiteout: removes files of the layers below, recorded by the overlay.
    fn whiteout(&self, path: &Path, name: &[u8]) -> io::Result<()> {
        let parent = path.parent().unwrap_or(Path::new("/"));
        if name == b".wh..opq" {
            let mut left = vec![parent.to_owned()];
            while let Some(directory) = left.pop() {
                for entry in std::fs::read_dir(directory)? {
                    let (path, kind) = {
                        let entry = entry?;
                        (entry.path(), entry.file_type()?)
                    };
                    match (self.own.contains(&path), kind.is_dir()) {
                        (true, true) => left.push(path),
                        (true, false) => {}
                        (false, directory) => remove(&path, directory)?,
                    }
                }
            }
            return Ok(());
        }
        if name.is_empty() || name == b"." || name == b".." {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let victim = parent.join(std::ffi::OsStr::from_bytes(name));
        match std::fs::symlink_metadata(&victim) {
            Ok(found) => remove(&victim, found.is_dir()),
            Err(_) => Ok(()),
        }
    }
}

fn remove(path: &Path, directory: bool) -> io::Result<()> {
    if directory { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }
}

fn metadata<R: Read>(
    entry: &mut tar::Entry<'_, R>,
    path: &Path,
    header: &tar::Header,
    later: &mut Vec<(PathBuf, i64)>,
) -> io::Result<()> {
    use rustix::fs::{CWD, Mode, XattrFlags, chmodat, lsetxattr};
    let id = |number: io::Result<u64>| number.ok().and_then(|id| u32::try_from(id).ok());
    std::os::unix::fs::lchown(path, id(header.uid()), id(header.gid()))?;
    let link = header.entry_type() == tar::EntryType::Symlink;
    if !link {
        chmodat(CWD, path, Mode::from_raw_mode(header.mode()? & 0o7777), rustix::fs::AtFlags::empty())?;
    }
    let mut time = i64::try_from(header.mtime().unwrap_or(0)).unwrap_or(0);
    if let Some(extensions) = entry.pax_extensions()? {
        for extension in extensions.flatten() {
            let key = extension.key_bytes();
            if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                // Overlay attributes must not come from an image.
                if name.starts_with(b"trusted.overlay.") {
                    continue;
                }
                match lsetxattr(path, name, extension.value_bytes(), XattrFlags::empty()) {
                    Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::PERM) => {}
                    other => other?,
                }
            } else if key == b"mtime"
                && let Some(seconds) =
                    extension.value().ok().and_then(|value| value.split('.').next()?.parse().ok())
            {
                time = seconds;
            }
        }
    }
    if header.entry_type() == tar::EntryType::Directory {
        later.push((path.to_owned(), time));
        return Ok(());
    }
    set_time(path, time)
}

fn set_time(path: &Path, seconds: i64) -> io::Result<()> {
    use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
    let time = Timespec { tv_sec: seconds, tv_nsec: 0 };
    let times = Timestamps { last_access: time, last_modification: time };
    Ok(utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}
