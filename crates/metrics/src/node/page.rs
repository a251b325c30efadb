//! Writer of Prometheus' text format.

use std::fmt::{Display, Write as _};

/// A page under construction.
#[derive(Default)]
pub struct Page(String);

impl Page {
    pub fn counter(&mut self, name: &str, help: &str) {
        self.family(name, "counter", help);
    }

    pub fn gauge(&mut self, name: &str, help: &str) {
        self.family(name, "gauge", help);
    }

    pub fn family_untyped(&mut self, name: &str, help: &str) {
        self.family(name, "untyped", help);
    }

    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.0.push_str(name);
        for (at, (label, text)) in labels.iter().enumerate() {
            let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.0, "{}{label}=\"{text}\"", if at == 0 { '{' } else { ',' });
        }
        let _ = writeln!(self.0, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }

    pub fn finish(self) -> String {
        self.0
    }
}

/// Hundredths of a second, in seconds.
pub fn of_ticks(ticks: u64) -> String {
    format!("{}.{:02}", ticks / 100, ticks % 100)
}

/// Milliseconds, in seconds.
pub fn of_millis(millis: u64) -> String {
    format!("{}.{:03}", millis / 1000, millis % 1000)
}
