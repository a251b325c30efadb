//! `ferry version`: version, commit, date and target of the build.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::json;

/// Version of Ferry and of the Kubernetes API that it serves.
pub const SHORT: &str = concat!(env!("CARGO_PKG_VERSION"), " (Kubernetes v1.36)");

const COMMIT: &str = env!("FERRY_COMMIT");
const COMMIT_DATE: &str = env!("FERRY_COMMIT_DATE");
const TARGET: &str = env!("FERRY_TARGET");

/// The build that `/version` reports.
pub const BUILD: base::version::BuildInfo = base::version::BuildInfo { commit: COMMIT, date: COMMIT_DATE };

#[derive(Args, Debug)]
pub struct VersionArgs {
    /// Output format.
    #[arg(short, long, value_name = "FORMAT")]
    pub output: Option<OutputFormat>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum OutputFormat {
    Json,
}

pub fn run(arguments: &VersionArgs) -> ExitCode {
    let known = |value: &'static str| if value.is_empty() { "unknown" } else { value };
    match arguments.output {
        Some(OutputFormat::Json) => println!(
            "{}",
            json!({
                "version": env!("CARGO_PKG_VERSION"),
                "kubernetesVersion": "v1.36",
                "gitCommit": COMMIT,
                "commitDate": COMMIT_DATE,
                "target": TARGET,
            })
        ),
        None => {
            println!("ferry {SHORT}");
            println!("commit: {}", known(COMMIT));
            println!("date: {}", known(COMMIT_DATE));
            println!("target: {}", known(TARGET));
        }
    }
    ExitCode::SUCCESS
}
