//! Backup of a running cluster: its store is locked, so the process that has it open takes the snapshot.
//!
//! It listens on a socket in the data directory, which only the directory's owner may enter. Whoever
//! connects is sent a line, `snapshot REVISION LENGTH` or `error TEXT`, and the snapshot's bytes.

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

/// The socket, under the data directory.
const SOCKET: &str = "backup.sock";
/// The snapshot on its way, under the data directory.
const PASSING: &str = "backup.passing";
/// Pause after a connection could not be accepted.
const PAUSE: Duration = Duration::from_secs(1);
/// A client that takes no bytes for this long is given up.
const PATIENCE: Duration = Duration::from_secs(60);
/// What is copied at a time.
const PIECE: usize = 64 * 1024;

/// Hands out snapshots of the store until the tasks are told to stop. Without a socket the cluster runs on; it
/// just cannot be backed up meanwhile.
pub(crate) fn serve(data_dir: &Path, store: Arc<dyn Store>, tasks: &TaskGroup) {
    let (socket, passing) = (data_dir.join(SOCKET), data_dir.join(PASSING));
    let listener = match listen(&socket) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::warn!(socket = %socket.display(), %error, "this cluster cannot be backed up while it runs");
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
    // The store is locked by now, so nobody else listens there: it is left over from a crash.
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(socket)?;
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// One at a time: a second one waits.
async fn accept(listener: &UnixListener, passing: &Path, store: &dyn Store) {
    loop {
        match listener.accept().await {
            Ok((mut client, _)) => match hand_out(&mut client, passing, store).await {
                Ok(revision) => tracing::info!(revision, "a backup was taken"),
                Err(error) => tracing::warn!(%error, "a backup failed"),
            },
            Err(error) => {
                tracing::warn!(%error, "cannot accept a request for a backup");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn hand_out(client: &mut UnixStream, passing: &Path, store: &dyn Store) -> io::Result<Revision> {
    let revision = match store.snapshot(passing).await {
        Ok(revision) => revision,
        Err(error) => {
            let text = chain(&error).replace('\n', " ");
            send(client, format!("error {text}\n").as_bytes()).await?;
            return Err(io::Error::other(text));
        }
    };
    let mut file = File::open(passing).await?;
    // From here on the open file is all that is left of it.
    fs::remove_file(passing).await?;
    let length = file.metadata().await?.len();
    send(client, format!("snapshot {revision} {length}\n").as_bytes()).await?;
    let mut piece = vec![0; PIECE];
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
    match tokio::time::timeout(PATIENCE, client.write_all(bytes)).await {
        Ok(outcome) => outcome,
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes no bytes")),
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
        return Err(invalid("the server did not answer with a snapshot"));
    };
    let unfinished = target.with_extension("tmp");
    let mut file = File::create(&unfinished).await?;
    let copied = tokio::io::copy(&mut (&mut server).take(length), &mut file).await?;
    if copied != length {
        return Err(invalid("the server ended before its snapshot did"));
    }
    file.flush().await?;
    file.sync_all().await?;
    fs::rename(&unfinished, target).await?;
    Ok(revision)
}
