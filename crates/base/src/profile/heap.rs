//! Heap profiles: sampled allocations with their stacks.
//!
//! The global allocator calls [`allocated`] and [`freed`] while [`recording`]. Both allocate, and these allocations are
//! not recorded. Recording lasts for one profile, or from [`record_continuously`] until the process ends.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::stack::{self, Stack};
use super::{DEFAULT_HEAP, Error, LONGEST, Samples, ValueType};

/// Mean number of bytes that a thread allocates between two samples, unless continuous recording has another rate.
pub const RATE: usize = 128 * 1024;
/// Live samples; further allocations are not recorded.
const LIVE: usize = 200_000;
/// Distinct stacks of a profile.
const STACKS: usize = 50_000;
/// `stack::record` and `allocated`.
const SKIPPED: usize = 2;
/// Entries of [`SAMPLED`].
const SLOTS: usize = 1 << 14;

const TYPES: &[ValueType] = &[
    ValueType { name: "alloc_objects", unit: "count" },
    ValueType { name: "alloc_space", unit: "bytes" },
    ValueType { name: "inuse_objects", unit: "count" },
    ValueType { name: "inuse_space", unit: "bytes" },
];
const SPACE: ValueType = ValueType { name: "space", unit: "bytes" };

/// Objects and bytes.
type Amounts = [u64; 2];

/// Allocated and freed amounts by stack.
type Stacks = HashMap<Vec<usize>, (Amounts, Amounts)>;

#[derive(Default)]
struct Recorded {
    stacks: Stacks,
    /// Sampled blocks that are not freed: their stack and amounts.
    live: HashMap<usize, (Vec<usize>, Amounts)>,
}

static RECORDING: AtomicBool = AtomicBool::new(false);
static INSTALLED: AtomicBool = AtomicBool::new(false);
/// Rate of continuous recording, or 0.
static CONTINUOUS: AtomicUsize = AtomicUsize::new(0);
/// Numbers of sampled blocks by address slot: most blocks are freed without the lock. A full slot stays full.
static SAMPLED: [AtomicU8; SLOTS] = [const { AtomicU8::new(0) }; SLOTS];
static RECORDED: Mutex<Option<Recorded>> = Mutex::new(None);

thread_local! {
    /// Bytes until the next sample; 0 before the first distance is drawn.
    static UNTIL_SAMPLE: Cell<usize> = const { Cell::new(0) };
    /// State of the generator of distances; 0 before the first.
    static RANDOM: Cell<u64> = const { Cell::new(0) };
    /// The thread is recording: its own allocations are left out.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Declares that the global allocator calls [`allocated`] and [`freed`].
pub fn install() {
    INSTALLED.store(true, Ordering::Relaxed);
}

/// Records allocations until the process ends, one sample per `rate` bytes (0 is 1), so that a profile has all blocks in
/// use. Each sample costs some ten microseconds.
pub fn record_continuously(rate: usize) -> Result<(), Error> {
    if !INSTALLED.load(Ordering::Relaxed) {
        return Err(Error::NoAllocator);
    }
    CONTINUOUS.store(rate.max(1), Ordering::Relaxed);
    let recording = Recording::start()?;
    std::mem::forget(recording);
    Ok(())
}

fn rate() -> usize {
    match CONTINUOUS.load(Ordering::Relaxed) {
        0 => RATE,
        rate => rate,
    }
}

fn slot(address: usize) -> &'static AtomicU8 {
    // Fibonacci hashing; blocks are aligned to 8 bytes at least.
    let hash = (address as u64 >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 50;
    &SAMPLED[hash as usize % SLOTS]
}

/// Reports whether allocations are being recorded.
#[inline]
#[must_use]
pub fn recording() -> bool {
    RECORDING.load(Ordering::Relaxed)
}

/// Runs `record` unless the thread is already recording, or ends.
fn outside_of_recording(record: impl FnOnce(&mut Recorded)) {
    let _ = INSIDE.try_with(|inside| {
        if inside.replace(true) {
            return;
        }
        if let Some(recorded) = RECORDED.lock().as_mut() {
            record(recorded);
        }
        inside.set(false);
    });
}

/// The distance to the next sample: exponential, so that every byte is sampled with the same probability. With a fixed
/// distance, work that repeats itself would be sampled at the same allocation each time.
fn distance() -> Option<usize> {
    let random = RANDOM.try_with(|state| {
        let mut next = state.get();
        if next == 0 {
            static THREADS: AtomicUsize = AtomicUsize::new(1);
            next = (THREADS.fetch_add(1, Ordering::Relaxed) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        // xorshift64.
        next ^= next << 13;
        next ^= next >> 7;
        next ^= next << 17;
        state.set(next);
        next
    });
    // Between 0, exclusive, and 1.
    let uniform = ((random.ok()? >> 11) + 1) as f64 / (1_u64 << 53) as f64;
    Some((-uniform.ln() * rate() as f64) as usize + 1)
}

/// Objects and bytes that a sampled allocation stands for, by the probability of being sampled.
fn amounts(size: usize) -> Amounts {
    let size = size.max(1) as f64;
    let probability = -(-size / rate() as f64).exp_m1();
    [(1.0 / probability).round() as u64, (size / probability).round() as u64]
}

/// Counts an allocation, and samples it if it reaches the distance to the next sample.
#[inline(never)]
pub fn allocated(address: usize, size: usize) {
    let due = UNTIL_SAMPLE.try_with(|left| {
        let until = if left.get() == 0 { distance()? } else { left.get() };
        let due = size >= until;
        left.set(if due { distance()? } else { until - size });
        Some(due)
    });
    if due != Ok(Some(true)) || address == 0 {
        return;
    }
    let mut frames = Stack::EMPTY;
    stack::record(&mut frames);
    let amounts = amounts(size);
    outside_of_recording(|recorded| {
        let frames = frames.frames(SKIPPED);
        if recorded.live.len() >= LIVE
            || (recorded.stacks.len() >= STACKS && !recorded.stacks.contains_key(frames))
        {
            return;
        }
        let (total, _) = recorded.stacks.entry(frames.to_vec()).or_default();
        add(total, amounts);
        recorded.live.insert(address, (frames.to_vec(), amounts));
        let _ = slot(address)
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| Some(count.saturating_add(1)));
    });
}

/// Subtracts a block that was sampled.
#[inline(never)]
pub fn freed(address: usize) {
    if slot(address).load(Ordering::Relaxed) == 0 {
        return;
    }
    outside_of_recording(|recorded| {
        let Some((frames, amounts)) = recorded.live.remove(&address) else { return };
        if let Some((_, freed)) = recorded.stacks.get_mut(&frames) {
            add(freed, amounts);
        }
        let _ = slot(address).fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
            (count != u8::MAX).then(|| count.saturating_sub(1))
        });
    });
}

fn add(total: &mut Amounts, [objects, bytes]: Amounts) {
    total[0] = total[0].saturating_add(objects);
    total[1] = total[1].saturating_add(bytes);
}

/// Ends the recording also when its request is cancelled.
struct Recording;

impl Recording {
    fn start() -> Result<Self, Error> {
        let mut recorded = RECORDED.lock();
        if recorded.is_some() {
            return Err(Error::Busy);
        }
        *recorded = Some(Recorded::default());
        for count in &SAMPLED {
            count.store(0, Ordering::Relaxed);
        }
        drop(recorded);
        RECORDING.store(true, Ordering::Release);
        Ok(Self)
    }

    fn end(self) -> Recorded {
        RECORDING.store(false, Ordering::Release);
        let recorded = RECORDED.lock().take().unwrap_or_default();
        drop(self);
        recorded
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        RECORDING.store(false, Ordering::Release);
        // Freed outside of the lock: the allocator may be called.
        let recorded = RECORDED.lock().take();
        drop(recorded);
    }
}

/// Allocations of a duration: all, and those that were not freed at its end. Without a duration, and while recording is
/// continuous, the allocations since its start.
pub async fn profile(duration: Option<Duration>) -> Result<Samples, Error> {
    if !INSTALLED.load(Ordering::Relaxed) {
        return Err(Error::NoAllocator);
    }
    let wait = duration.map(|duration| duration.min(LONGEST));
    if CONTINUOUS.load(Ordering::Relaxed) == 0 {
        let wait = wait.unwrap_or(DEFAULT_HEAP);
        let recording = Recording::start()?;
        tokio::time::sleep(wait).await;
        return Ok(samples(recording.end().stacks, &Stacks::new(), wait));
    }
    let mut before = Stacks::new();
    if let Some(wait) = wait {
        before = snapshot();
        tokio::time::sleep(wait).await;
    }
    Ok(samples(snapshot(), &before, wait.unwrap_or_default()))
}

fn snapshot() -> Stacks {
    let mut stacks = Stacks::new();
    outside_of_recording(|recorded| stacks = recorded.stacks.clone());
    stacks
}

/// Amounts that were added since `before`; blocks freed since then may have been allocated earlier.
fn samples(stacks: Stacks, before: &Stacks, duration: Duration) -> Samples {
    let added = |(frames, (total, freed)): (Vec<usize>, (Amounts, Amounts))| {
        let (old, gone) = before.get(&frames).copied().unwrap_or_default();
        let total = [total[0] - old[0], total[1] - old[1]];
        let freed = [freed[0] - gone[0], freed[1] - gone[1]];
        let in_use = [total[0].saturating_sub(freed[0]), total[1].saturating_sub(freed[1])];
        (frames, vec![total[0], total[1], in_use[0], in_use[1]])
    };
    let stacks = stacks.into_iter().map(added).collect();
    Samples { types: TYPES, period: rate() as u64, period_type: SPACE, duration, stacks }
}
