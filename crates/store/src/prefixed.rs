//! A store that maps key prefixes, so that several clusters can share one etcd.

use std::sync::Arc;

use async_trait::async_trait;

use crate::{
    Event, KeyValue, Layer, Outcome, RangeRequest, RangeResponse, Result, Revision, Store, StoreError, Txn,
    WatchHandle, WatchSink,
};

/// Replaces the prefix `from` of every key by `to`.
///
/// ```
/// use std::sync::Arc;
/// use store::{Embedded, EmbeddedOptions, Expect, Op, Prefixed, Store, Txn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> store::Result<()> {
/// # let directory = tempfile::tempdir().expect("a directory");
/// let shared: Arc<dyn Store> = Arc::new(Embedded::open(EmbeddedOptions::new(directory.path()))?);
/// let store = Prefixed::new(Arc::clone(&shared), "/registry/", "/blue/");
/// let op = Op::Put { value: "1".into(), lease: None };
/// store.txn(Txn { key: "/registry/pods/a".into(), expect: Expect::Absent, op }).await?;
/// assert!(shared.get("/blue/pods/a").await?.0.is_some());
/// # Ok(())
/// # }
/// ```
pub struct Prefixed {
    inner: Arc<dyn Store>,
    names: Names,
}

#[derive(Clone)]
struct Names {
    from: Arc<str>,
    to: Arc<str>,
}

impl Names {
    fn stored(&self, key: &str) -> String {
        key.strip_prefix(&*self.from).map_or_else(|| key.to_owned(), |rest| format!("{}{rest}", self.to))
    }

    fn shown(&self, key: &str) -> Arc<str> {
        key.strip_prefix(&*self.to).map_or_else(|| key.into(), |rest| format!("{}{rest}", self.from).into())
    }

    fn show(&self, kv: &mut KeyValue) {
        kv.key = self.shown(&kv.key);
    }

    fn show_all<'a>(&self, kvs: impl IntoIterator<Item = &'a mut KeyValue>) {
        kvs.into_iter().for_each(|kv| self.show(kv));
    }
}

impl Prefixed {
    pub fn new(inner: Arc<dyn Store>, from: &str, to: &str) -> Self {
        Self { inner, names: Names { from: from.into(), to: to.into() } }
    }
}

#[async_trait]
impl Layer for Prefixed {
    fn below(&self) -> &dyn Store {
        &*self.inner
    }

    async fn get(&self, key: &str) -> Result<(Option<KeyValue>, Revision)> {
        let (mut found, revision) = self.inner.get(&self.names.stored(key)).await?;
        self.names.show_all(&mut found);
        Ok((found, revision))
    }

    async fn range(&self, request: RangeRequest) -> Result<RangeResponse> {
        let (start, end) = (self.names.stored(&request.start), self.names.stored(&request.end));
        let mut response = self.inner.range(RangeRequest { start, end, ..request }).await?;
        self.names.show_all(&mut response.kvs);
        Ok(response)
    }

    async fn txn(&self, txn: Txn) -> Result<Outcome> {
        let key = self.names.stored(&txn.key).into();
        let mut outcome = self.inner.txn(Txn { key, ..txn }).await?;
        let (Outcome::Committed { prev: kv, .. } | Outcome::Conflict { current: kv, .. }) = &mut outcome;
        self.names.show_all(kv);
        Ok(outcome)
    }

    async fn watch(&self, prefix: &str, after: Revision, sink: Box<dyn WatchSink>) -> Result<WatchHandle> {
        let sink = RenamingSink { sink, names: self.names.clone() };
        self.inner.watch(&self.names.stored(prefix), after, Box::new(sink)).await
    }

    async fn outdated(&self, key: &str) -> Result<bool> {
        self.inner.outdated(&self.names.stored(key)).await
    }
}

struct RenamingSink {
    sink: Box<dyn WatchSink>,
    names: Names,
}

impl WatchSink for RenamingSink {
    fn events(&mut self, mut events: Vec<Event>) {
        for event in &mut events {
            match event {
                Event::Put { kv, prev } => self.names.show_all(std::iter::once(kv).chain(prev)),
                Event::Delete { key, prev, .. } => {
                    *key = self.names.shown(key);
                    self.names.show_all(prev);
                }
            }
        }
        self.sink.events(events);
    }

    fn progress(&mut self, revision: Revision) {
        self.sink.progress(revision);
    }

    fn closed(&mut self, error: StoreError) {
        self.sink.closed(error);
    }
}
