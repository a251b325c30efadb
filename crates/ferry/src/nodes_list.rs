//! `ferry nodes`: the nodes of a cluster, as `kubectl get nodes -o wide` lists them.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::cli::DataDir;
use crate::kubectl;
use crate::output::{Format, OutputArgs};

#[derive(Args, Debug)]
pub struct NodesArgs {
    #[command(flatten)]
    pub data_dir: DataDir,

    /// Path to a kubeconfig file; by default the administrator's kubeconfig in the data directory.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    #[command(flatten)]
    pub output: OutputArgs,
}

pub fn run(arguments: NodesArgs) -> ExitCode {
    kubectl::main(words(arguments))
}

/// Arguments of the kubectl command.
fn words(arguments: NodesArgs) -> Vec<OsString> {
    let kubeconfig = arguments.kubeconfig.unwrap_or_else(|| arguments.data_dir.data_dir.join("kubeconfig"));
    let format = match arguments.output.output {
        None => "wide",
        Some(Format::Json) => "json",
        Some(Format::Yaml) => "yaml",
    };
    let flags = ["get", "nodes", "--output", format].map(OsString::from);
    [OsString::from("--kubeconfig"), kubeconfig.into_os_string()].into_iter().chain(flags).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_listed_by_kubectl() {
        let arguments = |output, kubeconfig: Option<&str>| NodesArgs {
            data_dir: DataDir { data_dir: "/d".into() },
            kubeconfig: kubeconfig.map(PathBuf::from),
            output: OutputArgs { output },
        };
        let line = |arguments| words(arguments).join(&OsString::from(" ")).into_string().expect("text");
        assert_eq!(line(arguments(None, None)), "--kubeconfig /d/kubeconfig get nodes --output wide");
        assert_eq!(line(arguments(Some(Format::Json), Some("k"))), "--kubeconfig k get nodes --output json");
    }
}
