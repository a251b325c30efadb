//! Memory allocated by the current thread, and its peak since the last reset.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

/// The system allocator with a counter per thread.
pub struct Counting;

fn count(bytes: isize) {
    // A thread that ends frees its thread-local variables before its last allocation.
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
// SAFETY: every call is forwarded to the system allocator with unchanged arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(signed(layout.size()));
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-signed(layout.size()));
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(signed(size) - signed(layout.size()));
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Runs `work` and returns its result with its peak memory.
pub fn measured<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.get();
    MOST.set(before);
    let outcome = work();
    (outcome, usize::try_from(MOST.get() - before).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[global_allocator]
    static ALLOCATOR: Counting = Counting;

    #[test]
    fn memory_of_work_is_measured() {
        let (length, most) = measured(|| vec![0u8; 100_000].len());
        assert_eq!(length, 100_000);
        assert!((100_000..200_000).contains(&most), "{most}");
        let ((), none) = measured(|| ());
        assert_eq!(none, 0);
    }
}
