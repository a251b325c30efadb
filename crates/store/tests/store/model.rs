//! The embedded backend against a model that retains the whole state of every revision.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use store::embedded::{Disk, Io};
use store::{
    Embedded, EmbeddedOptions, Event, Expect, KeyValue, Op, Outcome, RangeRequest, Store, StoreError, Txn,
};

use crate::recorder::Recorder;

/// Writes without syncing: the test covers semantics, not durability.
struct Hasty;

impl Io for Hasty {
    fn write(&self, file: &File, data: &[u8], offset: u64) -> io::Result<()> {
        Disk.write(file, data, offset)
    }
    fn sync(&self, _: &File) -> io::Result<()> {
        Ok(())
    }
    fn allocate(&self, file: &File, length: u64) -> io::Result<()> {
        file.set_len(length)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Put {
        key: u8,
        value: u8,
        expect: Guess,
    },
    Delete {
        key: u8,
        expect: Guess,
    },
    /// A range from one key to another, at a revision this many thousandths into the past.
    Range {
        from: u8,
        to: u8,
        limit: usize,
        past: u64,
    },
    Watch {
        past: u64,
    },
    Compact {
        past: u64,
    },
    /// Several concurrent writes, which may share a batch.
    Burst {
        keys: Vec<u8>,
    },
    Reopen,
}

/// The caller's assumption about the key.
#[derive(Clone, Copy, Debug)]
enum Guess {
    Any,
    Absent,
    Right,
    Wrong,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = 0..8u8;
    let guess = prop_oneof![Just(Guess::Any), Just(Guess::Absent), Just(Guess::Right), Just(Guess::Wrong)];
    let put = (key.clone(), any::<u8>(), guess.clone()).prop_map(|(key, value, expect)| Step::Put {
        key,
        value,
        expect,
    });
    let step = prop_oneof![
        8 => put,
        4 => (key.clone(), guess).prop_map(|(key, expect)| Step::Delete { key, expect }),
        4 => (key.clone(), 0..9u8, 0..4usize, 0..1000u64).prop_map(|(from, to, limit, past)| Step::Range { from, to, limit, past }),
        2 => (0..1000u64).prop_map(|past| Step::Watch { past }),
        1 => (0..1000u64).prop_map(|past| Step::Compact { past }),
        2 => prop::collection::vec(key, 1..6).prop_map(|keys| Step::Burst { keys }),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 1..60)
}

/// The state after each revision, from revision 1 on.
struct Model {
    states: Vec<BTreeMap<String, KeyValue>>,
    compacted: u64,
}

impl Model {
    fn revision(&self) -> u64 {
        self.states.len() as u64
    }

    fn now(&self) -> &BTreeMap<String, KeyValue> {
        self.at(self.revision())
    }

    fn at(&self, revision: u64) -> &BTreeMap<String, KeyValue> {
        &self.states[revision as usize - 1]
    }

    /// A revision up to one after the current: the larger `past`, the older.
    fn pick(&self, past: u64) -> u64 {
        let newest = self.revision() + 1;
        newest - newest * past / 1000
    }

    fn expect(&self, key: &str, guess: Guess) -> Expect {
        let current = self.now().get(key).map_or(0, |kv| kv.mod_revision);
        match guess {
            Guess::Any => Expect::Any,
            Guess::Absent => Expect::Absent,
            Guess::Right if current > 0 => Expect::Revision(current),
            Guess::Right => Expect::Absent,
            Guess::Wrong => Expect::Revision(current + 1),
        }
    }

    fn txn(&mut self, key: &str, expect: Expect, value: Option<Bytes>) -> Outcome {
        let current = self.now().get(key).cloned();
        let revision = self.revision();
        let matches = match expect {
            Expect::Any => true,
            Expect::Absent => current.is_none(),
            Expect::Revision(wanted) => current.as_ref().map(|kv| kv.mod_revision) == Some(wanted),
        };
        if !matches {
            return Outcome::Conflict { current, revision };
        }
        if value.is_none() && current.is_none() {
            return Outcome::Committed { revision, prev: None };
        }
        let mut next = self.now().clone();
        match value {
            Some(value) => {
                let kv = KeyValue {
                    key: key.into(),
                    value,
                    create_revision: current.as_ref().map_or(revision + 1, |kv| kv.create_revision),
                    mod_revision: revision + 1,
                    version: current.as_ref().map_or(1, |kv| kv.version + 1),
                };
                next.insert(key.to_owned(), kv);
            }
            None => {
                next.remove(key);
            }
        }
        self.states.push(next);
        Outcome::Committed { revision: revision + 1, prev: current }
    }

    /// Events that a watch from there must deliver.
    fn events(&self, after: u64) -> Vec<Event> {
        let change = |revision: u64| {
            let (before, now) = (self.at(revision - 1), self.at(revision));
            let put = now.values().find(|kv| kv.mod_revision == revision);
            match put {
                Some(kv) => Event::Put { kv: kv.clone(), prev: before.get(&*kv.key).cloned() },
                None => {
                    let gone = before.values().find(|kv| !now.contains_key(&*kv.key)).unwrap();
                    Event::Delete { key: gone.key.clone(), revision, prev: Some(gone.clone()) }
                }
            }
        };
        (after + 1..=self.revision()).map(change).collect()
    }
}

fn open(directory: &Path) -> Arc<Embedded> {
    let mut options = EmbeddedOptions::new(directory);
    options.io = Arc::new(Hasty);
    // So small that most reopenings start from a checkpoint.
    options.checkpoint_bytes = 300;
    Arc::new(Embedded::open(options).unwrap())
}

fn name(key: u8) -> String {
    format!("/k{key}")
}

async fn play(steps: Vec<Step>) {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path());
    let mut model = Model { states: vec![BTreeMap::new()], compacted: 1 };
    let live = Recorder::default();
    let mut watch = Some(store.watch("/", 1, live.sink()).await.unwrap());
    for step in steps {
        match step.clone() {
            Step::Put { key, value, expect } => {
                let (key, value) = (name(key), Bytes::from(vec![value; value as usize]));
                let expect = model.expect(&key, expect);
                let op = Op::Put { value: value.clone(), lease: None };
                let outcome = store.txn(Txn { key: key.as_str().into(), expect, op }).await.unwrap();
                assert_eq!(outcome, model.txn(&key, expect, Some(value)), "{step:?}");
            }
            Step::Delete { key, expect } => {
                let key = name(key);
                let expect = model.expect(&key, expect);
                let outcome =
                    store.txn(Txn { key: key.as_str().into(), expect, op: Op::Delete }).await.unwrap();
                assert_eq!(outcome, model.txn(&key, expect, None), "{step:?}");
            }
            Step::Burst { keys } => {
                // Polled in order, so that they are queued in order.
                let value = Bytes::from_static(b"burst");
                let txns = keys.iter().enumerate().map(|(nth, key)| {
                    let op =
                        if nth % 3 == 2 { Op::Delete } else { Op::Put { value: value.clone(), lease: None } };
                    store.txn(Txn { key: name(*key).into(), expect: Expect::Any, op })
                });
                let outcomes = futures_util::future::join_all(txns).await;
                for (nth, (key, outcome)) in keys.iter().zip(outcomes).enumerate() {
                    let put = (nth % 3 != 2).then(|| value.clone());
                    assert_eq!(outcome.unwrap(), model.txn(&name(*key), Expect::Any, put), "{step:?} {nth}");
                }
            }
            Step::Range { from, to, limit, past } => check_range(&store, &model, from, to, limit, past).await,
            Step::Watch { past } => {
                let after = model.pick(past);
                let recorder = Recorder::default();
                match store.watch("/", after, recorder.sink()).await {
                    Ok(_watch) => assert_eq!(recorder.calls.lock().events, model.events(after)),
                    Err(StoreError::Compacted { .. }) => assert!(after < model.compacted),
                    Err(StoreError::FutureRevision { .. }) => assert!(after > model.revision()),
                    Err(error) => panic!("{error}"),
                }
            }
            Step::Compact { past } => {
                let at = model.pick(past);
                match store.compact(at).await {
                    Ok(()) => model.compacted = model.compacted.max(at),
                    Err(StoreError::FutureRevision { .. }) => assert!(at > model.revision()),
                    Err(error) => panic!("{error}"),
                }
            }
            Step::Reopen => {
                if watch.take().is_some() {
                    assert_eq!(live.calls.lock().events, model.events(1));
                }
                store.close().await;
                drop(store);
                store = open(directory.path());
            }
        }
        assert_eq!(store.revision(), model.revision());
        assert_eq!(store.compacted().await.unwrap(), model.compacted);
    }
}

async fn check_range(store: &Embedded, model: &Model, from: u8, to: u8, limit: usize, past: u64) {
    let revision = model.pick(past);
    let (start, end) = (name(from), name(to));
    let request = RangeRequest { start: start.clone(), end: end.clone(), limit, revision: Some(revision) };
    match store.range(request).await {
        Ok(found) => {
            let all = model.at(revision).values().filter(|kv| *start <= *kv.key && *kv.key < *end);
            let all: Vec<_> = all.cloned().collect();
            let shown = if limit == 0 { all.len() } else { limit.min(all.len()) };
            assert_eq!(found.kvs, all[..shown]);
            assert_eq!((found.count, found.more), (all.len() as u64, shown < all.len()));
            assert_eq!(found.revision, model.revision());
        }
        Err(StoreError::Compacted { .. }) => assert!(revision < model.compacted),
        Err(StoreError::FutureRevision { .. }) => assert!(revision > model.revision()),
        Err(error) => panic!("{error}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn embedded_behaves_like_the_model(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(play(steps));
    }
}
