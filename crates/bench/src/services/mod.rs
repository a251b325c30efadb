//! The benchmark of services: rules for many of them, one change among them, the first packet through them, and names.
//!
//! It runs in a separate network namespace, with the code that `ferry up` runs.

mod names;
mod packets;
mod rules;

use crate::ServicesArguments;
use crate::report;
use anyhow::{Context, Result, ensure};
use sys::process::{Namespace, unshare};

/// Runs the whole benchmark. Must be called before any thread is started.
pub fn run(arguments: &ServicesArguments) -> Result<()> {
    if let Some(address) = arguments.serve_names {
        return names::serve(address, arguments.services);
    }
    ensure!(rustix::process::geteuid().is_root(), "rules of the kernel need root");
    unshare(&[Namespace::Network]).context("failed to make a network namespace")?;
    let mut lines = rules::measure(arguments)?;
    lines.extend(packets::measure(arguments)?);
    lines.extend(names::measure(arguments)?);
    report::print(&lines);
    Ok(())
}
