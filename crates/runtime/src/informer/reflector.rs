//! Keeps a cache in sync with the API server: a streamed list, then changes, without end. An ended watch is resumed
//! at its last revision; an expired revision causes a relist.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::backoff::Backoff;
use base::errors::chain;
use client::{Client, ClientError, Collection, ListOptions, WatchEvent, WatchOptions, WatchStream};
use objects::{DecodeShared, Shared};
use rand::Rng;

use super::Selection;
use super::core::Core;

/// The server ends a watch after five to ten minutes, so that watches spread over servers.
const WATCH_SECONDS: std::ops::Range<u32> = 300..600;
const PAGE: u32 = 500;
const RETRY: Backoff =
    Backoff::new(Duration::from_millis(100), Duration::from_secs(30)).with_jitter(1.0, 2.0);
/// Minimum lifetime of a watch that counts as successful.
const MIN_WATCH_LIFETIME: Duration = Duration::from_secs(5);

pub struct Reflector {
    client: Client,
    collection: Collection,
    selection: Selection,
    cache: Arc<Core>,
    decode: DecodeShared,
    /// Revision of the cache; `None` before the first list.
    revision: Option<String>,
}

impl Reflector {
    pub fn new(
        client: Client,
        collection: Collection,
        selection: Selection,
        cache: Arc<Core>,
        decode: DecodeShared,
    ) -> Self {
        Self { client, collection, selection, cache, decode, revision: None }
    }

    /// Runs until dropped.
    pub async fn run(mut self) {
        let mut retry = RETRY;
        let mut failures = 0u32;
        loop {
            let begin = Instant::now();
            let outcome = self.round().await;
            if begin.elapsed() >= MIN_WATCH_LIFETIME {
                retry.reset();
            }
            match outcome {
                Ok(()) if begin.elapsed() >= MIN_WATCH_LIFETIME => {
                    failures = 0;
                    continue;
                }
                Ok(()) => {}
                Err(error) if error.is_gone() || is_ahead(&error) => {
                    tracing::debug!(path = self.collection.path(), %error, "relisting");
                    self.revision = None;
                }
                Err(error) => {
                    failures += 1;
                    // The first few failures are a restart of the server.
                    if failures == 4 {
                        tracing::warn!(
                            path = self.collection.path(),
                            error = chain(&error),
                            "failed to watch, retrying"
                        );
                    } else {
                        tracing::debug!(path = self.collection.path(), error = chain(&error), "watch ended");
                    }
                }
            }
            retry.wait().await;
        }
    }

    /// Lists if necessary, and watches until the watch ends.
    async fn round(&mut self) -> Result<(), ClientError> {
        let mut watch = match &self.revision {
            None => match self.stream_list().await {
                Err(error) if is_unstreamed(&error) => {
                    tracing::debug!(path = self.collection.path(), %error, "the list is not streamed, listing");
                    self.list().await?;
                    self.open(false).await?
                }
                outcome => outcome?,
            },
            Some(_) => self.open(false).await?,
        };
        while let Some(event) = self.next(&mut watch).await? {
            match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    self.revision = object.meta().resource_version.clone();
                    self.cache.apply(object);
                }
                WatchEvent::Deleted(object) => {
                    self.revision = object.meta().resource_version.clone();
                    self.cache.remove(object);
                }
                WatchEvent::Bookmark { resource_version, .. } => self.revision = Some(resource_version),
            }
        }
        Ok(())
    }

    async fn open(&self, send_initial_events: bool) -> Result<WatchStream<Shared>, ClientError> {
        let options = WatchOptions {
            label_selector: self.selection.label_selector.clone(),
            field_selector: self.selection.field_selector.clone(),
            resource_version: self.revision.clone().unwrap_or_default(),
            send_initial_events,
            bookmarks: true,
            timeout_seconds: rand::rng().random_range(WATCH_SECONDS),
        };
        self.client.watch_collection(&self.collection, &options, self.decode).await
    }

    /// Next decodable event. One undecodable object must not block all others.
    async fn next(&self, watch: &mut WatchStream<Shared>) -> Result<Option<WatchEvent<Shared>>, ClientError> {
        loop {
            match watch.next().await {
                Err(error) if error.is_unreadable() => {
                    let (path, error) = (self.collection.path(), chain(&error));
                    tracing::warn!(path, error, "failed to decode object, skipping it");
                }
                other => return other,
            }
        }
    }

    async fn stream_list(&mut self) -> Result<WatchStream<Shared>, ClientError> {
        let mut watch = self.open(true).await?;
        let mut all = std::collections::HashMap::new();
        while let Some(event) = self.next(&mut watch).await? {
            match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    all.insert(crate::Key::of_meta(object.meta()), object);
                }
                WatchEvent::Deleted(object) => {
                    all.remove(&crate::Key::of_meta(object.meta()));
                }
                WatchEvent::Bookmark { initial_events_end: false, .. } => {}
                WatchEvent::Bookmark { resource_version, .. } => {
                    self.cache.replace(all.into_values().collect());
                    self.revision = Some(resource_version);
                    return Ok(watch);
                }
            }
        }
        // The stream ended before the list did: the next round ends immediately and relists.
        Ok(watch)
    }

    async fn list(&mut self) -> Result<(), ClientError> {
        let mut all = Vec::new();
        let mut options = ListOptions {
            label_selector: self.selection.label_selector.clone(),
            field_selector: self.selection.field_selector.clone(),
            limit: PAGE,
            ..ListOptions::default()
        };
        loop {
            let page = self.client.list_collection(&self.collection, &options, self.decode).await?;
            let (next, revision) = (page.next_page().map(str::to_owned), page.resource_version().to_owned());
            all.extend(page.items);
            match next {
                Some(next) => options.continue_token = next,
                None => {
                    self.cache.replace(all);
                    self.revision = Some(revision);
                    return Ok(());
                }
            }
        }
    }
}

/// True if the server responds, but does not stream this list: it is too old, or its store has no progress
/// notifications. As in client-go, a plain list follows for every such error except those that it cannot avoid.
fn is_unstreamed(error: &ClientError) -> bool {
    error.status().is_some() && !error.is_gone() && !is_ahead(error) && error.code() != Some(429)
}

/// True if the server's revision is behind the cache: it was restored from a backup.
fn is_ahead(error: &ClientError) -> bool {
    let causes = error.status().and_then(|status| status.details.as_ref()).and_then(|d| d.causes.as_ref());
    causes.is_some_and(|causes| {
        causes.iter().any(|cause| cause.reason.as_deref() == Some("ResourceVersionTooLarge"))
    })
}
