//! The wall clock of defaults and preparations that set a time. This crate cannot use `base::clock`, which is in a
//! higher layer; nothing else here reads the time.

use jiff::Timestamp;

#[cfg_attr(not(test), expect(clippy::disallowed_methods, reason = "the only clock of this crate"))]
pub fn now() -> Timestamp {
    Timestamp::now()
}

/// The current time as objects show it.
pub fn now_text() -> String {
    now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
