//! Logs of services: the journal of systemd, or files of services that it does not know.

use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Command;
use tokio::sync::mpsc;

use super::files;
use super::query::{JournalOptions, NodeLogQuery};

/// Time limit of a query.
const DEADLINE: Duration = Duration::from_secs(30);
const BLOCK: usize = 64 * 1024;
/// Maximum size of the list of units.
const MAX_UNITS: u64 = 16 << 20;

/// Program that reads the journal.
pub const JOURNALCTL: &str = "journalctl";

/// Sends the logs of the services to `out`, with a line for each that has none, until the time limit or until the receiver is
/// dropped.
pub async fn copy(program: &str, directory: &Path, query: &NodeLogQuery, out: mpsc::Sender<Bytes>) {
    if tokio::time::timeout(DEADLINE, copy_all(program, directory, query, &out)).await.is_err() {
        tracing::debug!(services = ?query.services, "log query ended at its time limit");
    }
}

async fn copy_all(program: &str, directory: &Path, query: &NodeLogQuery, out: &mpsc::Sender<Bytes>) {
    let units = units(program).await;
    let is_native = |service: &&String| units.contains(&format!("{service}.service"));
    let (native, others): (Vec<&String>, Vec<&String>) = query.services.iter().partition(is_native);
    if !native.is_empty() {
        let arguments = arguments(&native, &query.options);
        if copy_output(program, &arguments, out).await.is_err() {
            say(out, "\nerror: journal output not available\n".to_owned()).await;
        }
    }
    if !others.is_empty() && query.options != JournalOptions::default() {
        let text = "options present and query resolved to log files for";
        let names: Vec<&str> = others.iter().map(|name| name.as_str()).collect();
        say(out, format!("\n{text} [{}]\ntry without specifying options\n", names.join(" "))).await;
        return;
    }
    for service in others {
        match copy_file_of(directory, service, out).await {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                say(out, format!("\nlog not found for {service}\n")).await;
            }
            Err(error) => say(out, format!("\nerror getting log for {service}: {error}\n")).await,
        }
    }
}

async fn say(out: &mpsc::Sender<Bytes>, text: String) {
    let _ = out.send(text.into()).await;
}

fn command(program: &str, arguments: &[String]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    command
}

/// Names of the units in the journal, a line each; empty without a journal.
async fn units(program: &str) -> String {
    let mut command = command(program, &["--field".to_owned(), "_SYSTEMD_UNIT".to_owned()]);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let Ok(mut child) = command.spawn() else { return String::new() };
    let mut units = String::new();
    if let Some(output) = child.stdout.take() {
        let _ = output.take(MAX_UNITS).read_to_string(&mut units).await;
    }
    units
}

fn arguments(services: &[&String], options: &JournalOptions) -> Vec<String> {
    let time = |time: Timestamp| time.strftime("%Y-%m-%d %H:%M:%S UTC");
    let mut arguments = ["--utc", "--no-pager", "--output=short-precise"].map(str::to_owned).to_vec();
    arguments.extend(options.since.map(|since| format!("--since={}", time(since))));
    arguments.extend(options.until.map(|until| format!("--until={}", time(until))));
    arguments.extend(options.tail_lines.map(|lines| format!("--lines={lines}")));
    arguments.extend(services.iter().map(|service| format!("--unit={service}")));
    arguments.extend(options.pattern.as_ref().map(|pattern| format!("--grep={pattern}")));
    arguments.extend(options.boot.map(|boot| format!("--boot={boot}")));
    arguments
}

/// Sends the output of the program, errors after the rest.
async fn copy_output(program: &str, arguments: &[String], out: &mpsc::Sender<Bytes>) -> io::Result<()> {
    let mut command = command(program, arguments);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (output, errors) = (child.stdout.take(), child.stderr.take());
    let (outcome, other) = tokio::join!(copy_stream(output, out), copy_stream(errors, out));
    outcome.and(other)?;
    child.wait().await?;
    Ok(())
}

async fn copy_stream(stream: Option<impl AsyncRead + Unpin>, out: &mpsc::Sender<Bytes>) -> io::Result<()> {
    let Some(mut stream) = stream else { return Ok(()) };
    loop {
        let mut block = Vec::with_capacity(BLOCK);
        if stream.read_buf(&mut block).await? == 0 {
            return Ok(());
        }
        if out.send(block.into()).await.is_err() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
    }
}

/// Sends the first that exists of SERVICE, SERVICE.log and SERVICE/SERVICE.log.
async fn copy_file_of(directory: &Path, service: &str, out: &mpsc::Sender<Bytes>) -> io::Result<()> {
    for name in [service.to_owned(), format!("{service}.log"), format!("{service}/{service}.log")] {
        match files::open(directory, &name) {
            Ok(opened) if opened.metadata.is_dir() => {}
            Ok(opened) => {
                // Up to its present size: a file that grows as fast as it is read would not end.
                let file = tokio::fs::File::from_std(opened.file).take(opened.metadata.len());
                return copy_stream(Some(Box::pin(file)), out).await;
            }
            Err(error) if matches!(error.raw_os_error(), Some(NO_ENTRY | NO_DIRECTORY)) => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

const NO_ENTRY: i32 = rustix::io::Errno::NOENT.raw_os_error();
const NO_DIRECTORY: i32 = rustix::io::Errno::NOTDIR.raw_os_error();

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    fn query(services: &[&str], options: JournalOptions) -> NodeLogQuery {
        let services = services.iter().map(|service| (*service).to_owned()).collect();
        NodeLogQuery { services, options, ..NodeLogQuery::default() }
    }

    async fn result(program: &str, directory: &Path, query: &NodeLogQuery) -> String {
        let (sender, mut receiver) = mpsc::channel::<Bytes>(4);
        let collect = async {
            let mut text = Vec::new();
            while let Some(piece) = receiver.recv().await {
                text.extend_from_slice(&piece);
            }
            String::from_utf8(text).expect("text")
        };
        tokio::join!(copy(program, directory, query, sender), collect).1
    }

    /// A program that knows the unit `known.service` and prints its arguments.
    fn journal(directory: &Path) -> String {
        let path = directory.join("journalctl");
        let text = "#!/bin/sh\n[ \"$1\" = --field ] && { echo known.service; exit; }\nprintf '%s|' \"$@\"\n";
        fs::write(&path, text).expect("a script");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
        path.display().to_string()
    }

    #[tokio::test]
    async fn services_of_the_journal_are_read_with_the_options() {
        let directory = tempfile::tempdir().expect("a directory");
        let program = journal(directory.path());
        let options = JournalOptions {
            since: Some("2026-01-02T03:04:05+01:00".parse().expect("a time")),
            tail_lines: Some(3),
            boot: Some(-1),
            pattern: Some("a b; --file=/etc/shadow".to_owned()),
            until: None,
        };
        let text = result(&program, directory.path(), &query(&["known"], options)).await;
        let want = "--utc|--no-pager|--output=short-precise|--since=2026-01-02 02:04:05 UTC|--lines=3|--unit=known|\
                    --grep=a b; --file=/etc/shadow|--boot=-1|";
        assert_eq!(text, want);
    }

    #[tokio::test]
    async fn other_services_are_read_from_files() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = directory.path();
        let program = journal(at);
        fs::write(at.join("plain"), "1").expect("a file");
        fs::write(at.join("ending.log"), "2").expect("a file");
        fs::create_dir(at.join("nested")).expect("a directory");
        fs::write(at.join("nested/nested.log"), "3").expect("a file");
        std::os::unix::fs::symlink("/etc/passwd", at.join("link")).expect("a link");
        let read =
            async |services: &[&str]| result(&program, at, &query(services, JournalOptions::default())).await;
        assert_eq!(read(&["plain", "ending", "nested"]).await, "123");
        assert_eq!(read(&["absent"]).await, "\nlog not found for absent\n");
        assert_eq!(read(&[".."]).await, "\nlog not found for ..\n");
        assert!(!read(&["link"]).await.contains("root"));
        let options = JournalOptions { tail_lines: Some(1), ..JournalOptions::default() };
        let text = result(&program, at, &query(&["plain"], options)).await;
        assert!(text.contains("options present and query resolved to log files for [plain]"), "{text}");
        let text = result("/nonexistent", at, &query(&["plain"], JournalOptions::default())).await;
        assert_eq!(text, "1", "a machine without a journal");
    }

    #[tokio::test]
    async fn command_ends_when_the_client_leaves() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("endless");
        fs::write(&path, "#!/bin/sh\n[ \"$1\" = --field ] && { echo x.service; exit; }\nexec yes\n")
            .expect("a script");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
        let (sender, mut receiver) = mpsc::channel(1);
        let query = query(&["x"], JournalOptions::default());
        let leave = async {
            assert!(receiver.recv().await.is_some());
            drop(receiver);
        };
        let copying = copy(path.to_str().expect("text"), directory.path(), &query, sender);
        let both = async { tokio::join!(copying, leave) };
        tokio::time::timeout(Duration::from_secs(10), both).await.expect("ends");
    }
}
