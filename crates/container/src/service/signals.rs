//! Stop signals of containers.

use cri::v1::ContainerConfig;

use crate::images::RunConfig;

/// Stop signal of a container: the pod's, the image's, or SIGTERM.
pub(super) fn stop_signal(config: &ContainerConfig, run: &RunConfig) -> i32 {
    const TERMINATE: i32 = 15;
    let named = match config.stop_signal() {
        cri::v1::Signal::RuntimeDefault => run.stop_signal.to_uppercase(),
        signal => format!("{signal:?}").to_uppercase(),
    };
    signal_number(&named).unwrap_or(TERMINATE)
}

/// Number of a signal from its name or number, as in image configurations.
fn signal_number(name: &str) -> Option<i32> {
    const NAMES: &[(&str, i32)] = &[
        ("HUP", 1),
        ("INT", 2),
        ("QUIT", 3),
        ("ILL", 4),
        ("TRAP", 5),
        ("ABRT", 6),
        ("IOT", 6),
        ("BUS", 7),
        ("FPE", 8),
        ("KILL", 9),
        ("USR1", 10),
        ("SEGV", 11),
        ("USR2", 12),
        ("PIPE", 13),
        ("ALRM", 14),
        ("TERM", 15),
        ("STKFLT", 16),
        ("CHLD", 17),
        ("CLD", 17),
        ("CONT", 18),
        ("STOP", 19),
        ("TSTP", 20),
        ("TTIN", 21),
        ("TTOU", 22),
        ("URG", 23),
        ("XCPU", 24),
        ("XFSZ", 25),
        ("VTALRM", 26),
        ("PROF", 27),
        ("WINCH", 28),
        ("IO", 29),
        ("POLL", 29),
        ("PWR", 30),
        ("SYS", 31),
        ("RTMIN", 34),
        ("RTMAX", 64),
    ];
    if let Ok(number) = name.parse::<i32>() {
        return (1..=64).contains(&number).then_some(number);
    }
    let short = name.strip_prefix("SIG").unwrap_or(name);
    if let Some((_, number)) = NAMES.iter().find(|(known, _)| *known == short) {
        return Some(*number);
    }
    let (base, offset) = match short.split_once(['+', '-']) {
        Some((base, digits)) => (base, digits.parse::<i32>().ok()?),
        None => {
            let base = ["RTMINPLUS", "RTMAXMINUS"].into_iter().find(|base| short.starts_with(base))?;
            (base, short[base.len()..].parse().ok()?)
        }
    };
    let number = if base.starts_with("RTMIN") { offset.checked_add(34) } else { 64_i32.checked_sub(offset) }?;
    (34..=64).contains(&number).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_signals_are_parsed() {
        for (name, number) in [
            ("SIGTERM", Some(15)),
            ("QUIT", Some(3)),
            ("9", Some(9)),
            ("SIGRTMIN+3", Some(37)),
            ("SIGRTMAXMINUS14", Some(50)),
            ("SIGRTMIN+90", None),
            ("SIGRTMIN+2147483647", None),
            ("SIGRTMAX--2147483648", None),
            ("65", None),
            ("", None),
        ] {
            assert_eq!(signal_number(name), number, "{name}");
        }
    }
}
