//! `ferry kubectl`, and links named `kubectl`.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use clap::Args;

use crate::up::DEFAULT_DATA_DIR;

#[derive(Args, Debug)]
pub struct KubectlArgs {
    /// The kubectl command with its arguments and flags.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "WORD")]
    pub words: Vec<OsString>,
}

/// Arguments after `kubectl`, if this is a kubectl command line.
pub fn words(line: impl IntoIterator<Item = OsString>) -> Option<Vec<OsString>> {
    let mut line = line.into_iter();
    let program = line.next()?;
    if Path::new(&program).file_name() == Some(OsStr::new("kubectl")) {
        return Some(line.collect());
    }
    (line.next()? == "kubectl").then(|| line.collect())
}

/// Runs a kubectl command on this thread. Without a kubeconfig, it uses the cluster of `ferry up`.
pub fn main(words: Vec<OsString>) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: failed to start the async runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let environment = cli::Environment::of_process(Some(Path::new(DEFAULT_DATA_DIR).join("kubeconfig")));
    let status = runtime.block_on(cli::run(words, environment, cli::Io::of_process()));
    // A thread blocked on standard input must not delay the exit.
    runtime.shutdown_background();
    ExitCode::from(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubectl_link_and_subcommand_are_recognized() {
        let found = |line: &str| words(line.split(' ').map(OsString::from)).map(|words| words.len());
        assert_eq!(found("/a/kubectl get pods"), Some(2));
        assert_eq!(found("kubectl"), Some(0));
        assert_eq!(found("ferry kubectl get --help"), Some(2));
        assert_eq!(found("ferry up"), None);
        assert_eq!(found("ferry"), None);
    }
}
