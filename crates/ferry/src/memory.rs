//! Memory: which allocator there is, and when what is free goes back to the system.
//!
//! An idle process should look idle, so free memory does not stay: it goes at once. In a server, which will need it again
//! the next moment, each page that comes back costs a fault; there it goes a little later, and threads that have nothing
//! more to do see to it.

#[cfg(feature = "mimalloc")]
mod purging {
    use std::alloc::{GlobalAlloc, Layout};
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Instant;

    use libmimalloc_sys as mi;

    #[global_allocator]
    static ALLOCATOR: Allocator = Allocator;

    /// mimalloc. Its plain functions align to words and are quicker than those that take an alignment.
    struct Allocator;

    const WORD: usize = size_of::<usize>();

    #[expect(unsafe_code, reason = "the allocator is reached through its C interface")]
    // SAFETY: mimalloc keeps the contract of an allocator; all its blocks are aligned to words, and `mi_free` and
    // `mi_realloc` take any of them. Whoever needs more than that has it allocated and moved by the other functions.
    unsafe impl GlobalAlloc for Allocator {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            if layout.align() <= WORD {
                // SAFETY: any size will do.
                return unsafe { mi::mi_malloc(layout.size()) }.cast();
            }
            // SAFETY: the alignment of a layout is a power of two.
            unsafe { mi::mi_malloc_aligned(layout.size(), layout.align()) }.cast()
        }

        unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
            if layout.align() <= WORD {
                // SAFETY: any size will do.
                return unsafe { mi::mi_zalloc(layout.size()) }.cast();
            }
            // SAFETY: the alignment of a layout is a power of two.
            unsafe { mi::mi_zalloc_aligned(layout.size(), layout.align()) }.cast()
        }

        unsafe fn dealloc(&self, block: *mut u8, _layout: Layout) {
            // SAFETY: the caller has the block from this allocator.
            unsafe { mi::mi_free(block.cast()) };
        }

        unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
            if layout.align() <= WORD {
                // SAFETY: the caller has the block from this allocator.
                return unsafe { mi::mi_realloc(block.cast(), size) }.cast();
            }
            // SAFETY: as above, and the alignment of a layout is a power of two.
            unsafe { mi::mi_realloc_aligned(block.cast(), size, layout.align()) }.cast()
        }
    }

    /// Free memory of a server stays so long, in milliseconds.
    const DELAY: u32 = 200;
    /// `mi_option_purge_delay` of mimalloc 3.
    const PURGE_DELAY: mi::mi_option_t = 15;

    #[expect(unsafe_code, reason = "the allocator's options are set through its C interface")]
    fn delay(millis: u32) {
        // SAFETY: an option and a value that the allocator documents; it reads them when it needs them.
        unsafe { mi::mi_option_set(PURGE_DELAY, millis.into()) };
    }

    /// What is free goes at once.
    pub fn return_at_once() {
        delay(0);
    }

    /// What is free goes a little later, by [`return_if_due`].
    pub fn return_later() {
        delay(DELAY);
    }

    /// For threads that are about to sleep. Mostly another one has just been here.
    #[expect(unsafe_code, reason = "the allocator is asked through its C interface")]
    pub fn return_if_due() {
        static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);
        static LAST: AtomicU64 = AtomicU64::new(0);
        let now = u64::try_from(BEGUN.elapsed().as_millis()).unwrap_or(u64::MAX);
        let last = LAST.load(Ordering::Relaxed);
        let due = now >= last + 2 * u64::from(DELAY);
        if due && LAST.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            // SAFETY: may be called by any thread at any time.
            unsafe { mi::mi_collect(false) };
        }
    }
}

#[cfg(not(feature = "mimalloc"))]
mod purging {
    pub fn return_at_once() {}
    pub fn return_later() {}
    pub fn return_if_due() {}
}

pub use purging::{return_at_once, return_if_due, return_later};
