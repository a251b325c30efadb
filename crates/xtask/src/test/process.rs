//! One test binary as a process: environment, captured output, time limit.

use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::build::Binary;
use super::event::{Parser, TestResult, Verdict};

/// Variable that lets the libtest of a stable compiler accept unstable options.
pub const BOOTSTRAP: &str = "RUSTC_BOOTSTRAP";
/// Options for JSON events with times; single arguments, which a binary with its own main function ignores.
const JSON: &[&str] = &["-Zunstable-options", "--format=json", "--report-time", "--show-output"];
/// Start of the line with which libtest rejects an option.
const REFUSAL: &str = "error: ";
/// Lines of output shown for a binary that crashed or ran into the limit.
const LAST_LINES: usize = 40;
/// Wait for the end of the output after the process has exited, if a grandchild keeps the pipe open.
const DRAIN: Duration = Duration::from_secs(5);

/// Outcome of one binary.
#[derive(Debug)]
pub struct BinaryOutcome {
    pub label: String,
    pub results: Vec<TestResult>,
    pub time: Duration,
    /// Description of a crash, a hang or a process that could not be started.
    pub problem: Option<String>,
    /// Reason of a binary that ran no test.
    pub skipped: Option<String>,
}

/// Runs a binary to its end or to `limit`.
pub fn run(binary: &Binary, limit: Duration, filter: Option<&str>) -> BinaryOutcome {
    let begin = Instant::now();
    let attempt = |json: &[&str]| execute(binary, json, limit, filter);
    let finished = match attempt(JSON) {
        Ok(finished) if finished.is_refusal() => attempt(&["--show-output"]),
        other => other,
    };
    let (results, problem, skipped) = match finished {
        Ok(finished) => {
            let problem = finished.problem(limit);
            let skipped = finished.parser.skipped.filter(|_| finished.parser.results.is_empty());
            (finished.parser.results, problem, skipped)
        }
        Err(error) => (Vec::new(), Some(format!("{error:#}")), None),
    };
    BinaryOutcome { label: binary.label.clone(), results, time: begin.elapsed(), problem, skipped }
}

/// A process that has ended, or was killed at the limit.
struct Finished {
    parser: Parser,
    /// Missing after a kill at the limit.
    status: Option<ExitStatus>,
}

impl Finished {
    fn is_refusal(&self) -> bool {
        self.status.is_some_and(|status| !status.success())
            && self.parser.results.is_empty()
            && self.parser.other.iter().any(|line| line.starts_with(REFUSAL))
    }

    /// Description of an exit that no failed test explains.
    fn problem(&self, limit: Duration) -> Option<String> {
        let failed = self.parser.results.iter().any(|test| test.verdict == Verdict::Failed);
        let cause = match self.status {
            None => format!("killed after the limit of {} s", limit.as_secs()),
            Some(status) if status.success() || failed && status.code().is_some() => return None,
            Some(status) => format!("ended with {status}"),
        };
        let mut text = cause;
        for name in &self.parser.running {
            text += &format!("\nstill running: {name}");
        }
        let lines = &self.parser.other;
        for line in &lines[lines.len().saturating_sub(LAST_LINES)..] {
            text += &format!("\n| {line}");
        }
        Some(text)
    }
}

fn execute(binary: &Binary, options: &[&str], limit: Duration, filter: Option<&str>) -> Result<Finished> {
    let mut child = Command::new(&binary.executable)
        .args(options)
        .args(filter)
        .current_dir(&binary.directory)
        // As cargo sets them.
        .env("CARGO_MANIFEST_DIR", &binary.directory)
        .env("CARGO_PKG_NAME", &binary.package)
        .env(BOOTSTRAP, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("failed to run {}", binary.executable.display()))?;
    let (sender, lines) = channel();
    for output in pipes(&mut child) {
        let sender = sender.clone();
        thread::spawn(move || forward(output, &sender));
    }
    drop(sender);
    let mut parser = Parser::default();
    let mut deadline = Instant::now() + limit;
    let mut status = None;
    loop {
        // Woken at least once a second, as a grandchild may hold the pipe after the binary's end.
        let pause = deadline.saturating_duration_since(Instant::now()).min(Duration::from_secs(1));
        match lines.recv_timeout(pause) {
            Ok(line) => parser.line(&line),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) if Instant::now() >= deadline => break,
            Err(RecvTimeoutError::Timeout) => {}
        }
        if status.is_none() {
            status = child.try_wait()?;
            if status.is_some() {
                deadline = Instant::now() + DRAIN;
            }
        }
    }
    while status.is_none() && Instant::now() < deadline {
        status = child.try_wait()?;
        thread::sleep(Duration::from_millis(10));
    }
    if status.is_none() {
        kill_tree(child.id());
        child.wait()?;
    }
    Ok(Finished { parser, status })
}

fn pipes(child: &mut Child) -> Vec<Box<dyn Read + Send>> {
    let mut pipes: Vec<Box<dyn Read + Send>> = Vec::new();
    pipes.extend(child.stdout.take().map(|pipe| Box::new(pipe) as _));
    pipes.extend(child.stderr.take().map(|pipe| Box::new(pipe) as _));
    pipes
}

/// Sends each line of `output`; invalid UTF-8 is replaced.
fn forward(output: Box<dyn Read + Send>, lines: &Sender<String>) {
    let mut reader = BufReader::new(output);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        if lines.send(text).is_err() {
            return;
        }
        line.clear();
    }
}

/// Kills a process and its descendants. They share the runner's process group, so that Ctrl-C reaches all of them;
/// therefore the descendants are found through their parents.
fn kill_tree(root: u32) {
    let tree = descendants(root, &parents());
    let ids: Vec<String> = tree.iter().map(u32::to_string).collect();
    // A shell built-in, unlike the program, which Debian has in a separate package. It fails for processes that have
    // exited in the meantime.
    let _ = Command::new("sh")
        .arg("-c")
        .arg(format!("kill -KILL {}", ids.join(" ")))
        .stderr(Stdio::null())
        .status();
}

/// All processes with their parents, from `/proc`.
fn parents() -> BTreeMap<u32, u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let id = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            // The command name is in parentheses and may contain any character.
            let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
            Some((id, parent))
        })
        .collect()
}

/// A process and its descendants, parents first.
fn descendants(root: u32, parents: &BTreeMap<u32, u32>) -> Vec<u32> {
    let mut found = vec![root];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(parents.iter().filter(|(_, of)| **of == parent).map(|(id, _)| *id));
        next += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    /// A shell script in place of a test binary, removed at the end.
    struct Script(PathBuf);

    impl Script {
        fn new(name: &str, text: &str) -> Self {
            let path = std::env::temp_dir().join(format!("ferry-xtask-{}-{name}", std::process::id()));
            fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("a script");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
            Self(path)
        }

        fn run(&self, limit: Duration) -> BinaryOutcome {
            let binary = Binary {
                label: "script".to_owned(),
                package: "script".to_owned(),
                directory: std::env::temp_dir(),
                executable: self.0.clone(),
            };
            run(&binary, limit, None)
        }
    }

    impl Drop for Script {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn binary_environment_is_that_of_cargo() {
        let script =
            Script::new("environment", "echo \"$CARGO_PKG_NAME $CARGO_MANIFEST_DIR $PWD $*\"; exit 1");
        let problem = script.run(LONG).problem.expect("a problem");
        let directory = std::env::temp_dir();
        let expected = format!("| script {0} {0} {1}", directory.display(), JSON.join(" "));
        assert!(problem.contains(&expected), "{problem}");
    }

    #[test]
    fn binary_that_refuses_json_runs_again_without() {
        let text = "[ $# = 4 ] && { echo 'error: the option `Z` is only accepted on the nightly compiler' >&2; exit 101; }\n\
                    echo 'test a ... ok'";
        let outcome = Script::new("refuses", text).run(LONG);
        assert_eq!((outcome.results.len(), outcome.problem), (1, None));
    }

    #[test]
    fn binary_that_crashes_is_problem_with_last_output() {
        let text = "echo '{ \"type\": \"test\", \"event\": \"started\", \"name\": \"a\" }'; echo oh no >&2; kill -ABRT $$";
        let problem = Script::new("crashes", text).run(LONG).problem.expect("a problem");
        assert!(problem.contains("still running: a") && problem.contains("| oh no"), "{problem}");
    }

    #[test]
    fn binary_with_failed_test_has_no_further_problem() {
        let outcome = Script::new("fails", "echo 'test a ... FAILED'; exit 101").run(LONG);
        assert_eq!((outcome.results.len(), outcome.problem), (1, None));
    }

    #[test]
    fn binary_beyond_limit_is_killed_with_its_children() {
        let script = Script::new("hangs", "echo before; sleep 1000 & echo $!; wait");
        let outcome = script.run(Duration::from_millis(500));
        let problem = outcome.problem.expect("a problem");
        assert!(problem.contains("killed after the limit") && problem.contains("| before"), "{problem}");
        let child: u32 = problem.lines().last().and_then(|line| line[2..].parse().ok()).expect("an id");
        let gone = |_: &u32| {
            !fs::read_to_string(format!("/proc/{child}/cmdline")).is_ok_and(|text| !text.is_empty())
        };
        assert!(
            (0..500).any(|n| {
                thread::sleep(Duration::from_millis(10));
                gone(&n)
            }),
            "{child} is alive"
        );
    }

    #[test]
    fn descendants_include_grandchildren() {
        let parents = BTreeMap::from([(2, 1), (3, 2), (4, 3), (5, 1)]);
        assert_eq!(descendants(2, &parents), [2, 3, 4]);
    }
}
