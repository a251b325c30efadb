//! CPU profiles: the stacks of running threads, sampled by a timer of CPU time.

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;
use std::{io, ptr};

use super::stack::{self, Stack};
use super::{Error, LONGEST, Samples, ValueType};

const PERIOD: Duration = Duration::from_millis(10);
/// Samples between two collections: enough for 64 busy cores.
const SLOTS: usize = 2048;
const COLLECT: Duration = Duration::from_millis(200);
/// Distinct stacks of a profile; further ones are not counted.
const STACKS: usize = 50_000;
/// The signal handler and the trampoline that the kernel returns to.
const SKIPPED: usize = 3;

const TYPES: &[ValueType] =
    &[ValueType { name: "samples", unit: "count" }, ValueType { name: "cpu", unit: "nanoseconds" }];

const FREE: u8 = 0;
const WRITING: u8 = 1;
const FULL: u8 = 2;

struct Slot {
    state: AtomicU8,
    stack: UnsafeCell<Stack>,
}

/// Slots that the signal handler fills and the collector empties.
struct Ring {
    slots: [Slot; SLOTS],
    next: AtomicUsize,
}

// SAFETY: a stack is accessed only by the thread that moved the slot's state to WRITING, or by the only collector after
// the state became FULL.
#[expect(unsafe_code, reason = "slots are synchronized by their states")]
unsafe impl Sync for Ring {}

static RING: Ring = Ring {
    slots: [const { Slot { state: AtomicU8::new(FREE), stack: UnsafeCell::new(Stack::EMPTY) } }; SLOTS],
    next: AtomicUsize::new(0),
};
/// A profile is being recorded.
static RECORDING: AtomicBool = AtomicBool::new(false);
/// A profile is being recorded or collected.
static BUSY: AtomicBool = AtomicBool::new(false);

/// Signal handler: async-signal-safe, since it only unwinds and writes to preallocated memory.
#[expect(unsafe_code, reason = "errno and the slots are accessed as raw memory")]
extern "C" fn sample(_signal: libc::c_int) {
    if !RECORDING.load(Ordering::Relaxed) {
        return;
    }
    // SAFETY: errno of this thread is always valid.
    let errno = unsafe { *libc::__errno_location() };
    let at = RING.next.fetch_add(1, Ordering::Relaxed) % SLOTS;
    if let Some(slot) = RING.slots.get(at)
        && slot.state.compare_exchange(FREE, WRITING, Ordering::Acquire, Ordering::Relaxed).is_ok()
    {
        // SAFETY: the state WRITING excludes all other access.
        stack::record(unsafe { &mut *slot.stack.get() });
        slot.state.store(FULL, Ordering::Release);
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Sets the process's timer of CPU time; zero stops it.
#[expect(unsafe_code, reason = "the timer and its signal are set through libc")]
fn set_timer(period: Duration) -> io::Result<()> {
    let interval = libc::timeval { tv_sec: 0, tv_usec: period.subsec_micros().into() };
    let timer = libc::itimerval { it_interval: interval, it_value: interval };
    // SAFETY: the handler is async-signal-safe and stays valid; all structures are initialized. System calls that the
    // signal interrupts are restarted.
    let result = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = sample as extern "C" fn(libc::c_int) as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART;
        if libc::sigaction(libc::SIGPROF, &raw const action, ptr::null_mut()) == 0 {
            libc::setitimer(libc::ITIMER_PROF, &raw const timer, ptr::null_mut())
        } else {
            -1
        }
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Adds the recorded stacks to the counts.
#[expect(unsafe_code, reason = "slots are accessed as raw memory")]
fn collect(counts: &mut HashMap<Vec<usize>, u64>) {
    for slot in RING.slots.iter().filter(|slot| slot.state.load(Ordering::Acquire) == FULL) {
        // SAFETY: the state is FULL and there is one collector.
        let stack = unsafe { &*slot.stack.get() };
        let frames = stack.frames(SKIPPED);
        if let Some(count) = counts.get_mut(frames) {
            *count += 1;
        } else if counts.len() < STACKS {
            counts.insert(frames.to_vec(), 1);
        }
        slot.state.store(FREE, Ordering::Release);
    }
}

/// Ends the recording also when its request is cancelled.
struct Recording;

impl Recording {
    fn start() -> Result<Self, Error> {
        if BUSY.swap(true, Ordering::AcqRel) {
            return Err(Error::Busy);
        }
        let recording = Self;
        RECORDING.store(true, Ordering::Release);
        set_timer(PERIOD).map_err(Error::Timer)?;
        Ok(recording)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if let Err(error) = set_timer(Duration::ZERO) {
            tracing::warn!(%error, "failed to stop the CPU profile timer");
        }
        RECORDING.store(false, Ordering::Release);
        collect(&mut HashMap::new());
        BUSY.store(false, Ordering::Release);
    }
}

/// Records a profile. One at a time.
pub async fn profile(duration: Duration) -> Result<Samples, Error> {
    let duration = duration.min(LONGEST);
    let recording = Recording::start()?;
    let mut counts = HashMap::new();
    let mut left = duration;
    while !left.is_zero() {
        let pause = left.min(COLLECT);
        tokio::time::sleep(pause).await;
        left -= pause;
        collect(&mut counts);
    }
    drop(recording);
    let period = u64::try_from(PERIOD.as_nanos()).unwrap_or(u64::MAX);
    let stacks = counts
        .into_iter()
        .map(|(frames, count)| (frames, vec![count, count.saturating_mul(period)]))
        .collect();
    Ok(Samples { types: TYPES, period, period_type: TYPES[1], duration, stacks })
}
