//! Files and directories of the log directory.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};

/// Maximum number of entries that a listing shows.
const MAX_ENTRIES: usize = 10_000;
/// Characters that a link does not escape, besides letters and digits.
pub const LINK: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~')
    .remove(b'$')
    .remove(b'+')
    .remove(b',')
    .remove(b'/')
    .remove(b':')
    .remove(b';')
    .remove(b'=')
    .remove(b'@');

/// An open file or directory.
#[derive(Debug)]
pub struct Opened {
    pub file: File,
    pub metadata: Metadata,
}

/// Resolves `.`, `..` and empty components of a path; never leaves its root.
pub fn clean(path: &str) -> String {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Opens a file or directory of `root`. Fails with `PermissionDenied` for anything that is not below `root` after links are
/// followed, and for devices, sockets and pipes, which are not opened.
pub fn open(root: &Path, path: &str) -> io::Result<Opened> {
    let found = openat2(
        CWD,
        root.join(clean(path)),
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::NO_MAGICLINKS,
    )?;
    let handle = format!("/proc/self/fd/{}", found.as_raw_fd());
    let outside = || io::Error::from(io::ErrorKind::PermissionDenied);
    if !fs::read_link(&handle)?.starts_with(fs::canonicalize(root)?) {
        return Err(outside());
    }
    let found = File::from(found);
    let metadata = found.metadata()?;
    if !metadata.is_file() && !metadata.is_dir() {
        return Err(outside());
    }
    // Opens the object that was checked, even if the path has been changed since.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(&handle, flags, Mode::empty())?);
    Ok(Opened { file, metadata })
}

/// Page with links to the entries of an open directory, sorted by name.
pub fn listing(directory: &File) -> io::Result<String> {
    let mut names = Vec::new();
    let mut is_complete = true;
    for entry in rustix::fs::Dir::read_from(directory)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().to_str() else { continue };
        if matches!(name, "." | "..") {
            continue;
        }
        if names.len() == MAX_ENTRIES {
            is_complete = false;
            break;
        }
        let slash = if entry.file_type() == rustix::fs::FileType::Directory { "/" } else { "" };
        names.push((name.to_owned(), slash));
    }
    names.sort_unstable();
    let mut page =
        String::from("<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n");
    for (name, slash) in &names {
        // A colon would end a scheme.
        let dot = if name.contains(':') { "./" } else { "" };
        let link = utf8_percent_encode(name, LINK);
        page.push_str(&format!("<a href=\"{dot}{link}{slash}\">{}{slash}</a>\n", escape_html(name)));
    }
    if !is_complete {
        page.push_str(&format!("only {MAX_ENTRIES} entries are shown\n"));
    }
    page.push_str("</pre>\n");
    Ok(page)
}

fn escape_html(text: &str) -> String {
    let escaped = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    escaped.replace('"', "&#34;").replace('\'', "&#39;")
}

/// Content type by the beginning of a file. Files are never served as HTML.
pub fn content_type(begin: &[u8]) -> &'static str {
    let is_binary = |byte: &u8| matches!(byte, 0..=8 | 11 | 14..=26 | 28..=31);
    if begin.starts_with(&[0x1f, 0x8b, 8]) {
        "application/x-gzip"
    } else if begin.iter().any(is_binary) {
        "application/octet-stream"
    } else {
        "text/plain; charset=utf-8"
    }
}

/// First byte and length of a requested part of `size` bytes: the whole without a range, with several ranges, or if it is not a
/// range of bytes. `None` if no byte is in the range.
pub fn part(range: Option<&str>, size: u64) -> Option<(u64, u64)> {
    let whole = (0, size);
    let Some(wanted) = range.and_then(|range| range.strip_prefix("bytes=")) else { return Some(whole) };
    let Some((first, last)) = wanted.trim().split_once('-') else { return Some(whole) };
    match (first.parse::<u64>(), last.parse::<u64>()) {
        (Ok(first), last) => {
            let last = last.unwrap_or(u64::MAX).min(size.checked_sub(1)?);
            Some((first, last.checked_sub(first)?.saturating_add(1)))
        }
        (Err(_), Ok(last)) if first.is_empty() => {
            let length = last.min(size);
            (length > 0).then(|| (size.saturating_sub(length), length))
        }
        _ => Some(whole),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::os::unix::fs::symlink;

    fn root() -> tempfile::TempDir {
        let outer = tempfile::tempdir().expect("a directory");
        let root = outer.path().join("log");
        fs::create_dir_all(root.join("apt")).expect("a directory");
        fs::write(root.join("apt/history.log"), "installed").expect("a file");
        fs::write(outer.path().join("shadow"), "secret").expect("a file");
        fs::create_dir(outer.path().join("log-other")).expect("a directory");
        fs::write(outer.path().join("log-other/x"), "secret").expect("a file");
        outer
    }

    fn read(root: &Path, path: &str) -> Result<String, io::ErrorKind> {
        let mut text = String::new();
        let mut opened = open(root, path).map_err(|error| error.kind())?;
        opened.file.read_to_string(&mut text).map_err(|error| error.kind())?;
        Ok(text)
    }

    #[test]
    fn paths_never_leave_the_directory() {
        let outer = root();
        let log = outer.path().join("log");
        assert_eq!(read(&log, "apt/history.log").as_deref(), Ok("installed"));
        assert_eq!(read(&log, "/apt/../apt//./history.log").as_deref(), Ok("installed"));
        for path in ["../shadow", "apt/../../shadow", "/../../shadow", "../log-other/x"] {
            assert_eq!(read(&log, path), Err(io::ErrorKind::NotFound), "{path}");
        }
    }

    #[test]
    fn links_lead_only_to_what_is_in_the_directory() {
        let outer = root();
        let log = outer.path().join("log");
        let shadow = outer.path().join("shadow");
        symlink(&shadow, log.join("absolute")).expect("a link");
        symlink("../shadow", log.join("relative")).expect("a link");
        symlink("../log-other", log.join("sibling")).expect("a link");
        symlink("/", log.join("host")).expect("a link");
        symlink("/proc/self/root", log.join("magic")).expect("a link");
        symlink(log.join("apt/history.log"), log.join("inside")).expect("a link");
        symlink("loop", log.join("loop")).expect("a link");
        assert_eq!(read(&log, "inside").as_deref(), Ok("installed"));
        let host = format!("host{}", shadow.display());
        for path in ["absolute", "relative", "sibling/x", "host", &host] {
            assert_eq!(read(&log, path), Err(io::ErrorKind::PermissionDenied), "{path}");
        }
        for path in ["magic", "loop"] {
            assert!(read(&log, path).is_err(), "{path}");
        }
        // The log directory itself may be a link.
        symlink(&log, outer.path().join("linked")).expect("a link");
        assert_eq!(read(&outer.path().join("linked"), "apt/history.log").as_deref(), Ok("installed"));
    }

    #[test]
    fn pipes_are_not_opened() {
        let outer = root();
        let log = outer.path().join("log");
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(CWD, log.join("pipe"), rustix::fs::FileType::Fifo, mode, 0).expect("a pipe");
        assert_eq!(read(&log, "pipe"), Err(io::ErrorKind::PermissionDenied));
    }

    #[test]
    fn listing_is_sorted_and_escaped() {
        let outer = root();
        let log = outer.path().join("log");
        for name in ["b:1", "<script>", "a&b \"c\""] {
            fs::write(log.join(name), "").expect("a file");
        }
        let page = listing(&open(&log, "").expect("opens").file).expect("a page");
        let lines: Vec<&str> = page.lines().skip(3).collect();
        let want = [
            "<a href=\"%3Cscript%3E\">&lt;script&gt;</a>",
            "<a href=\"a%26b%20%22c%22\">a&amp;b &#34;c&#34;</a>",
            "<a href=\"apt/\">apt/</a>",
            "<a href=\"./b:1\">b:1</a>",
            "</pre>",
        ];
        assert_eq!(lines, want);
    }

    #[test]
    fn ranges_select_bytes() {
        for (range, want) in [
            (None, Some((0, 10))),
            (Some("bytes=2-4"), Some((2, 3))),
            (Some("bytes=2-"), Some((2, 8))),
            (Some("bytes=2-99"), Some((2, 8))),
            (Some("bytes=-3"), Some((7, 3))),
            (Some("bytes=-99"), Some((0, 10))),
            (Some("bytes=10-"), None),
            (Some("bytes=5-4"), None),
            (Some("bytes=-0"), None),
            (Some("bytes=0-1,3-4"), Some((0, 10))),
            (Some("bytes=18446744073709551615-"), None),
            (Some("lines=1-2"), Some((0, 10))),
        ] {
            assert_eq!(part(range, 10), want, "{range:?}");
        }
        assert_eq!(part(None, 0), Some((0, 0)));
    }

    #[test]
    fn content_type_is_text_unless_binary() {
        assert_eq!(content_type(b"<html>"), "text/plain; charset=utf-8");
        assert_eq!(content_type(b"a\0b"), "application/octet-stream");
        assert_eq!(content_type(&[0x1f, 0x8b, 8, 0]), "application/x-gzip");
    }
}
