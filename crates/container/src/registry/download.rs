//! Downloads blobs into files: hashed while streaming, resumed after interruptions.

use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::StatusCode;
use http::header::CONTENT_RANGE;
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;

use super::http::HttpError;
use super::source::{RegistryError, Source};

/// Consecutive failures without progress before a server is abandoned.
const MAX_STALLED_ATTEMPTS: u32 = 5;
/// Failures in total, so that a server that sends a byte at a time is abandoned too.
const MAX_ATTEMPTS: u32 = 50;
/// Chunks that wait to be written.
const QUEUE: usize = 16;

/// Progress of a pull, shared by writers and readers.
#[derive(Debug, Default)]
pub struct Progress {
    pub done: AtomicU64,
    pub total: AtomicU64,
    pub layers_done: AtomicU64,
    pub layers: AtomicU64,
}

/// A blob to download, and its destination.
#[derive(Clone, Debug)]
pub struct Blob {
    pub digest: String,
    pub size: u64,
    pub path: PathBuf,
}

enum Chunk {
    Data(Bytes),
    /// Discards the data received so far.
    Restart,
}

impl Blob {
    /// Fetches from the first source that has the blob. On success the file is complete and its digest verified.
    pub async fn fetch(&self, sources: &[Source], progress: &Progress) -> Result<(), RegistryError> {
        let mut outcome = Err(RegistryError::NotFound);
        for source in sources {
            let mut done = 0;
            outcome = self.fetch_from(source, &mut done, progress).await;
            match &outcome {
                Ok(()) => return Ok(()),
                Err(error) => {
                    tracing::debug!(%error, host = source.host(), digest = self.digest, "failed to fetch blob")
                }
            }
            progress.done.fetch_sub(done, Ordering::Relaxed);
        }
        outcome
    }

    async fn fetch_from(
        &self,
        source: &Source,
        done: &mut u64,
        progress: &Progress,
    ) -> Result<(), RegistryError> {
        let file = File::create(&self.path).map_err(RegistryError::Write)?;
        let (sender, receiver) = mpsc::channel(QUEUE);
        let writing = tokio::task::spawn_blocking(move || write(file, receiver));
        let streamed = self.fetch_with_retries(source, &sender, done, progress).await;
        drop(sender);
        let written = writing.await.unwrap_or_else(|error| Err(std::io::Error::other(error)));
        // A full disk is the cause, not the closed channel.
        let found = written.map_err(RegistryError::Write)?;
        streamed?;
        if found != self.digest {
            return Err(RegistryError::Digest { found, wanted: self.digest.clone() });
        }
        Ok(())
    }

    async fn fetch_with_retries(
        &self,
        source: &Source,
        to: &mpsc::Sender<Chunk>,
        done: &mut u64,
        progress: &Progress,
    ) -> Result<(), RegistryError> {
        let (mut idle, mut all) = (0, 0);
        loop {
            let before = *done;
            let error = match self.stream(source, to, done, progress).await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            idle = if *done > before { 0 } else { idle + 1 };
            all += 1;
            if !error.is_transient() || idle >= MAX_STALLED_ATTEMPTS || all >= MAX_ATTEMPTS || to.is_closed()
            {
                return Err(error);
            }
            let pause = source.pause(idle, &error);
            tracing::info!(%error, host = source.host(), digest = self.digest, have = *done, "blob download interrupted, retrying in {pause:?}");
            tokio::time::sleep(pause).await;
        }
    }

    /// One attempt, from the end of the previous one.
    async fn stream(
        &self,
        source: &Source,
        to: &mpsc::Sender<Chunk>,
        done: &mut u64,
        progress: &Progress,
    ) -> Result<(), RegistryError> {
        let mut answer = source.blob(&self.digest, *done).await?;
        let resumed = answer.status() == StatusCode::PARTIAL_CONTENT
            && answer
                .header(CONTENT_RANGE)
                .and_then(|range| range.strip_prefix("bytes ")?.split('-').next()?.parse::<u64>().ok())
                == Some(*done);
        let gone = || RegistryError::Write(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        if *done > 0 && !resumed {
            // This server does not support ranges.
            progress.done.fetch_sub(*done, Ordering::Relaxed);
            *done = 0;
            to.send(Chunk::Restart).await.map_err(|_| gone())?;
        }
        let broken = |error| source.broken("blobs", &self.digest, error);
        while let Some(piece) = answer.piece().await.map_err(broken)? {
            let length = piece.len() as u64;
            if *done + length > self.size {
                return Err(RegistryError::TooLong(self.size));
            }
            *done += length;
            progress.done.fetch_add(length, Ordering::Relaxed);
            to.send(Chunk::Data(piece)).await.map_err(|_| gone())?;
        }
        if *done < self.size {
            return Err(broken(HttpError::Interrupted("unexpected EOF".to_owned())));
        }
        Ok(())
    }

    /// Fetches a small blob into memory.
    pub async fn read(&self, sources: &[Source], limit: u64) -> Result<Vec<u8>, RegistryError> {
        if self.size > limit {
            return Err(RegistryError::TooLong(limit));
        }
        self.fetch(sources, &Progress::default()).await?;
        std::fs::read(&self.path).map_err(RegistryError::Write)
    }
}

/// Writes incoming chunks and returns their digest.
fn write(mut file: File, mut pieces: mpsc::Receiver<Chunk>) -> std::io::Result<String> {
    let mut hash = Sha256::new();
    while let Some(piece) = pieces.blocking_recv() {
        match piece {
            Chunk::Data(data) => {
                hash.update(&data);
                file.write_all(&data)?;
            }
            Chunk::Restart => {
                hash = Sha256::new();
                file.set_len(0)?;
                file.rewind()?;
            }
        }
    }
    Ok(format!("sha256:{}", hex::encode(hash.finalize())))
}
