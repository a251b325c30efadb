//! Test runner of the workspace: one cargo build, then all test binaries concurrently.
//!
//! Shows progress per binary, and at the end the output of failed tests, the slowest tests, every skipped test with its
//! reason and one summary line. `docs/testing.md` is its manual.

pub mod build;
mod event;
mod process;
mod report;
mod schedule;
mod skips;
mod suite;

use anyhow::{Result, bail};
use std::path::Path;
use std::time::{Duration, Instant};

use report::Report;

/// Time limit per test binary. The slowest takes minutes on a busy machine.
const LIMIT: Duration = Duration::from_secs(1200);

const USAGE: &str = "xtask test [--fast] [--binary NAME] [--jobs N] [--prune] [--deny-skips] [FILTER]";

/// Command-line options.
#[derive(Debug, Default, PartialEq)]
struct Options {
    /// Excludes the binaries that the suite table marks as full.
    fast: bool,
    /// Part of a binary's label, such as `store/` or `ferry/up`.
    binary: Option<String>,
    /// Number of concurrent binaries; by default one per core, at least two.
    jobs: Option<usize>,
    /// Removes the test executables of earlier builds.
    prune: bool,
    /// Fails if a test was skipped for a reason other than the accepted ones.
    deny_skips: bool,
    /// Part of the names of the tests to run.
    filter: Option<String>,
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Self> {
        let mut options = Self::default();
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            match argument.as_str() {
                "--fast" => options.fast = true,
                "--prune" => options.prune = true,
                "--deny-skips" => options.deny_skips = true,
                "--binary" | "--jobs" => {
                    let Some(value) = rest.next() else { bail!("{argument} needs a value; usage: {USAGE}") };
                    match argument.as_str() {
                        "--jobs" => options.jobs = Some(value.parse()?),
                        _ => options.binary = Some(value.clone()),
                    }
                }
                flag if flag.starts_with('-') => bail!("unknown flag {flag}; usage: {USAGE}"),
                _ if options.filter.is_some() => bail!("more than one filter; usage: {USAGE}"),
                filter => options.filter = Some(filter.to_owned()),
            }
        }
        Ok(options)
    }

    /// True when the run covers every binary of the workspace.
    fn is_full(&self) -> bool {
        !self.fast && self.binary.is_none() && self.filter.is_none()
    }
}

/// Builds and runs the tests. Exits with status 1 when a test fails, a binary crashes, no test ran or a skip is denied.
pub fn run(root: &Path, arguments: &[String]) -> Result<()> {
    let options = Options::parse(arguments)?;
    let root = root.canonicalize()?;
    let begin = Instant::now();
    let built = build::build(&root)?;
    if options.prune {
        build::prune(&built)?;
    }
    if options.is_full() {
        suite::check(&built)?;
    }
    let chosen: Vec<_> = built
        .into_iter()
        .filter(|binary| !options.fast || suite::is_fast(&binary.label))
        .filter(|binary| options.binary.as_ref().is_none_or(|part| binary.label.contains(part)))
        .collect();
    println!("built {} test binaries in {}", chosen.len(), report::seconds(begin.elapsed()));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = options.jobs.unwrap_or(cores).max(2);
    let begin = Instant::now();
    let outcomes = schedule::run(chosen, jobs, LIMIT, options.filter.as_deref());
    let report = Report::new(&outcomes);
    print!("{report}");
    let denied = if options.deny_skips { report.denied_skips() } else { Vec::new() };
    if !denied.is_empty() {
        println!("skipped without an accepted reason, which is a failure here:");
        denied.iter().for_each(|line| println!("  {line}"));
    }
    println!("ran for {} with {jobs} jobs", report::seconds(begin.elapsed()));
    println!("{}", report.summary());
    if !report.is_success() || !denied.is_empty() {
        // An error would add lines after the summary, which has to be the last one.
        std::process::exit(1);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Options> {
        Options::parse(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_flags_and_filter_are_parsed() {
        let all = parse("--fast --binary store/ --jobs 3 --prune --deny-skips watch").expect("valid");
        let expected = Options {
            fast: true,
            binary: Some("store/".to_owned()),
            jobs: Some(3),
            prune: true,
            deny_skips: true,
            filter: Some("watch".to_owned()),
        };
        assert_eq!(all, expected);
        assert!(!all.is_full() && parse("--prune").expect("valid").is_full());
    }

    #[test]
    fn options_invalid_arguments_are_rejected() {
        for text in ["--slow", "--jobs", "--jobs many", "one two"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
