//! `ferry token`: bootstrap tokens of nodes.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use base::clock::Clock;
use base::version::user_agent;
use clap::{Args, Subcommand};
use cluster::{BootstrapToken, Client};
use serde_json::json;

use crate::cli::DataDir;
use crate::flags::parse_duration;
use crate::output::{self, OutputArgs};
use crate::serve::say;

#[derive(Args, Debug)]
pub struct TokenArgs {
    #[command(subcommand)]
    pub verb: TokenVerb,

    #[command(flatten)]
    pub data_dir: DataDir,

    /// Path to a kubeconfig file; by default the administrator's kubeconfig in the data directory.
    #[arg(long, value_name = "FILE", global = true)]
    pub kubeconfig: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum TokenVerb {
    /// Create a token and print it with the command that joins a node.
    Create {
        /// The duration before the token is automatically deleted (e.g. 1s, 2m, 3h). If set to 0s, the token will
        /// never expire.
        #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = parse_duration)]
        ttl: Duration,

        /// A human friendly description of how this token is used.
        #[arg(long, value_name = "TEXT", default_value = "created by ferry token create")]
        description: String,

        /// Print only the token.
        #[arg(long)]
        quiet: bool,
    },
    /// List tokens, without their secrets.
    List(OutputArgs),
    /// Delete tokens; nodes that have joined are not affected.
    Delete {
        /// IDs of the tokens: the parts before the dots.
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
}

pub async fn run(arguments: TokenArgs) -> Result<ExitCode> {
    let kubeconfig = arguments.kubeconfig.unwrap_or_else(|| arguments.data_dir.data_dir.join("kubeconfig"));
    let client = Client::connect(&kubeconfig, &user_agent("ferry-token"))
        .with_context(|| format!("failed to load {}", kubeconfig.display()))?;
    match arguments.verb {
        TokenVerb::Create { ttl, description, quiet } => {
            let token = BootstrapToken::random();
            let life = (!ttl.is_zero()).then_some(ttl);
            cluster::create_token(&client, &token, life, &description, Clock::system().now()).await?;
            if quiet {
                say(format_args!("{token}"));
                return Ok(ExitCode::SUCCESS);
            }
            let server = cluster::advertised_server(&client).await?;
            say(format_args!("{token}"));
            say(format_args!("Join a node:  ferry agent --server {server} --token {token}"));
        }
        TokenVerb::List(format) => {
            let tokens = cluster::list_tokens(&client).await?;
            let row = |token: &cluster::TokenInfo| {
                vec![
                    json!(token.id),
                    json!(token.expiration.as_deref().unwrap_or("never")),
                    json!(token.description),
                ]
            };
            let rows: Vec<_> = tokens.iter().map(row).collect();
            let columns = [("ID", "id"), ("EXPIRES", "expires"), ("DESCRIPTION", "description")];
            output::print(format.output, &columns, &rows)?;
        }
        TokenVerb::Delete { ids } => {
            for id in ids {
                let id = id.split('.').next().unwrap_or_default();
                cluster::delete_token(&client, id).await.with_context(|| format!("failed to delete {id}"))?;
                say(format_args!("Deleted {id}"));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
