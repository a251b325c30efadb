//! Scenarios that share a cluster: all of them run, and each failure is reported by name.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Outcomes of the scenarios of one test.
#[derive(Debug, Default)]
pub struct Scenarios {
    passed: usize,
    failed: Vec<String>,
}

impl Scenarios {
    /// Runs a scenario and records a panic as its failure.
    pub fn run(&mut self, name: &str, scenario: impl FnOnce()) {
        let outcome = catch_unwind(AssertUnwindSafe(scenario)).map_err(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
        });
        self.record(name, outcome);
    }

    /// Records the outcome of a scenario.
    pub fn record(&mut self, name: &str, outcome: Result<(), String>) {
        match outcome {
            Ok(()) => {
                println!("scenario {name}: passed");
                self.passed += 1;
            }
            Err(reason) => {
                println!("scenario {name}: failed: {reason}");
                self.failed.push(format!("{name}: {reason}"));
            }
        }
    }

    /// Panics with the failures, if there are any.
    pub fn finish(self) {
        let Self { passed, failed } = self;
        assert!(passed > 0 || !failed.is_empty(), "no scenario ran");
        assert!(
            failed.is_empty(),
            "{} of {} scenarios failed:\n{}",
            failed.len(),
            passed + failed.len(),
            failed.join("\n")
        );
    }
}

/// Calls functions with the same arguments as scenarios that are named after them:
/// `scenarios![(cluster); memory_is_limited, disk_is_limited]`.
#[macro_export]
macro_rules! scenarios {
    [$arguments:tt; $($name:path),+ $(,)?] => {{
        let mut scenarios = $crate::blocking::Scenarios::default();
        $(scenarios.run(stringify!($name), || $name $arguments);)+
        scenarios.finish();
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(_: &str) {}

    fn fails(reason: &str) {
        panic!("{reason}");
    }

    #[test]
    fn every_scenario_runs_and_failures_are_named() {
        let mut ran = 0;
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut scenarios = Scenarios::default();
            for name in ["one", "two", "three"] {
                scenarios.run(name, || {
                    ran += 1;
                    assert!(name == "two", "{name} is wrong");
                });
            }
            scenarios.finish();
        }));
        let text = outcome.expect_err("two fail").downcast_ref::<String>().cloned().expect("a text");
        assert_eq!(text, "2 of 3 scenarios failed:\none: one is wrong\nthree: three is wrong");
        assert_eq!(ran, 3);
    }

    #[test]
    fn macro_names_scenarios_after_functions() {
        scenarios![("x"); passes];
        let outcome = catch_unwind(|| scenarios![("no disk"); passes, fails]);
        let text = outcome.expect_err("one fails").downcast_ref::<String>().cloned().expect("a text");
        assert!(text.ends_with("fails: no disk"), "{text}");
    }

    #[test]
    #[should_panic(expected = "no scenario ran")]
    fn no_scenarios_is_a_failure() {
        Scenarios::default().finish();
    }
}
