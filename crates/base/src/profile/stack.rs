//! Return addresses of the calling thread's stack, by the unwinder that panics use.

use std::ffi::{c_int, c_void};

/// Frames recorded of a stack; the outermost ones of a deeper stack are left out.
pub const DEPTH: usize = 64;

/// Return addresses, the innermost first.
#[derive(Clone, Copy, Debug)]
pub struct Stack {
    pub frames: [usize; DEPTH],
    pub length: usize,
}

impl Stack {
    pub const EMPTY: Self = Self { frames: [0; DEPTH], length: 0 };

    /// Without the innermost `skipped` frames.
    pub fn frames(&self, skipped: usize) -> &[usize] {
        self.frames.get(skipped.min(self.length)..self.length).unwrap_or_default()
    }
}

type Visitor = extern "C" fn(*mut c_void, *mut c_void) -> c_int;

const CONTINUE: c_int = 0;
const END: c_int = 5;

#[expect(unsafe_code, reason = "the unwinder has a C interface")]
mod unwinder {
    use super::{Visitor, c_int, c_void};

    unsafe extern "C" {
        pub fn _Unwind_Backtrace(visitor: Visitor, argument: *mut c_void) -> c_int;
        pub fn _Unwind_GetIP(context: *mut c_void) -> usize;
    }
}

/// Records the stack of the caller. Allocates nothing, so that the allocator and signal handlers may call it.
#[inline(never)]
#[expect(unsafe_code, reason = "the unwinder has a C interface")]
pub fn record(stack: &mut Stack) {
    extern "C" fn visit(context: *mut c_void, argument: *mut c_void) -> c_int {
        // SAFETY: the argument is the stack that `record` passed, which lives until the unwinder returns.
        let stack = unsafe { &mut *argument.cast::<Stack>() };
        // SAFETY: the unwinder calls this function with a valid context.
        let address = unsafe { unwinder::_Unwind_GetIP(context) };
        let Some(frame) = stack.frames.get_mut(stack.length) else { return END };
        if address == 0 {
            return END;
        }
        *frame = address;
        stack.length += 1;
        CONTINUE
    }
    stack.length = 0;
    // SAFETY: `visit` has the type that the unwinder requires and does not unwind.
    unsafe { unwinder::_Unwind_Backtrace(visit, std::ptr::from_mut(stack).cast()) };
}
