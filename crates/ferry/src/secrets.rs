//! `ferry secrets`: keys of encryption at rest.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::cli::DataDir;
use crate::on_runtime;

#[derive(Debug, Subcommand)]
pub enum SecretsCommand {
    /// Rewrite all objects of a resource, so that they are encrypted with the current key. The server must be
    /// running.
    Reencrypt(ReencryptArgs),
    /// Add a new key to the cluster's own encryption configuration; it encrypts new writes, older keys remain for
    /// reading.
    RotateKey(RotateKeyArgs),
}

#[derive(Args, Debug)]
pub struct ReencryptArgs {
    #[command(flatten)]
    pub data_dir: DataDir,

    /// Path to a kubeconfig file; by default the administrator's kubeconfig in the data directory.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Resources to rewrite, such as `secrets` or `ingresses.networking.k8s.io`.
    #[arg(value_name = "RESOURCE", default_value = "secrets")]
    pub resources: Vec<String>,
}

#[derive(Args, Debug)]
pub struct RotateKeyArgs {
    #[command(flatten)]
    pub data_dir: DataDir,

    /// Encryption configuration to add the key to; by default the cluster's own.
    #[arg(long, value_name = "FILE")]
    pub encryption_provider_config: Option<PathBuf>,
}

pub fn run(command: SecretsCommand) -> Result<ExitCode> {
    match command {
        SecretsCommand::Reencrypt(arguments) => on_runtime(reencrypt(arguments)),
        SecretsCommand::RotateKey(arguments) => rotate_key(&arguments),
    }
}

async fn reencrypt(arguments: ReencryptArgs) -> Result<ExitCode> {
    let own = arguments.data_dir.data_dir.join("kubeconfig");
    let kubeconfig = arguments.kubeconfig.unwrap_or(own);
    for done in cluster::reencrypt(&kubeconfig, &arguments.resources).await? {
        println!("{}: {} written", done.resource, done.objects);
        if done.overtaken > 0 {
            println!("{}: {} updated by other clients meanwhile", done.resource, done.overtaken);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn rotate_key(arguments: &RotateKeyArgs) -> Result<ExitCode> {
    let own = cluster::default_encryption_file(&arguments.data_dir.data_dir);
    let file = arguments.encryption_provider_config.as_ref().unwrap_or(&own);
    let name = cluster::add_key(file)?;
    println!(
        "Added {name} to {}; it encrypts writes as soon as the server has reloaded the file.",
        file.display()
    );
    println!("Next: `ferry secrets reencrypt`; then older keys may be removed from the file.");
    Ok(ExitCode::SUCCESS)
}
