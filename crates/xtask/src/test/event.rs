//! Output of test binaries: libtest's JSON events, or its plain lines if JSON is not supported or the binary has its
//! own main function.

use serde_json::Value;
use std::collections::BTreeSet;
use std::time::Duration;

/// Prefix of the line that a test prints when it cannot run here.
const SKIPPED: &str = "skipped: ";
/// Prefix of the line that a test prints when it omits a part of itself.
const PARTLY_SKIPPED: &str = "partly skipped: ";
/// Prefix of the line of a scenario: a part of a test with a result of its own (`testbase::Scenarios`).
const SCENARIO: &str = "scenario ";
/// Start of the `#[ignore]` reason of tests that another test executes.
const BY_SIBLING: &str = "started by its sibling";

/// Result of one test.
#[derive(Clone, Debug, PartialEq)]
pub struct TestResult {
    pub name: String,
    pub verdict: Verdict,
    /// Missing where the binary does not report times.
    pub time: Option<Duration>,
    /// Reasons of omitted parts.
    pub partly_skipped: Vec<String>,
    pub output: String,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    Passed,
    Failed,
    Skipped(String),
}

/// Accumulates the results of one binary, line by line.
#[derive(Debug, Default)]
pub struct Parser {
    pub results: Vec<TestResult>,
    /// Tests that were started and have not ended.
    pub running: BTreeSet<String>,
    /// Lines that belong to no test: panics outside of tests, output of child processes.
    pub other: Vec<String>,
    /// Lines since the last plain result.
    pending: Vec<String>,
    /// A `skipped:` line of a binary without tests.
    pub skipped: Option<String>,
}

impl Parser {
    pub fn line(&mut self, line: &str) {
        if let Some((before, event)) = json(line) {
            if !before.is_empty() {
                self.other.push(before.to_owned());
            }
            self.event(&event);
        } else if let Some((name, verdict, time)) = plain(line) {
            let output = std::mem::take(&mut self.pending).join("\n");
            self.end(name.to_owned(), verdict, time, output);
        } else {
            if let Some(reason) = line.strip_prefix(SKIPPED) {
                self.skipped = Some(reason.to_owned());
            }
            self.other.push(line.to_owned());
            self.pending.push(line.to_owned());
        }
    }

    fn event(&mut self, event: &Value) {
        let (Some("test"), Some(name)) = (event["type"].as_str(), event["name"].as_str()) else { return };
        let verdict = match event["event"].as_str() {
            Some("started") => {
                self.running.insert(name.to_owned());
                return;
            }
            Some("ok") => Verdict::Passed,
            Some("failed") => Verdict::Failed,
            Some("ignored") => Verdict::Skipped(event["message"].as_str().unwrap_or("ignored").to_owned()),
            _ => return,
        };
        let time = event["exec_time"].as_f64().map(Duration::from_secs_f64);
        let output = [&event["stdout"], &event["message"]].into_iter().filter_map(Value::as_str);
        self.end(name.to_owned(), verdict, time, output.collect::<Vec<_>>().join("\n"));
    }

    fn end(&mut self, name: String, verdict: Verdict, time: Option<Duration>, output: String) {
        self.running.remove(&name);
        let lines = || output.lines().map(str::trim_start);
        let verdict = match (verdict, lines().find_map(|line| line.strip_prefix(SKIPPED))) {
            (Verdict::Skipped(reason), _) if reason.starts_with(BY_SIBLING) => return,
            (Verdict::Passed, Some(reason)) => Verdict::Skipped(reason.to_owned()),
            (verdict, _) => verdict,
        };
        let partly_skipped =
            lines().filter_map(|line| line.strip_prefix(PARTLY_SKIPPED)).map(str::to_owned).collect();
        let scenarios: Vec<_> = lines().filter_map(|line| scenario(&name, line)).collect();
        self.results.push(TestResult { name, verdict, time, partly_skipped, output });
        self.results.extend(scenarios);
    }
}

/// A JSON event, and output of a child process before it on the same line.
fn json(line: &str) -> Option<(&str, Value)> {
    let (before, event) = line.split_at(line.find("{ \"type\": ")?);
    serde_json::from_str(event).ok().map(|event| (before, event))
}

/// `test NAME ... ok <1.5s>`; the time is optional.
fn plain(line: &str) -> Option<(&str, Verdict, Option<Duration>)> {
    named_outcome(line.strip_prefix("test ")?)
}

/// Result of a `scenario NAME ... ok <1.5s>` line in the output of a test, which has the details of a failure.
fn scenario(test: &str, line: &str) -> Option<TestResult> {
    let (name, verdict, time) = named_outcome(line.strip_prefix(SCENARIO)?)?;
    let output = match verdict {
        Verdict::Failed => format!("see the output of {test}"),
        _ => String::new(),
    };
    Some(TestResult { name: format!("{test}::{name}"), verdict, time, partly_skipped: Vec::new(), output })
}

fn named_outcome(text: &str) -> Option<(&str, Verdict, Option<Duration>)> {
    let (name, outcome) = text.split_once(" ... ")?;
    let (outcome, time) = match outcome.split_once(" <") {
        Some((outcome, time)) => (outcome, time.strip_suffix("s>").and_then(|time| time.parse().ok())),
        None => (outcome, None),
    };
    let verdict = match outcome
        .split_once([',', ':'])
        .map_or((outcome, ""), |(verdict_text, more)| (verdict_text, more))
    {
        ("ok", _) => Verdict::Passed,
        ("FAILED", _) => Verdict::Failed,
        ("ignored", reason) => Verdict::Skipped(reason.trim().to_owned()),
        _ => return None,
    };
    Some((name.trim_end_matches(" - should panic"), verdict, time.map(Duration::from_secs_f64)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(lines: &[&str]) -> Parser {
        let mut parser = Parser::default();
        lines.iter().for_each(|line| parser.line(line));
        parser
    }

    fn result(name: &str, verdict: Verdict, millis: Option<u64>, output: &str) -> TestResult {
        let time = millis.map(Duration::from_millis);
        TestResult {
            name: name.to_owned(),
            verdict,
            time,
            partly_skipped: Vec::new(),
            output: output.to_owned(),
        }
    }

    #[test]
    fn json_events_are_results_with_times_and_output() {
        let parser = parse(&[
            r#"{ "type": "suite", "event": "started", "test_count": 4 }"#,
            r#"{ "type": "test", "event": "started", "name": "a" }"#,
            r#"{ "type": "test", "event": "started", "name": "hangs" }"#,
            r#"{ "type": "test", "name": "a", "event": "ok", "exec_time": 1.5 }"#,
            r#"{ "type": "test", "name": "b", "event": "failed", "exec_time": 0.25, "stdout": "panicked\n" }"#,
            r#"{ "type": "test", "name": "c", "event": "ok", "exec_time": 0.0, "stdout": "skipped: no etcd\n" }"#,
            r#"{ "type": "test", "name": "d", "event": "ignored", "message": "started by its sibling" }"#,
            r#"{ "type": "test", "name": "e", "event": "ignored", "message": "too slow" }"#,
            "a line of a child process",
            r#"no line end{ "type": "test", "name": "f", "event": "ok", "exec_time": 0.0 }"#,
        ]);
        let expected = [
            result("a", Verdict::Passed, Some(1500), ""),
            result("b", Verdict::Failed, Some(250), "panicked\n"),
            result("c", Verdict::Skipped("no etcd".to_owned()), Some(0), "skipped: no etcd\n"),
            result("e", Verdict::Skipped("too slow".to_owned()), None, "too slow"),
            result("f", Verdict::Passed, Some(0), ""),
        ];
        assert_eq!(parser.results, expected);
        assert_eq!(parser.running, BTreeSet::from(["hangs".to_owned()]));
        assert_eq!(parser.other, ["a line of a child process", "no line end"]);
    }

    #[test]
    fn plain_lines_are_results() {
        let parser = parse(&[
            "running 4 tests",
            "test a ... ok <1.5s>",
            "skipped: no tc here",
            "test b ... ok",
            "test c - should panic ... ok",
            "test d ... FAILED: it took longer",
            "test e ... ignored, started by its sibling",
            "test f ... ignored",
            "test result: ok. 2 passed; 1 failed",
        ]);
        let verdicts: Vec<_> =
            parser.results.iter().map(|test| (test.name.as_str(), &test.verdict)).collect();
        let skipped = Verdict::Skipped("no tc here".to_owned());
        let ignored = Verdict::Skipped(String::new());
        let expected = [
            ("a", &Verdict::Passed),
            ("b", &skipped),
            ("c", &Verdict::Passed),
            ("d", &Verdict::Failed),
            ("f", &ignored),
        ];
        assert_eq!(verdicts, expected);
        assert_eq!(parser.results[0].time, Some(Duration::from_millis(1500)));
    }

    #[test]
    fn partly_skipped_test_passes_with_reason() {
        let parser = parse(&["partly skipped: no perl", "test a ... ok"]);
        assert_eq!(parser.results[0].verdict, Verdict::Passed);
        assert_eq!(parser.results[0].partly_skipped, ["no perl"]);
    }

    #[test]
    fn scenarios_in_output_of_test_are_results() {
        let parser = parse(&[
            "",
            "scenario disk_is_limited ... ok <2.5s>",
            "scenario memory_is_limited ... FAILED <0.001s>",
            "no such cgroup",
            "scenario without an outcome",
            "test pods ... FAILED",
        ]);
        let results: Vec<_> =
            parser.results.iter().map(|test| (test.name.as_str(), &test.verdict, test.time)).collect();
        let expected = [
            ("pods", &Verdict::Failed, None),
            ("pods::disk_is_limited", &Verdict::Passed, Some(Duration::from_millis(2500))),
            ("pods::memory_is_limited", &Verdict::Failed, Some(Duration::from_millis(1))),
        ];
        assert_eq!(results, expected);
        assert_eq!(parser.results[2].output, "see the output of pods");
    }

    #[test]
    fn failed_test_stays_failed_after_skipped_line() {
        let parser = parse(&["skipped: no etcd", "test a ... FAILED"]);
        assert_eq!(parser.results[0].verdict, Verdict::Failed);
    }
}
