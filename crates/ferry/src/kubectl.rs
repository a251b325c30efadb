//! `ferry kubectl`, and links named `kubectl`.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use clap::Args;

use crate::up::DEFAULT_DATA_DIR;

#[derive(Args, Debug)]
pub struct KubectlArgs {
    /// The verb, its arguments and its flags.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "WORD")]
    pub words: Vec<OsString>,
}

/// The words after `kubectl`, if a command line is one of kubectl.
pub fn words(line: impl IntoIterator<Item = OsString>) -> Option<Vec<OsString>> {
    let mut line = line.into_iter();
    let program = line.next()?;
    if Path::new(&program).file_name() == Some(OsStr::new("kubectl")) {
        return Some(line.collect());
    }
    (line.next()? == "kubectl").then(|| line.collect())
}

/// Runs a command of kubectl on this thread. Without a kubeconfig, it is for the cluster of `ferry up`.
pub fn main(words: Vec<OsString>) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: starting the async runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let environment = cli::Environment::of_process(Some(Path::new(DEFAULT_DATA_DIR).join("kubeconfig")));
    let status = runtime.block_on(cli::run(words, environment, cli::Io::of_process()));
    // A thread that reads standard input must not keep the process from ending.
    runtime.shutdown_background();
    ExitCode::from(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_the_command_are_kubectl() {
        let found = |line: &str| words(line.split(' ').map(OsString::from)).map(|words| words.len());
        assert_eq!(found("/a/kubectl get pods"), Some(2));
        assert_eq!(found("kubectl"), Some(0));
        assert_eq!(found("ferry kubectl get --help"), Some(2));
        assert_eq!(found("ferry up"), None);
        assert_eq!(found("ferry"), None);
    }
}
