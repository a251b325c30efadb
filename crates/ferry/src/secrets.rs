//! `ferry secrets`: keys of encryption at rest.

use std::process::ExitCode;

use anyhow::Result;

use crate::cli::{ReencryptArgs, RotateKeyArgs, SecretsCommand};
use crate::on_runtime;

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
