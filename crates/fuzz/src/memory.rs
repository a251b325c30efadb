//! Memory that the current thread has allocated, and the most since it was last asked.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

/// The allocator of the system, with an account per thread.
pub struct Counting;

fn count(bytes: isize) {
    // Threads that end free their variables before their last memory.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        let _ = MOST.try_with(|most| most.set(most.get().max(held.get())));
    });
}

fn signed(bytes: usize) -> isize {
    isize::try_from(bytes).unwrap_or(isize::MAX)
}

#[expect(
    unsafe_code,
    reason = "an allocator cannot be written otherwise; it only counts and passes calls on"
)]
// SAFETY: every call is the system allocator's own, with the arguments that came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(signed(layout.size()));
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        count(-signed(layout.size()));
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(signed(size) - signed(layout.size()));
        unsafe { System.realloc(place, layout, size) }
    }
}

/// Runs `work` and returns with its outcome the most memory that it held at a time.
pub fn measured<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.get();
    MOST.set(before);
    let outcome = work();
    (outcome, usize::try_from(MOST.get() - before).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_work_is_measured() {
        let (length, most) = measured(|| vec![0u8; 100_000].len());
        assert_eq!(length, 100_000);
        assert!((100_000..200_000).contains(&most), "{most}");
        let ((), none) = measured(|| ());
        assert_eq!(none, 0);
    }
}
