//! Text that the runner prints: progress lines, failures, slowest tests, skipped tests, the summary.

use std::fmt::{Display, Formatter};
use std::time::Duration;

use super::event::{TestResult, Verdict};
use super::process::BinaryOutcome;

/// Number of slow tests shown.
const SLOWEST: usize = 10;

/// `1.2s`, `3m05s`.
pub fn seconds(time: Duration) -> String {
    match time.as_secs() {
        0..100 => format!("{:.1}s", time.as_secs_f64()),
        whole => format!("{}m{:02}s", whole / 60, whole % 60),
    }
}

/// Number of passed, failed and skipped tests.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counts {
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl Counts {
    fn of(outcome: &BinaryOutcome) -> Self {
        let mut counts = Self { skipped: usize::from(outcome.skipped.is_some()), ..Self::default() };
        for result in &outcome.results {
            match result.verdict {
                Verdict::Passed => counts.passed += 1,
                Verdict::Failed => counts.failed += 1,
                Verdict::Skipped(_) => counts.skipped += 1,
            }
        }
        // A crash counts as one failure, since the test that caused it has no result.
        counts.failed += usize::from(outcome.problem.is_some());
        counts
    }
}

impl Display for Counts {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)?;
        if self.skipped > 0 {
            write!(f, ", {} skipped", self.skipped)?;
        }
        Ok(())
    }
}

/// The line of a binary that has ended.
pub fn progress(position: usize, total: usize, outcome: &BinaryOutcome) -> String {
    let counts = Counts::of(outcome);
    let mark = if counts.failed > 0 { "FAILED" } else { "ok" };
    let label = &outcome.label;
    format!("[{position:>2}/{total}] {:>7} {mark:<6} {label}: {counts}", seconds(outcome.time))
}

/// The report after the last binary.
pub struct Report<'a> {
    outcomes: &'a [BinaryOutcome],
    counts: Counts,
}

impl<'a> Report<'a> {
    pub fn new(outcomes: &'a [BinaryOutcome]) -> Self {
        let counts = outcomes.iter().map(Counts::of).fold(Counts::default(), |sum, counts| Counts {
            passed: sum.passed + counts.passed,
            failed: sum.failed + counts.failed,
            skipped: sum.skipped + counts.skipped,
        });
        Self { outcomes, counts }
    }

    /// False when a test failed or none ran.
    pub fn is_success(&self) -> bool {
        self.counts.failed == 0 && self.counts.passed > 0
    }

    pub fn summary(&self) -> String {
        self.counts.to_string()
    }

    fn results(&self) -> impl Iterator<Item = (&'a str, &'a TestResult)> {
        self.outcomes
            .iter()
            .flat_map(|outcome| outcome.results.iter().map(|test| (outcome.label.as_str(), test)))
    }

    /// Skipped tests and parts of tests as (`binary test`, reason), sorted.
    fn skips(&self) -> Vec<(String, &'a str)> {
        let mut skips = Vec::new();
        for (label, test) in self.results() {
            if let Verdict::Skipped(reason) = &test.verdict {
                skips.push((format!("{label} {}", test.name), reason.as_str()));
            }
            let partly = test.partly_skipped.iter();
            skips.extend(partly.map(|reason| (format!("{label} {} (partly)", test.name), reason.as_str())));
        }
        for outcome in self.outcomes {
            skips.extend(outcome.skipped.iter().map(|reason| (outcome.label.clone(), reason.as_str())));
        }
        skips.sort();
        skips
    }

    /// `binary test: reason` of skips without an accepted reason.
    pub fn denied_skips(&self) -> Vec<String> {
        let skips = self.skips().into_iter().filter(|(_, reason)| !super::skips::is_accepted(reason));
        skips.map(|(test, reason)| format!("{test}: {reason}")).collect()
    }

    fn slowest(&self) -> Vec<(Duration, String)> {
        let mut timed: Vec<_> = self
            .results()
            .filter_map(|(label, test)| Some((test.time?, format!("{label} {}", test.name))))
            .collect();
        timed.sort_by_key(|(time, _)| std::cmp::Reverse(*time));
        timed.truncate(SLOWEST);
        timed
    }
}

impl Display for Report<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        for (label, test) in self.results().filter(|(_, test)| test.verdict == Verdict::Failed) {
            writeln!(f, "\n---- {label} {} ----\n{}", test.name, test.output.trim_end())?;
        }
        for outcome in self.outcomes {
            if let Some(problem) = &outcome.problem {
                writeln!(f, "\n---- {} ----\n{problem}", outcome.label)?;
            }
        }
        writeln!(f, "\nslowest tests:")?;
        for (time, name) in self.slowest() {
            writeln!(f, "  {:>7} {name}", seconds(time))?;
        }
        let skips = self.skips();
        if !skips.is_empty() {
            writeln!(f, "\nskipped:")?;
        }
        for (test, reason) in skips {
            writeln!(f, "  {test}: {reason}")?;
        }
        let mut failed: Vec<_> = self
            .results()
            .filter(|(_, test)| test.verdict == Verdict::Failed)
            .map(|(l, t)| format!("{l} {}", t.name))
            .collect();
        failed.extend(
            self.outcomes.iter().filter(|outcome| outcome.problem.is_some()).map(|o| o.label.clone()),
        );
        if !failed.is_empty() {
            writeln!(f, "\nfailed:")?;
        }
        for name in failed {
            writeln!(f, "  {name}")?;
        }
        writeln!(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(name: &str, verdict: Verdict, millis: u64) -> TestResult {
        let time = Some(Duration::from_millis(millis));
        TestResult {
            name: name.to_owned(),
            verdict,
            time,
            partly_skipped: Vec::new(),
            output: "text\n".to_owned(),
        }
    }

    fn outcome(label: &str, results: Vec<TestResult>, problem: Option<&str>) -> BinaryOutcome {
        let problem = problem.map(str::to_owned);
        BinaryOutcome {
            label: label.to_owned(),
            results,
            time: Duration::from_secs(125),
            problem,
            skipped: None,
        }
    }

    #[test]
    fn report_lists_failures_slowest_and_skipped() {
        let mut partly = result("p", Verdict::Passed, 1);
        partly.partly_skipped.push("no perl".to_owned());
        let outcomes = [
            outcome(
                "store",
                vec![result("a", Verdict::Passed, 500), result("b", Verdict::Failed, 1500)],
                None,
            ),
            outcome("ferry/up", vec![result("c", Verdict::Skipped("not root".to_owned()), 0), partly], None),
        ];
        let report = Report::new(&outcomes);
        let text = report.to_string();
        for part in [
            "---- store b ----\ntext\n",
            "slowest tests:\n     1.5s store b\n     0.5s store a\n",
            "skipped:\n  ferry/up c: not root\n  ferry/up p (partly): no perl\n",
            "failed:\n  store b\n",
        ] {
            assert!(text.contains(part), "{part:?} is missing: {text}");
        }
        assert_eq!(report.summary(), "2 passed, 1 failed, 1 skipped");
        assert!(!report.is_success());
        assert_eq!(progress(3, 47, &outcomes[0]), "[ 3/47]   2m05s FAILED store: 1 passed, 1 failed");
    }

    #[test]
    fn skips_are_denied_unless_the_kernel_lacks_a_feature() {
        let skipped = |name: &str, reason: &str| result(name, Verdict::Skipped(reason.to_owned()), 0);
        let mut partly = result("c", Verdict::Passed, 1);
        partly.partly_skipped.push("no perl".to_owned());
        let results =
            vec![skipped("a", "no etcd"), skipped("b", "IPVS is not available on this machine"), partly];
        let outcomes = [outcome("store", results, None)];
        let report = Report::new(&outcomes);
        assert_eq!(report.denied_skips(), ["store a: no etcd", "store c (partly): no perl"]);
    }

    #[test]
    fn run_without_passed_tests_is_no_success() {
        assert!(!Report::new(&[]).is_success());
        let skipped = outcome("store", vec![result("a", Verdict::Skipped("no etcd".to_owned()), 0)], None);
        assert!(!Report::new(&[skipped]).is_success());
    }

    #[test]
    fn crash_counts_as_failure() {
        let crashed = [outcome("store", vec![result("a", Verdict::Passed, 0)], Some("ended with signal: 6"))];
        let report = Report::new(&crashed);
        assert_eq!((report.summary().as_str(), report.is_success()), ("1 passed, 1 failed", false));
        assert!(report.to_string().contains("---- store ----\nended with signal: 6\n"));
    }
}
