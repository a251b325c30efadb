//! Heap profiles: sampled allocations with their stacks.
//!
//! The global allocator calls [`allocated`] and [`freed`] while [`recording`]. Both allocate, and these allocations are
//! not recorded.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::stack::{self, Stack};
use super::{Error, LONGEST, Samples, ValueType};

/// Bytes allocated by a thread between two samples.
pub const RATE: usize = 128 * 1024;
/// Live samples; further allocations are not recorded.
const LIVE: usize = 200_000;
/// Distinct stacks of a profile.
const STACKS: usize = 50_000;
/// `stack::record` and `allocated`.
const SKIPPED: usize = 2;

const TYPES: &[ValueType] = &[
    ValueType { name: "alloc_objects", unit: "count" },
    ValueType { name: "alloc_space", unit: "bytes" },
    ValueType { name: "inuse_objects", unit: "count" },
    ValueType { name: "inuse_space", unit: "bytes" },
];
const SPACE: ValueType = ValueType { name: "space", unit: "bytes" };

/// Objects and bytes.
type Amounts = [u64; 2];

#[derive(Default)]
struct Recorded {
    /// Allocated and freed amounts by stack.
    stacks: HashMap<Vec<usize>, (Amounts, Amounts)>,
    /// Sampled blocks that are not freed: their stack and amounts.
    live: HashMap<usize, (Vec<usize>, Amounts)>,
}

static RECORDING: AtomicBool = AtomicBool::new(false);
static INSTALLED: AtomicBool = AtomicBool::new(false);
static RECORDED: Mutex<Option<Recorded>> = Mutex::new(None);

thread_local! {
    static UNTIL_SAMPLE: Cell<usize> = const { Cell::new(RATE) };
    /// The thread is recording: its own allocations are left out.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Declares that the global allocator calls [`allocated`] and [`freed`].
pub fn install() {
    INSTALLED.store(true, Ordering::Relaxed);
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

/// Counts an allocation, and samples it when [`RATE`] bytes were allocated since the last sample.
#[inline(never)]
pub fn allocated(address: usize, size: usize) {
    let due = UNTIL_SAMPLE.try_with(|left| {
        let due = size >= left.get();
        left.set(if due { RATE } else { left.get() - size });
        due
    });
    if due != Ok(true) || address == 0 {
        return;
    }
    let mut frames = Stack::EMPTY;
    stack::record(&mut frames);
    // A sample stands for all bytes since the last one.
    let bytes = size.max(RATE) as u64;
    let amounts = [(bytes / (size.max(1) as u64)).max(1), bytes];
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
    });
}

/// Subtracts a block that was sampled.
#[inline(never)]
pub fn freed(address: usize) {
    outside_of_recording(|recorded| {
        if let Some((frames, amounts)) = recorded.live.remove(&address)
            && let Some((_, freed)) = recorded.stacks.get_mut(&frames)
        {
            add(freed, amounts);
        }
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

/// Records the allocations of a duration: all, and those that were not freed at its end.
pub async fn profile(duration: Duration) -> Result<Samples, Error> {
    if !INSTALLED.load(Ordering::Relaxed) {
        return Err(Error::NoAllocator);
    }
    let duration = duration.min(LONGEST);
    let recording = Recording::start()?;
    tokio::time::sleep(duration).await;
    let stacks = recording
        .end()
        .stacks
        .into_iter()
        .map(|(frames, (total, freed))| {
            let values = vec![
                total[0],
                total[1],
                total[0].saturating_sub(freed[0]),
                total[1].saturating_sub(freed[1]),
            ];
            (frames, values)
        })
        .collect();
    Ok(Samples { types: TYPES, period: RATE as u64, period_type: SPACE, duration, stacks })
}
