//! Kills a process during concurrent writes, repeatedly, and verifies the store afterwards.
//!
//! The child is this test binary, running `crash::writes_until_killed_child`; it prints acknowledged writes to its standard output.
//! `FERRY_STORE_KILLS` sets the number of kills.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use store::{Embedded, EmbeddedOptions, Event, Expect, Op, Outcome, RangeRequest, Store, Txn};

use crate::recorder::Recorder;

const DIRECTORY: &str = "FERRY_STORE_CRASH_DIRECTORY";
const WRITERS: u64 = 8;
const KEYS: u64 = 25;
/// Without the variable: this many kills, or as many as fit in the time.
const KILLS: usize = 300;
const TIME: Duration = Duration::from_secs(25);
/// Minimum number of kills, regardless of the time they take.
const FEWEST: usize = 30;

/// Small checkpoints, so that many kills hit one.
fn options(directory: &Path) -> EmbeddedOptions {
    let mut options = EmbeddedOptions::new(directory);
    options.checkpoint_bytes = 512 << 10;
    options.history_bytes = 256 << 10;
    options
}

/// A verifiable value: its number, and bytes derived from it.
fn value(number: u64) -> Bytes {
    let length = 8 + (number * 7919 % 3000) as usize;
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.resize(length, number as u8);
    bytes.into()
}

fn number(value: &[u8]) -> u64 {
    let number = u64::from_le_bytes(value[..8].try_into().unwrap());
    assert_eq!(value, self::value(number), "a value is half there");
    number
}

#[test]
#[ignore = "started by its sibling, which kills it"]
fn writes_until_killed_child() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        let store = Arc::new(Embedded::open(options(Path::new(&directory))).expect("open"));
        print_line(&format!("open {}", store.revision()));
        let writers: Vec<_> = (0..WRITERS).map(|writer| tokio::spawn(write(store.clone(), writer))).collect();
        for writer in writers {
            writer.await.expect("writer");
        }
    });
}

/// One line in one write, so that lines of a killed process are whole.
fn print_line(line: &str) {
    let _ = std::io::stdout().lock().write_all(format!("\n{line}\n").as_bytes());
}

async fn write(store: Arc<Embedded>, writer: u64) {
    for nth in 0.. {
        let key: Arc<str> = format!("/{writer}/{:02}", nth % KEYS).into();
        let delete = nth % 11 == 10;
        // Numbers grow with the revision, so that they order the values of a key.
        let number = store.revision();
        let op = if delete { Op::Delete } else { Op::Put { value: value(number), lease: None } };
        let txn = Txn { key: key.clone(), expect: Expect::Any, op };
        match store.txn(txn).await.expect("txn") {
            Outcome::Committed { revision, prev } if !delete || prev.is_some() => {
                let what = if delete { "-".to_owned() } else { number.to_string() };
                print_line(&format!("ack {revision} {key} {what}"));
            }
            _ => {}
        }
    }
}

#[test]
fn killed_process_loses_no_acknowledged_write() {
    let kills = std::env::var("FERRY_STORE_KILLS").ok().and_then(|kills| kills.parse().ok());
    let (kills, time) = kills.map_or((KILLS, TIME), |kills| (kills, Duration::MAX));
    let directory = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let started = Instant::now();
    let mut world = World::default();
    let mut done = 0;
    // A slow machine takes longer for the minimum.
    while done < kills && (done < FEWEST || started.elapsed() < time) {
        world.run_and_kill(directory.path(), Duration::from_micros(rand::random_range(0..60_000)));
        runtime.block_on(world.check(directory.path()));
        done += 1;
    }
    println!("{done} kills, {} acknowledged writes, revision {}", world.used.len(), world.revision);
    assert!(world.used.len() > done, "the child hardly wrote anything");
}

/// Invariants of the store.
#[derive(Default)]
struct World {
    /// The latest acknowledged change of each key: revision, and value unless deleted.
    keys: BTreeMap<String, (u64, Option<u64>)>,
    /// Revisions that were acknowledged.
    used: BTreeSet<u64>,
    /// The store's revision at the last verification.
    revision: u64,
}

impl World {
    fn run_and_kill(&mut self, directory: &Path, after: Duration) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "crash::writes_until_killed_child",
                "--exact",
                "--ignored",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(DIRECTORY, directory)
            .stdout(Stdio::piped())
            .spawn()
            .expect("start the child");
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let opened = lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| line.strip_prefix("open ").map(|revision| revision.parse::<u64>().unwrap()));
        assert!(opened.expect("the child opens the store") >= self.revision);
        // The kill timer runs concurrently with the reads: a full pipe would block the child.
        let killer = std::thread::spawn(move || {
            std::thread::sleep(after);
            child.kill().expect("kill");
            child.wait().expect("wait")
        });
        for line in lines.map_while(Result::ok) {
            let Some(ack) = line.strip_prefix("ack ") else { continue };
            let parts: Vec<&str> = ack.split(' ').collect();
            let [revision, key, what] = parts.as_slice() else { panic!("{line}") };
            let revision: u64 = revision.parse().unwrap();
            assert!(revision > self.revision, "revision {revision} was used before the restart");
            assert!(self.used.insert(revision), "revision {revision} was used twice");
            let known = self.keys.entry((*key).to_owned()).or_insert((0, None));
            if revision > known.0 {
                *known = (revision, what.parse().ok());
            }
        }
        let status = killer.join().unwrap();
        assert!(!status.success() && status.code().is_none(), "the child ended by itself: {status}");
    }

    async fn check(&mut self, directory: &Path) {
        let store = Embedded::open(options(directory)).expect("open after a kill");
        let revision = store.revision();
        assert!(revision >= self.revision && revision >= self.used.last().copied().unwrap_or(0));
        let all = RangeRequest { start: "/".into(), end: "0".into(), ..Default::default() };
        let found = store.range(all).await.unwrap();
        let mut current: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        for kv in &found.kvs {
            assert!(kv.create_revision <= kv.mod_revision && kv.mod_revision <= revision);
            current.insert(kv.key.to_string(), (kv.mod_revision, number(&kv.value)));
        }
        for (key, (acknowledged, expected)) in &self.keys {
            match (current.get(key), expected) {
                (Some((modified, number)), Some(expected)) if modified == acknowledged => {
                    assert_eq!(number, expected, "{key}");
                }
                // A later change that was not acknowledged, or that reverted an acknowledged one.
                (Some((modified, _)), _) => {
                    assert!(modified > acknowledged, "{key} at {acknowledged} is lost")
                }
                (None, None) => {}
                (None, Some(_)) => {
                    let gone = self.deleted_after(&store, key, *acknowledged).await;
                    assert!(gone, "{key} at {acknowledged} is lost");
                }
            }
        }
        self.revision = revision;
    }

    /// True if an unacknowledged deletion removed the key.
    async fn deleted_after(&self, store: &Embedded, key: &str, acknowledged: u64) -> bool {
        let recorder = Recorder::default();
        let after = acknowledged.max(store.compacted().await.unwrap());
        let _watch = store.watch(key, after, recorder.sink()).await.unwrap();
        let calls = recorder.calls.lock();
        // Without history the deletion cannot be proven; the range check above covers the rest.
        after > acknowledged || matches!(calls.events.last(), Some(Event::Delete { .. }))
    }
}
