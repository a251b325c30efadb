//! Backup of a running cluster: its store is locked, so the process that holds it takes the snapshot.
//!
//! It listens on a socket in the data directory, which only the directory's owner may enter. Each client is sent a
//! line, `snapshot REVISION LENGTH` or `error TEXT`, and the snapshot's bytes.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::tasks::TaskGroup;
use store::{Revision, Store};
use tokio::fs::{self, File};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};

use crate::{ClusterError, chain};

/// Socket name in the data directory.
const SOCKET: &str = "backup.sock";
/// Temporary snapshot in the data directory.
const TEMPORARY_SNAPSHOT: &str = "backup.passing";
/// Delay after a failed accept.
/// Write timeout of a client.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// Copy buffer size.
const BUFFER_SIZE: usize = 64 * 1024;

/// Serves snapshots of the store until the tasks stop. Without a socket the cluster runs, but cannot be backed up
/// while running.
pub(crate) fn serve(data_dir: &Path, store: Arc<dyn Store>, tasks: &TaskGroup) {
    let (socket, passing) = (data_dir.join(SOCKET), data_dir.join(TEMPORARY_SNAPSHOT));
    let listener = match listen(&socket) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::warn!(socket = %socket.display(), %error, "failed to serve backups of the running cluster");
            return;
        }
    };
    let (group, listener) = (tasks.clone(), Arc::new(listener));
    tasks.supervise("backup", move || {
        let (stopping, listener, store) = (group.stopping(), Arc::clone(&listener), Arc::clone(&store));
        let (socket, passing) = (socket.clone(), passing.clone());
        async move {
            tokio::select! {
                () = stopping => {
                    let _ = std::fs::remove_file(&passing);
                    let _ = std::fs::remove_file(&socket);
                }
                () = accept(&listener, &passing, &*store) => {}
            }
        }
    });
}

fn listen(socket: &Path) -> io::Result<UnixListener> {
    // The store is locked, so an existing socket is a leftover of a crash.
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(socket)?;
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Serves one client at a time; others wait.
async fn accept(listener: &UnixListener, passing: &Path, store: &dyn Store) {
    let mut acceptor = base::accept::Acceptor::new(listener);
    loop {
        let (mut client, _) = acceptor.accept().await;
        match serve_client(&mut client, passing, store).await {
            Ok(revision) => tracing::info!(revision, "served a backup"),
            Err(error) => tracing::warn!(%error, "failed to serve a backup"),
        }
    }
}

async fn serve_client(client: &mut UnixStream, passing: &Path, store: &dyn Store) -> io::Result<Revision> {
    let revision = match store.snapshot(passing).await {
        Ok(revision) => revision,
        Err(error) => {
            let text = chain(&error).replace('\n', " ");
            send(client, format!("error {text}\n").as_bytes()).await?;
            return Err(io::Error::other(text));
        }
    };
    let mut file = File::open(passing).await?;
    // Unlinked now: only the open file remains.
    fs::remove_file(passing).await?;
    let length = file.metadata().await?.len();
    send(client, format!("snapshot {revision} {length}\n").as_bytes()).await?;
    let mut piece = vec![0; BUFFER_SIZE];
    loop {
        match file.read(&mut piece).await? {
            0 => break,
            count => send(client, &piece[..count]).await?,
        }
    }
    client.shutdown().await?;
    Ok(revision)
}

async fn send(client: &mut UnixStream, bytes: &[u8]) -> io::Result<()> {
    match tokio::time::timeout(WRITE_TIMEOUT, client.write_all(bytes)).await {
        Ok(outcome) => outcome,
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "client stopped reading")),
    }
}

/// Fetches a snapshot from the process that runs the cluster; `None` if there is none.
pub(crate) async fn fetch(data_dir: &Path, target: &Path) -> Result<Option<Revision>, ClusterError> {
    let Ok(server) = UnixStream::connect(data_dir.join(SOCKET)).await else { return Ok(None) };
    let failed = |source| ClusterError::LiveSnapshot { path: PathBuf::from(data_dir), source };
    receive(server, target).await.map(Some).map_err(failed)
}

async fn receive(server: UnixStream, target: &Path) -> io::Result<Revision> {
    let invalid = |text: &str| io::Error::new(io::ErrorKind::InvalidData, text.to_owned());
    let mut server = BufReader::new(server);
    let mut head = String::new();
    (&mut server).take(4096).read_line(&mut head).await?;
    let head = head.trim_end();
    if let Some(text) = head.strip_prefix("error ") {
        return Err(io::Error::other(text.to_owned()));
    }
    let mut words = head.split(' ');
    let (Some("snapshot"), Some(Ok(revision)), Some(Ok(length))) =
        (words.next(), words.next().map(str::parse::<Revision>), words.next().map(str::parse::<u64>))
    else {
        return Err(invalid("server did not return a snapshot"));
    };
    let unfinished = target.with_extension("tmp");
    let mut file = File::create(&unfinished).await?;
    let copied = tokio::io::copy(&mut (&mut server).take(length), &mut file).await?;
    if copied != length {
        return Err(invalid("server closed the connection before the end of the snapshot"));
    }
    file.flush().await?;
    file.sync_all().await?;
    fs::rename(&unfinished, target).await?;
    Ok(revision)
}
