//! Runs targets for longer: `fuzz TARGET|all [--executions N] [--seed S]`. Without a target it lists them.

use anyhow::{Context, Result, bail};
use fuzz::targets::TARGETS;
use std::time::Instant;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |flag: &str, default: u64| match arguments.iter().position(|argument| argument == flag) {
        None => Ok(default),
        Some(at) => {
            let text = arguments.get(at + 1).with_context(|| format!("{flag} needs a number"))?;
            text.parse().with_context(|| format!("{flag} {text}"))
        }
    };
    let (executions, seed) = (value("--executions", 1_000_000)?, value("--seed", 1)?);
    let wanted = arguments.first().map(String::as_str).unwrap_or_default();
    let chosen: Vec<_> = TARGETS.iter().filter(|target| wanted == "all" || target.name == wanted).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        bail!("name one of these targets, or all: {}", names.join(" "));
    }
    // A panic is a finding and is printed with its input.
    std::panic::set_hook(Box::new(|_| {}));
    for target in chosen {
        let begin = Instant::now();
        let report = target.fuzz(executions, seed)?;
        println!(
            "{}\t{} executions in {:.1} s, {} inputs kept, at most {} bytes and {:?} for one input of {} bytes",
            target.name,
            report.executions,
            begin.elapsed().as_secs_f64(),
            report.corpus,
            report.most_memory,
            report.slowest,
            report.slowest_input.len(),
        );
    }
    Ok(())
}
