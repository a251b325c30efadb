//! A store with encryption of selected values.

use super::provider::{ENCRYPTED_PREFIX, Failure};
use super::rules::{Rules, no_match};
use crate::metrics;
use arc_swap::ArcSwap;
use async_trait::async_trait;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Instant;
use store::{
    Event, KeyValue, Layer, Op, Outcome, RangeRequest, RangeResponse, Result, Revision, Store, StoreError,
    Txn, WatchHandle, WatchSink,
};

/// Encrypts writes and decrypts reads, by the current rules.
pub struct Encrypted {
    inner: Arc<dyn Store>,
    rules: Arc<ArcSwap<Rules>>,
}

impl Encrypted {
    pub fn new(inner: Arc<dyn Store>, rules: Rules) -> Self {
        Self { inner, rules: Arc::new(ArcSwap::from_pointee(rules)) }
    }

    /// Replaces the rules. Stored values stay unchanged until they are written again.
    pub fn replace(&self, rules: Rules) {
        self.rules.store(Arc::new(rules));
    }

    async fn seal(&self, storage_key: &str, value: Bytes) -> Result<Bytes> {
        let rules = self.rules.load_full();
        let Some(writer) = rules.of(storage_key).and_then(|rule| rule.writer()) else { return Ok(value) };
        let failed = |reason: String| untransformed(storage_key, &reason);
        let begin = Instant::now();
        writer.prepare().await.map_err(failed)?;
        let sealed = writer.seal(storage_key, &value).map(Bytes::from).map_err(failed);
        if let Some(metrics) = metrics::process() {
            let prefix = sealed.as_deref().unwrap_or_default();
            metrics.transformed("to_storage", storage_key, prefix_of(prefix), sealed.is_ok(), begin);
        }
        sealed
    }

    /// The plain value, and whether the stored one is outdated.
    async fn open(&self, storage_key: &str, value: &Bytes) -> Result<(Bytes, bool)> {
        let begin = Instant::now();
        let outcome = self.open_value(storage_key, value).await;
        // Values that are not encrypted cost nothing.
        if let Some(metrics) = metrics::process().filter(|_| value.starts_with(ENCRYPTED_PREFIX)) {
            metrics.transformed("from_storage", storage_key, prefix_of(value), outcome.is_ok(), begin);
        }
        outcome
    }

    async fn open_value(&self, storage_key: &str, value: &Bytes) -> Result<(Bytes, bool)> {
        let rules = self.rules.load_full();
        match open(&rules, storage_key, value) {
            Err(OpenError::Unprepared(provider)) => {
                let rest = value.strip_prefix(provider.prefix()).unwrap_or_default();
                provider.fetch(rest).await.map_err(|reason| untransformed(storage_key, &reason))?;
                open(&rules, storage_key, value).map_err(|trouble| trouble.into_error(storage_key))
            }
            outcome => outcome.map_err(|trouble| trouble.into_error(storage_key)),
        }
    }

    async fn open_all(&self, kvs: &mut [KeyValue]) -> Result<()> {
        for kv in kvs {
            let (plain, _) = self.open(&kv.key, &kv.value).await?;
            kv.value = plain;
        }
        Ok(())
    }

    /// Decrypts an existing value. An undecryptable one is an error, so that the key does not look free.
    async fn open_found(&self, found: Option<KeyValue>) -> Result<Option<KeyValue>> {
        let Some(mut kv) = found else { return Ok(None) };
        kv.value = self.open(&kv.key, &kv.value).await?.0;
        Ok(Some(kv))
    }
}

/// Start of an encrypted value: provider, version and key.
fn prefix_of(value: &[u8]) -> &[u8] {
    let end = value.iter().enumerate().filter(|(_, byte)| **byte == b':').nth(3).map_or(0, |(at, _)| at + 1);
    value.get(..end).unwrap_or_default()
}

enum OpenError {
    Unprepared(Arc<dyn super::provider::Provider>),
    Failed(String),
}

impl OpenError {
    fn into_error(self, storage_key: &str) -> StoreError {
        match self {
            Self::Unprepared(_) => untransformed(storage_key, "its key is not loaded"),
            Self::Failed(reason) => untransformed(storage_key, &reason),
        }
    }
}

fn untransformed(storage_key: &str, reason: &str) -> StoreError {
    StoreError::Unreadable { key: storage_key.into(), reason: reason.into() }
}

fn open(rules: &Rules, storage_key: &str, value: &Bytes) -> Result<(Bytes, bool), OpenError> {
    let Some(rule) = rules.of(storage_key) else {
        return match value.starts_with(ENCRYPTED_PREFIX) {
            true => Err(OpenError::Failed(no_match(value))),
            false => Ok((value.clone(), false)),
        };
    };
    match rule.open(storage_key, value) {
        Ok(opened) => Ok((Bytes::from(opened.plain), opened.stale)),
        Err((Failure::Failed(reason), _)) => Err(OpenError::Failed(reason)),
        Err((Failure::Unprepared, Some(provider))) => Err(OpenError::Unprepared(provider)),
        Err((Failure::Unprepared, None)) => Err(OpenError::Failed("its key is not loaded".to_owned())),
    }
}

#[async_trait]
impl Layer for Encrypted {
    fn below(&self) -> &dyn Store {
        &*self.inner
    }

    async fn get(&self, key: &str) -> Result<(Option<KeyValue>, Revision)> {
        let (found, revision) = self.inner.get(key).await?;
        Ok((self.open_found(found).await?, revision))
    }

    async fn range(&self, request: RangeRequest) -> Result<RangeResponse> {
        let mut response = self.inner.range(request).await?;
        self.open_all(&mut response.kvs).await?;
        Ok(response)
    }

    async fn txn(&self, mut txn: Txn) -> Result<Outcome> {
        if let Op::Put { value, .. } = &mut txn.op {
            *value = self.seal(&txn.key, std::mem::take(value)).await?;
        }
        Ok(match self.inner.txn(txn).await? {
            // The commit must not fail because of an undecryptable previous value.
            Outcome::Committed { revision, .. } => Outcome::Committed { revision, prev: None },
            Outcome::Conflict { current, revision } => {
                Outcome::Conflict { current: self.open_found(current).await?, revision }
            }
        })
    }

    async fn watch(&self, prefix: &str, after: Revision, sink: Box<dyn WatchSink>) -> Result<WatchHandle> {
        let sink = OpeningSink { sink: Some(sink), rules: self.rules.clone() };
        self.inner.watch(prefix, after, Box::new(sink)).await
    }

    async fn outdated(&self, key: &str) -> Result<bool> {
        if self.rules.load().of(key).is_none() {
            return Ok(false);
        }
        let (found, _) = self.inner.get(key).await?;
        let Some(kv) = found else { return Ok(false) };
        Ok(self.open(key, &kv.value).await?.1)
    }
}

/// Decrypts watch events. An undecryptable value ends the watch: skipping it would hide a change.
struct OpeningSink {
    sink: Option<Box<dyn WatchSink>>,
    rules: Arc<ArcSwap<Rules>>,
}

impl WatchSink for OpeningSink {
    fn events(&mut self, mut events: Vec<Event>) {
        let Some(sink) = &mut self.sink else { return };
        let rules = self.rules.load();
        for event in &mut events {
            let outcome = open_event(&rules, event);
            if let Err(error) = outcome {
                sink.closed(error);
                self.sink = None;
                return;
            }
        }
        sink.events(events);
    }

    fn progress(&mut self, revision: Revision) {
        if let Some(sink) = &mut self.sink {
            sink.progress(revision);
        }
    }

    fn closed(&mut self, error: StoreError) {
        if let Some(mut sink) = self.sink.take() {
            sink.closed(error);
        }
    }
}

fn open_event(rules: &Rules, event: &mut Event) -> Result<()> {
    let opened = |kv: &mut KeyValue| -> Result<()> {
        kv.value = open(rules, &kv.key, &kv.value).map_err(|trouble| trouble.into_error(&kv.key))?.0;
        Ok(())
    };
    match event {
        Event::Put { kv, prev } => {
            opened(kv)?;
            // Watchers already have the previous value.
            *prev = None;
        }
        Event::Delete { prev, .. } => *prev = None,
    }
    Ok(())
}
