//! Executes a target on mutated inputs and reports the first input that violates one of its properties.

use crate::memory;
use crate::mutate::{Random, mutate};
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// A decoder with its initial inputs and memory limit.
pub struct Target {
    pub name: &'static str,
    pub corpus: &'static [&'static [u8]],
    /// Tokens of its format.
    pub dictionary: &'static [&'static [u8]],
    /// Decodes an input; the result distinguishes outcomes, so that inputs with a new one are retained. Panics if a
    /// property of the decoder does not hold.
    pub run: fn(&[u8]) -> u64,
    /// Memory limit of one execution: a minimum, and a multiple of the input.
    pub floor: usize,
    pub factor: usize,
}

/// Result of a run.
#[derive(Debug)]
pub struct Report {
    pub executions: u64,
    /// Number of retained inputs.
    pub corpus: usize,
    pub most_memory: usize,
    pub slowest: Duration,
    pub slowest_input: Vec<u8>,
}

/// An input on which the target fails, and the reason.
#[derive(Debug, thiserror::Error)]
#[error("{target}: {reason}; input of {} bytes: {}", .input.len(), .input.escape_ascii())]
pub struct Failure {
    pub target: &'static str,
    pub reason: String,
    pub input: Vec<u8>,
}

/// Limit of retained inputs.
const MAX_CORPUS: usize = 1024;
/// Stack size of the threads that serve requests.
const STACK: usize = 2 << 20;

impl Target {
    /// Executes the target `executions` times, on a thread with the stack size of request threads.
    pub fn fuzz(&'static self, executions: u64, seed: u64) -> Result<Report, Failure> {
        let thread = std::thread::Builder::new().name(self.name.to_owned()).stack_size(STACK);
        let running = thread.spawn(move || self.run_all(executions, seed)).map_err(|error| Failure {
            target: self.name,
            reason: error.to_string(),
            input: Vec::new(),
        })?;
        running.join().unwrap_or_else(|_| {
            Err(Failure {
                target: self.name,
                reason: "the engine itself panicked".to_owned(),
                input: Vec::new(),
            })
        })
    }

    fn run_all(&self, executions: u64, seed: u64) -> Result<Report, Failure> {
        let mut random = Random::new(seed);
        let mut corpus: Vec<Vec<u8>> = self.corpus.iter().map(|input| input.to_vec()).collect();
        corpus.push(Vec::new());
        let mut report = Report {
            executions: 0,
            corpus: 0,
            most_memory: 0,
            slowest: Duration::ZERO,
            slowest_input: Vec::new(),
        };
        let mut outcomes = HashSet::new();
        // Lazily initialized data is not part of an execution.
        for input in &corpus {
            let _ = catch_unwind(AssertUnwindSafe(|| (self.run)(input)));
        }
        for index in 0..executions {
            let seeded = usize::try_from(index)
                .ok()
                .and_then(|index| corpus.get(index))
                .filter(|_| index < self.corpus.len() as u64);
            let input = match seeded {
                Some(input) => input.clone(),
                None => {
                    let mut input = corpus[random.below(corpus.len())].clone();
                    mutate(&mut input, &corpus, self.dictionary, &mut random);
                    input
                }
            };
            let outcome = self.execute(&input, &mut report)?;
            if outcomes.insert(outcome) && corpus.len() < MAX_CORPUS {
                corpus.push(input);
            }
            report.executions += 1;
        }
        report.corpus = corpus.len();
        Ok(report)
    }

    /// One execution, with all its checks.
    fn execute(&self, input: &[u8], report: &mut Report) -> Result<u64, Failure> {
        let fail = |reason: String| Failure { target: self.name, reason, input: input.to_vec() };
        let begin = Instant::now();
        let (outcome, memory) = memory::measured(|| catch_unwind(AssertUnwindSafe(|| (self.run)(input))));
        let took = begin.elapsed();
        if took > report.slowest {
            report.slowest = took;
            report.slowest_input = input.to_vec();
        }
        let outcome = outcome.map_err(|panic| {
            let text = panic.downcast_ref::<&str>().copied().map(str::to_owned);
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            fail(format!("panicked: {text}"))
        })?;
        report.most_memory = report.most_memory.max(memory);
        let most = self.floor + input.len() * self.factor;
        if memory > most {
            return Err(fail(format!("{memory} bytes allocated, at most {most} allowed")));
        }
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn target(name: &'static str, run: fn(&[u8]) -> u64) -> Target {
        Target { name, corpus: &[b"abcd"], dictionary: &[], run, floor: 4096, factor: 16 }
    }

    #[test]
    fn engine_reports_input_that_panics() {
        static PANICS: Target = target("panics", |input| {
            assert!(input.first() != Some(&b'!'), "found");
            u64::from(input.first().copied().unwrap_or(0))
        });
        let failure = PANICS.fuzz(1_000_000, 1).expect_err("it is found");
        assert_eq!(failure.input.first(), Some(&b'!'));
        assert!(failure.to_string().contains("panicked: found"), "{failure}");
    }

    #[test]
    fn engine_reports_input_that_exceeds_memory_limit() {
        static ALLOCATES: Target = target("allocates", |input| {
            let bytes = if input.len() > 20 { 1 << 20 } else { 0 };
            vec![0u8; bytes].len() as u64
        });
        let failure = ALLOCATES.fuzz(100_000, 1).expect_err("it is found");
        assert!(failure.reason.contains("bytes allocated"), "{failure}");
    }

    #[test]
    fn engine_retains_inputs_with_new_outcomes() {
        static LENGTHS: Target = target("lengths", |input| input.len() as u64);
        let report = LENGTHS.fuzz(10_000, 1).expect("nothing is wrong");
        assert_eq!(report.executions, 10_000);
        assert!(report.corpus > 100, "{}", report.corpus);
    }
}
