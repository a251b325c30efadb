//! Global allocator, and when free memory is returned to the system.
//!
//! Free memory of an idle process is returned immediately. In a server, which soon needs it again, each returned page
//! costs a fault; there it is returned after a delay, by threads that become idle.

#[cfg(feature = "mimalloc")]
mod purging {
    use std::alloc::{GlobalAlloc, Layout};
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Instant;

    use base::profile::heap;
    use libmimalloc_sys as mi;

    #[global_allocator]
    static ALLOCATOR: Allocator = Allocator;

    /// mimalloc. Its plain functions align to words and are faster than those with an alignment parameter.
    struct Allocator;

    const WORD: usize = size_of::<usize>();

    #[expect(unsafe_code, reason = "mimalloc is called through its C interface")]
    // SAFETY: mimalloc fulfils the contract of an allocator; all its blocks are word-aligned, and `mi_free` and
    // `mi_realloc` accept any of them. Larger alignments are allocated and reallocated by the other functions.
    unsafe impl GlobalAlloc for Allocator {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            let block = if layout.align() <= WORD {
                // SAFETY: any size is valid.
                unsafe { mi::mi_malloc(layout.size()) }
            } else {
                // SAFETY: the alignment of a layout is a power of two.
                unsafe { mi::mi_malloc_aligned(layout.size(), layout.align()) }
            };
            allocated(block.cast(), layout.size())
        }

        unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
            let block = if layout.align() <= WORD {
                // SAFETY: any size is valid.
                unsafe { mi::mi_zalloc(layout.size()) }
            } else {
                // SAFETY: the alignment of a layout is a power of two.
                unsafe { mi::mi_zalloc_aligned(layout.size(), layout.align()) }
            };
            allocated(block.cast(), layout.size())
        }

        unsafe fn dealloc(&self, block: *mut u8, _layout: Layout) {
            freed(block);
            // SAFETY: the caller got the block from this allocator.
            unsafe { mi::mi_free(block.cast()) };
        }

        unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
            freed(block);
            let block = if layout.align() <= WORD {
                // SAFETY: the caller got the block from this allocator.
                unsafe { mi::mi_realloc(block.cast(), size) }
            } else {
                // SAFETY: as above, and the alignment of a layout is a power of two.
                unsafe { mi::mi_realloc_aligned(block.cast(), size, layout.align()) }
            };
            allocated(block.cast(), size)
        }
    }

    /// Records a block while a heap profile is taken.
    #[inline]
    fn allocated(block: *mut u8, size: usize) -> *mut u8 {
        if heap::recording() {
            heap::allocated(block as usize, size);
        }
        block
    }

    #[inline]
    fn freed(block: *mut u8) {
        if heap::recording() {
            heap::freed(block as usize);
        }
    }

    /// Delay in milliseconds before a server's free memory is returned.
    const DELAY: u32 = 200;
    /// `mi_option_purge_delay` of mimalloc 3.
    const PURGE_DELAY: mi::mi_option_t = 15;

    #[expect(unsafe_code, reason = "mimalloc options are set through its C interface")]
    fn delay(millis: u32) {
        // SAFETY: a documented option and value; the allocator reads them on use.
        unsafe { mi::mi_option_set(PURGE_DELAY, millis.into()) };
    }

    /// Enables heap profiles.
    pub fn enable_heap_profiles() {
        heap::install();
    }

    /// Returns free memory immediately.
    pub fn return_immediately() {
        delay(0);
    }

    /// Returns free memory after a delay, by [`return_if_due`].
    pub fn return_later() {
        delay(DELAY);
    }

    /// Called by threads that become idle. Rate-limited, since usually another thread has just called it.
    #[expect(unsafe_code, reason = "mimalloc purging is called through its C interface")]
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
    pub fn enable_heap_profiles() {}
    pub fn return_immediately() {}
    pub fn return_later() {}
    pub fn return_if_due() {}
}

pub use purging::{enable_heap_profiles, return_if_due, return_immediately, return_later};
