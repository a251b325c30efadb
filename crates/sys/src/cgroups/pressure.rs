//! Pressure stall information: time that tasks waited for a resource.

use std::path::Path;

/// Waiting time of a share of the tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stalled {
    pub total_microseconds: u64,
}

/// Time in which some tasks, and all tasks, waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    pub some: Stalled,
    pub full: Stalled,
}

/// Reads a file such as `cpu.pressure` or `/proc/pressure/io`; `None` if the kernel does not measure pressure.
#[must_use]
pub fn read(file: &Path) -> Option<Pressure> {
    parse(&std::fs::read_to_string(file).ok()?)
}

fn parse(text: &str) -> Option<Pressure> {
    // Older kernels have no `full` line for the CPU.
    Some(Pressure { some: line(text, "some")?, full: line(text, "full").unwrap_or_default() })
}

/// Parses a line such as `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`.
fn line(text: &str, kind: &str) -> Option<Stalled> {
    let fields = text.lines().find_map(|line| line.strip_prefix(kind)?.strip_prefix(' '))?;
    let total = fields.split_ascii_whitespace().find_map(|field| field.strip_prefix("total="))?;
    Some(Stalled { total_microseconds: total.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_lines_parse() {
        let text = "some avg10=1.50 avg60=0.25 avg300=0.01 total=77\n";
        let some = Stalled { total_microseconds: 77 };
        assert_eq!(parse(text), Some(Pressure { some, full: Stalled::default() }));
        let both = format!("{text}full avg10=0.00 avg60=0.00 avg300=0.00 total=3\n");
        assert_eq!(parse(&both), Some(Pressure { some, full: Stalled { total_microseconds: 3 } }));
        for bad in ["", "some total=x", "full total=1"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
