//! kubectl: the command line client of the API.
//!
//! [`run`] parses a command line by the table in [`verbs`], connects when a verb needs the server ([`session`]), and
//! prints through [`printer`]. Messages, layouts and exit codes are those of Kubernetes' kubectl.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod arguments;
mod error;
mod flags;
mod io;
mod manifest;
mod openapi;
mod patches;
mod pods;
mod printer;
mod resource;
mod session;
mod verbs;
mod writes;

use std::ffi::OsString;
use std::path::PathBuf;

pub use io::{Buffer, Io};

use error::CliError;

/// Surroundings of a command that are not on its command line.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// Value of `KUBECONFIG`: a list of files.
    pub kubeconfig: Option<OsString>,
    /// The user's home directory.
    pub home: Option<PathBuf>,
    /// Kubeconfig to use if no other exists.
    pub fallback: Option<PathBuf>,
}

impl Environment {
    /// The environment of this process.
    #[must_use]
    pub fn of_process(fallback: Option<PathBuf>) -> Self {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        Self { kubeconfig: set("KUBECONFIG"), home: set("HOME").map(PathBuf::from), fallback }
    }
}

/// Runs a command line without the program's name, and returns its exit status.
pub async fn run(operands: Vec<OsString>, environment: Environment, mut io: Io) -> u8 {
    let operands = operands.into_iter().map(|operand| operand.to_string_lossy().into_owned()).collect();
    let Err(error) = verbs::run(operands, environment, &io).await else { return 0 };
    let text = error.to_text();
    if !text.is_empty() {
        let target = if matches!(error, CliError::Help(_)) { &mut io.out } else { &mut io.err };
        target.line(text.trim_end_matches('\n'));
    }
    error.exit_status()
}
