//! Scenarios that share a cluster or other costly setup: all of them run, and each prints a result of its own, which
//! the test runner counts and lists as `test::scenario`.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use futures_util::FutureExt;

/// Outcomes of the scenarios of one test.
#[derive(Debug, Default)]
pub struct Scenarios {
    passed: usize,
    failed: Vec<String>,
}

impl Scenarios {
    /// Runs a scenario and records a panic as its failure.
    pub fn run(&mut self, name: &str, scenario: impl FnOnce()) {
        self.check(name, || catch_unwind(AssertUnwindSafe(scenario)).map_err(|panic| message(&*panic)));
    }

    /// As [`Scenarios::run`], for asynchronous scenarios; an error is a failure as well.
    pub async fn run_async(&mut self, name: &str, scenario: impl Future<Output = anyhow::Result<()>>) {
        let begin = Instant::now();
        let outcome = match AssertUnwindSafe(scenario).catch_unwind().await {
            Ok(outcome) => outcome.map_err(|error| format!("{error:#}")),
            Err(panic) => Err(message(&*panic)),
        };
        self.record(name, begin.elapsed(), outcome);
    }

    /// Runs a scenario that returns its failure.
    pub fn check(&mut self, name: &str, scenario: impl FnOnce() -> Result<(), String>) {
        let begin = Instant::now();
        let outcome = scenario();
        self.record(name, begin.elapsed(), outcome);
    }

    /// Records the outcome of a scenario and prints it in the form of libtest.
    pub fn record(&mut self, name: &str, time: Duration, outcome: Result<(), String>) {
        let verdict = if outcome.is_ok() { "ok" } else { "FAILED" };
        // On a line of its own: with `--nocapture`, libtest has begun a line with the name of the test. The runner would
        // count the failures that the tests below expect.
        if cfg!(not(test)) {
            println!("\nscenario {name} ... {verdict} <{:.3}s>", time.as_secs_f64());
        }
        match outcome {
            Ok(()) => self.passed += 1,
            Err(reason) => {
                println!("{reason}");
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

/// Text of a panic.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

/// Calls functions with the same arguments as scenarios that are named after them:
/// `scenarios![(cluster); memory_is_limited, disk_is_limited]`.
#[macro_export]
macro_rules! scenarios {
    [$arguments:tt; $($name:path),+ $(,)?] => {{
        let mut scenarios = $crate::Scenarios::default();
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

    #[tokio::test]
    async fn async_errors_and_panics_are_failures() {
        let mut scenarios = Scenarios::default();
        scenarios.run_async("passes", async { Ok(()) }).await;
        scenarios.run_async("errs", async { anyhow::bail!("no disk") }).await;
        scenarios.run_async("panics", async { panic!("no memory") }).await;
        assert_eq!(scenarios.passed, 1);
        assert_eq!(scenarios.failed, ["errs: no disk", "panics: no memory"]);
    }

    #[test]
    #[should_panic(expected = "no scenario ran")]
    fn no_scenarios_is_a_failure() {
        Scenarios::default().finish();
    }
}
