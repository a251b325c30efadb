//! Keeps a cache in sync with the API server: a list, then changes, without end. [`State`] has the transitions.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use base::backoff::Backoff;
use base::errors::chain;
use client::{Client, ClientError, Collection, ListOptions, WatchEvent, WatchOptions, WatchStream};
use objects::{DecodeShared, Shared};
use rand::Rng;
use tokio::time::Instant;

use super::Selection;
use super::core::Core;
use crate::Key;

/// The server ends a watch after five to ten minutes, so that watches spread over servers.
const WATCH_SECONDS: std::ops::Range<u32> = 300..600;
const PAGE: u32 = 500;
const RETRY: Backoff =
    Backoff::new(Duration::from_millis(100), Duration::from_secs(30)).with_jitter(1.0, 2.0);
/// Minimum lifetime of a watch that counts as successful.
const MIN_WATCH_LIFETIME: Duration = Duration::from_secs(5);
/// Consecutive failures before a warning: the first few are a restart of the server.
const FAILURES_BEFORE_WARNING: u32 = 4;

/// State between two responses or events of the server. The cache changes only when a list is complete and by events
/// of a watch, so that an interrupted list leaves it as it was.
enum State {
    /// There is no revision to resume from: at the start, after an incomplete list, after the revision expired (410),
    /// and after the server fell behind the cache, as one restored from a backup does.
    ///
    /// - The server accepts a streamed list: [`State::Streaming`].
    /// - It does not stream lists: [`State::Paging`].
    /// - Any other error: [`State::Unlisted`] after a pause.
    Unlisted,
    /// A streamed list is incomplete; it has had these objects so far.
    ///
    /// - An object, or a bookmark of progress: [`State::Streaming`].
    /// - The bookmark that ends the list: the objects replace the cache, [`State::Watching`] on the same stream.
    /// - The server reports that it does not stream this list: [`State::Paging`].
    /// - The stream ends or fails: [`State::Unlisted`] after a pause.
    Streaming { watch: OpenWatch, objects: HashMap<Key, Shared> },
    /// A plain list is incomplete: objects of the pages so far, and the token of the next page.
    ///
    /// - A page with a continue token: [`State::Paging`].
    /// - The last page: the objects replace the cache, [`State::Listed`].
    /// - Any error: [`State::Unlisted`] after a pause.
    Paging { objects: Vec<Shared>, continue_token: String },
    /// The cache is complete as of this revision, and no watch is open.
    ///
    /// - The server accepts a watch from the revision: [`State::Watching`].
    /// - The revision expired, or the server is behind it: [`State::Unlisted`] after a pause.
    /// - Any other error: [`State::Listed`] after a pause.
    Listed { revision: String },
    /// The cache is complete as of this revision, and a watch continues it.
    ///
    /// - An event: applied to the cache, [`State::Watching`] at its revision.
    /// - The watch ends: [`State::Listed`], at once if it lived for [`MIN_WATCH_LIFETIME`], else after a pause.
    /// - The revision expired, or the server is behind it: [`State::Unlisted`] after a pause.
    /// - Any other error: [`State::Listed`] after a pause.
    Watching { watch: OpenWatch, revision: String },
}

struct OpenWatch {
    stream: WatchStream<Shared>,
    since: Instant,
}

/// Result of one step.
enum Step {
    /// Continue without a pause.
    Next(State),
    /// A request failed, or a stream ended after this lifetime.
    Interrupted { state: State, lifetime: Duration, error: Option<ClientError> },
}

impl State {
    fn first_page() -> Self {
        Self::Paging { objects: Vec::new(), continue_token: String::new() }
    }

    /// State from which to resume at `revision` after an error.
    fn resumed(revision: String, error: &ClientError) -> Self {
        if is_expired(error) { Self::Unlisted } else { Self::Listed { revision } }
    }
}

impl Step {
    fn failed(state: State, error: ClientError) -> Self {
        Self::Interrupted { state, lifetime: Duration::ZERO, error: Some(error) }
    }

    fn streamed_list_failed(error: ClientError) -> Self {
        if is_unstreamed(&error) {
            tracing::debug!(%error, "the list is not streamed, listing");
            return Self::Next(State::first_page());
        }
        Self::failed(State::Unlisted, error)
    }
}

pub struct Reflector {
    client: Client,
    collection: Collection,
    selection: Selection,
    cache: Arc<Core>,
    decode: DecodeShared,
}

impl Reflector {
    pub fn new(
        client: Client,
        collection: Collection,
        selection: Selection,
        cache: Arc<Core>,
        decode: DecodeShared,
    ) -> Self {
        Self { client, collection, selection, cache, decode }
    }

    /// Runs until dropped.
    pub async fn run(self) {
        let mut state = State::Unlisted;
        let mut retry = RETRY;
        let mut failures = 0;
        loop {
            let (next, lifetime, error) = match self.step(state).await {
                Step::Next(next) => {
                    state = next;
                    continue;
                }
                Step::Interrupted { state, lifetime, error } => (state, lifetime, error),
            };
            state = next;
            let lived = lifetime >= MIN_WATCH_LIFETIME;
            if lived {
                retry.reset();
            }
            match error {
                None if lived => {
                    failures = 0;
                    continue;
                }
                None => {}
                Some(error) => self.report(&error, &mut failures),
            }
            retry.wait().await;
        }
    }

    fn report(&self, error: &ClientError, failures: &mut u32) {
        let path = self.collection.path();
        if is_expired(error) {
            tracing::debug!(path, %error, "relisting");
            return;
        }
        *failures += 1;
        if *failures == FAILURES_BEFORE_WARNING {
            tracing::warn!(path, error = chain(error), "failed to watch, retrying");
        } else {
            tracing::debug!(path, error = chain(error), "watch ended");
        }
    }

    async fn step(&self, state: State) -> Step {
        match state {
            State::Unlisted => match self.open(String::new(), true).await {
                Ok(watch) => Step::Next(State::Streaming { watch, objects: HashMap::new() }),
                Err(error) => Step::streamed_list_failed(error),
            },
            State::Streaming { watch, objects } => self.stream(watch, objects).await,
            State::Paging { objects, continue_token } => self.page(objects, continue_token).await,
            State::Listed { revision } => match self.open(revision.clone(), false).await {
                Ok(watch) => Step::Next(State::Watching { watch, revision }),
                Err(error) => Step::failed(State::resumed(revision, &error), error),
            },
            State::Watching { watch, revision } => self.follow(watch, revision).await,
        }
    }

    async fn open(
        &self,
        resource_version: String,
        send_initial_events: bool,
    ) -> Result<OpenWatch, ClientError> {
        let options = WatchOptions {
            label_selector: self.selection.label_selector.clone(),
            field_selector: self.selection.field_selector.clone(),
            resource_version,
            send_initial_events,
            bookmarks: true,
            timeout_seconds: rand::rng().random_range(WATCH_SECONDS),
        };
        let since = Instant::now();
        let stream = self.client.watch_collection(&self.collection, &options, self.decode).await?;
        Ok(OpenWatch { stream, since })
    }

    /// Next decodable event. One undecodable object must not block all others.
    async fn next(&self, watch: &mut OpenWatch) -> Result<Option<WatchEvent<Shared>>, ClientError> {
        loop {
            match watch.stream.next().await {
                Err(error) if error.is_unreadable() => {
                    let (path, error) = (self.collection.path(), chain(&error));
                    tracing::warn!(path, error, "failed to decode object, skipping it");
                }
                other => return other,
            }
        }
    }

    async fn stream(&self, mut watch: OpenWatch, mut objects: HashMap<Key, Shared>) -> Step {
        match self.next(&mut watch).await {
            Ok(Some(WatchEvent::Added(object) | WatchEvent::Modified(object))) => {
                objects.insert(Key::of_meta(object.meta()), object);
            }
            Ok(Some(WatchEvent::Deleted(object))) => {
                objects.remove(&Key::of_meta(object.meta()));
            }
            Ok(Some(WatchEvent::Bookmark { initial_events_end: false, .. })) => {}
            Ok(Some(WatchEvent::Bookmark { resource_version: revision, .. })) => {
                self.cache.replace(objects.into_values().collect());
                return Step::Next(State::Watching { watch, revision });
            }
            Ok(None) => {
                let lifetime = watch.since.elapsed();
                return Step::Interrupted { state: State::Unlisted, lifetime, error: None };
            }
            Err(error) => return Step::streamed_list_failed(error),
        }
        Step::Next(State::Streaming { watch, objects })
    }

    async fn page(&self, mut objects: Vec<Shared>, continue_token: String) -> Step {
        let options = ListOptions {
            label_selector: self.selection.label_selector.clone(),
            field_selector: self.selection.field_selector.clone(),
            limit: PAGE,
            continue_token,
            ..ListOptions::default()
        };
        let page = match self.client.list_collection(&self.collection, &options, self.decode).await {
            Ok(page) => page,
            Err(error) => return Step::failed(State::Unlisted, error),
        };
        let (next, revision) = (page.next_page().map(str::to_owned), page.resource_version().to_owned());
        objects.extend(page.items);
        if let Some(continue_token) = next {
            return Step::Next(State::Paging { objects, continue_token });
        }
        self.cache.replace(objects);
        Step::Next(State::Listed { revision })
    }

    async fn follow(&self, mut watch: OpenWatch, revision: String) -> Step {
        let revision_of = |object: &Shared| object.meta().resource_version.clone();
        let next = match self.next(&mut watch).await {
            Ok(Some(WatchEvent::Added(object) | WatchEvent::Modified(object))) => {
                let revision = revision_of(&object);
                self.cache.apply(object);
                revision
            }
            Ok(Some(WatchEvent::Deleted(object))) => {
                let revision = revision_of(&object);
                self.cache.remove(object);
                revision
            }
            Ok(Some(WatchEvent::Bookmark { resource_version, .. })) => Some(resource_version),
            Ok(None) => {
                let lifetime = watch.since.elapsed();
                return Step::Interrupted { state: State::Listed { revision }, lifetime, error: None };
            }
            Err(error) => {
                let lifetime = watch.since.elapsed();
                let state = State::resumed(revision, &error);
                return Step::Interrupted { state, lifetime, error: Some(error) };
            }
        };
        Step::Next(State::Watching { watch, revision: next.unwrap_or(revision) })
    }
}

/// True if the cache cannot be resumed: its revision was compacted, or the server is behind it.
fn is_expired(error: &ClientError) -> bool {
    error.is_gone() || is_ahead(error)
}

/// True if the server responds, but does not stream this list: it is too old, or its store has no progress
/// notifications. As in client-go, a plain list follows for every such error except those that it cannot avoid.
fn is_unstreamed(error: &ClientError) -> bool {
    error.status().is_some() && !is_expired(error) && error.code() != Some(429)
}

/// True if the server's revision is behind the cache: it was restored from a backup.
fn is_ahead(error: &ClientError) -> bool {
    let causes = error.status().and_then(|status| status.details.as_ref()).and_then(|d| d.causes.as_ref());
    causes.is_some_and(|causes| {
        causes.iter().any(|cause| cause.reason.as_deref() == Some("ResourceVersionTooLarge"))
    })
}
