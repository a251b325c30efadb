//! Reads a log from the requested position to its end, or until the container exits.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};

use bytes::{Bytes, BytesMut};
use jiff::Timestamp;
use tokio::fs::File;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncSeekExt, BufReader, SeekFrom};
use tokio::sync::mpsc;

use super::follow::Changes;
use super::line::{Stream, parse_line};

const BLOCK: u64 = 64 * 1024;
/// Maximum line length read; runtimes split lines far below it.
const MAX_LINE: usize = 1 << 20;

/// Options of a log request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogOptions {
    pub follow: bool,
    pub previous: bool,
    pub timestamps: bool,
    pub since: Option<Timestamp>,
    pub tail: Option<u64>,
    pub limit_bytes: Option<u64>,
    pub stream: Option<Stream>,
}

/// Sends the log to `out` until its end, or until `ended` reports that the container has exited.
pub async fn read<F>(
    path: PathBuf,
    options: LogOptions,
    out: mpsc::Sender<Bytes>,
    ended: impl Fn() -> F,
) -> io::Result<()>
where
    F: Future<Output = bool>,
{
    let start = match options.tail {
        Some(count) => offset_of_last(&path, count).await?,
        None => 0,
    };
    let mut changes = if options.follow { Some(Changes::of(&path)?) } else { None };
    let mut file = File::open(&path).await?;
    file.seek(SeekFrom::Start(start)).await?;
    let mut reader = BufReader::with_capacity(BLOCK as usize, file);
    let mut left = options.limit_bytes.unwrap_or(u64::MAX);
    let mut raw = Vec::new();
    let mut buffer = BytesMut::new();
    let mut at_line_start = true;
    loop {
        let begun = raw.len();
        let found = (&mut reader).take(MAX_LINE as u64).read_until(b'\n', &mut raw).await?;
        if found > 0 && (raw.ends_with(b"\n") || raw.len() >= MAX_LINE) {
            append(&mut buffer, &raw, &options, &mut at_line_start);
            raw.clear();
            if buffer.len() as u64 >= left {
                buffer.truncate(usize::try_from(left).unwrap_or(usize::MAX));
                let _ = out.send(buffer.freeze()).await;
                return Ok(());
            }
            if buffer.len() < BLOCK as usize && !reader.buffer().is_empty() {
                continue;
            }
        }
        if !buffer.is_empty() {
            left -= buffer.len() as u64;
            if out.send(buffer.split().freeze()).await.is_err() {
                return Ok(());
            }
        }
        if found > 0 && raw.len() != begun {
            continue;
        }
        if found > 0 {
            continue;
        }
        let Some(changes) = &mut changes else { return Ok(()) };
        // Checked before the last read, so that output until the exit is not missed.
        let over = ended().await;
        let length = tokio::fs::metadata(&path).await.map(|meta| meta.len()).unwrap_or(0);
        let position = reader.stream_position().await?;
        if changes.was_rotated(&path, reader.get_ref()).await {
            reader = BufReader::with_capacity(BLOCK as usize, File::open(&path).await?);
            raw.clear();
            continue;
        }
        if length > position {
            continue;
        }
        if over {
            return Ok(());
        }
        tokio::select! {
            () = changes.next() => {}
            () = out.closed() => return Ok(()),
        }
    }
}

fn append(out: &mut BytesMut, raw: &[u8], options: &LogOptions, at_line_start: &mut bool) {
    let raw = raw.strip_suffix(b"\n").unwrap_or(raw);
    let Some(line) = parse_line(raw) else { return };
    if options.stream.is_some_and(|wanted| wanted != line.stream) {
        return;
    }
    if let Some(since) = options.since
        && line.timestamp().is_some_and(|time| time < since)
    {
        return;
    }
    if options.timestamps && *at_line_start {
        out.extend_from_slice(line.time.as_bytes());
        out.extend_from_slice(b" ");
    }
    out.extend_from_slice(line.content);
    *at_line_start = !line.partial;
    if !line.partial {
        out.extend_from_slice(b"\n");
    }
}

/// Offset of the last `count` lines.
async fn offset_of_last(path: &Path, count: u64) -> io::Result<u64> {
    let mut file = File::open(path).await?;
    let length = file.metadata().await?.len();
    if count == 0 {
        return Ok(length);
    }
    let mut end = length;
    let mut newlines = 0;
    let mut block = vec![0; BLOCK as usize];
    while end > 0 {
        let begin = end.saturating_sub(BLOCK);
        let size = usize::try_from(end - begin).unwrap_or(0);
        file.seek(SeekFrom::Start(begin)).await?;
        file.read_exact(&mut block[..size]).await?;
        for at in (0..size).rev() {
            let position = begin + at as u64;
            if block[at] == b'\n' && position + 1 != length {
                newlines += 1;
                if newlines == count {
                    return Ok(position + 1);
                }
            }
        }
        end = begin;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const LOG: &str = "2026-01-01T00:00:00Z stdout F one\n2026-01-01T00:00:01Z stderr F two\n2026-01-01T00:00:02Z stdout P th\n2026-01-01T00:00:02Z stdout F ree\n";

    async fn run(options: LogOptions) -> String {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("0.log");
        std::fs::write(&path, LOG).expect("a log");
        let (sender, mut receiver) = mpsc::channel(100);
        read(path, options, sender, || async { true }).await.expect("read");
        let mut out = Vec::new();
        while let Some(piece) = receiver.recv().await {
            out.extend_from_slice(&piece);
        }
        String::from_utf8(out).expect("text")
    }

    #[tokio::test]
    async fn log_options_select_lines() {
        let options = LogOptions::default;
        assert_eq!(run(options()).await, "one\ntwo\nthree\n");
        assert_eq!(run(LogOptions { tail: Some(3), ..options() }).await, "two\nthree\n");
        assert_eq!(run(LogOptions { tail: Some(0), ..options() }).await, "");
        assert_eq!(run(LogOptions { tail: Some(9), ..options() }).await, "one\ntwo\nthree\n");
        assert_eq!(run(LogOptions { stream: Some(Stream::Stderr), ..options() }).await, "two\n");
        assert_eq!(run(LogOptions { limit_bytes: Some(5), ..options() }).await, "one\nt");
        let since = "2026-01-01T00:00:01Z".parse().expect("a time");
        assert_eq!(run(LogOptions { since: Some(since), ..options() }).await, "two\nthree\n");
        assert_eq!(
            run(LogOptions { timestamps: true, ..options() }).await,
            "2026-01-01T00:00:00Z one\n2026-01-01T00:00:01Z two\n2026-01-01T00:00:02Z three\n"
        );
        assert_eq!(run(LogOptions { follow: true, ..options() }).await, "one\ntwo\nthree\n");
    }

    #[tokio::test]
    async fn log_follow_reads_appended_lines() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("0.log");
        std::fs::write(&path, "2026-01-01T00:00:00Z stdout F one\n").expect("a log");
        let (sender, mut receiver) = mpsc::channel(100);
        let (over, ended) = tokio::sync::watch::channel(false);
        let options = LogOptions { follow: true, ..LogOptions::default() };
        let reading = tokio::spawn(read(path.clone(), options, sender, move || {
            let ended = ended.clone();
            async move { *ended.borrow() }
        }));
        assert_eq!(receiver.recv().await.as_deref(), Some(&b"one\n"[..]));
        let mut file = std::fs::OpenOptions::new().append(true).open(&path).expect("the log");
        file.write_all(b"2026-01-01T00:00:00Z stdout F two\n").expect("written");
        assert_eq!(receiver.recv().await.as_deref(), Some(&b"two\n"[..]));
        over.send(true).expect("a reader");
        reading.await.expect("no panic").expect("read");
    }
}
