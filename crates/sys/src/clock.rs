//! State of the kernel's clock discipline.

#![expect(unsafe_code, reason = "adjtimex has no safe binding")]

/// Clock discipline, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClockDiscipline {
    pub offset: f64,
    pub max_error: f64,
    pub estimated_error: f64,
    /// Local clock frequency relative to the true one.
    pub frequency_ratio: f64,
    pub status: i32,
    pub tai_offset: i32,
    /// True if the clock is synchronized to a reliable server.
    pub is_synchronized: bool,
}

/// Reads the clock discipline; nothing is changed.
pub fn discipline() -> std::io::Result<ClockDiscipline> {
    // SAFETY: all fields of the structure are integers, for which zero is valid; `modes` 0 only reads.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is valid for the duration of the call.
    let code = unsafe { libc::adjtimex(&raw mut state) };
    if code < 0 {
        return Err(std::io::Error::last_os_error());
    }
    let divisor = if state.status & libc::STA_NANO != 0 { 1e9 } else { 1e6 };
    Ok(ClockDiscipline {
        offset: state.offset as f64 / divisor,
        max_error: state.maxerror as f64 / 1e6,
        estimated_error: state.esterror as f64 / 1e6,
        // Parts per million with a fraction of 16 bits.
        frequency_ratio: 1.0 + state.freq as f64 / (1e6 * 65536.0),
        status: state.status,
        tai_offset: state.tai,
        is_synchronized: code != libc::TIME_ERROR,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_discipline_is_readable_and_plausible() {
        let state = discipline().expect("any user may read it");
        assert!(state.max_error >= 0.0 && state.estimated_error >= 0.0);
        assert!((0.9..1.1).contains(&state.frequency_ratio), "{state:?}");
    }
}
