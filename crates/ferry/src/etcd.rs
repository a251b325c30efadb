//! `ferry etcd`: the embedded store behind etcd's v3 API, for API servers that expect an etcd.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use base::tasks::TaskGroup;
use clap::Args;
use tokio::net::TcpListener;

use crate::serve::{say, stop_on_signal};

#[derive(Args, Debug)]
pub struct EtcdArgs {
    /// Path to the data directory.
    #[arg(long, value_name = "DIR", default_value = "default.etcd")]
    pub data_dir: PathBuf,

    /// URLs to listen on for client traffic: plain HTTP without authentication, hence loopback addresses only.
    #[arg(long, value_name = "URL[,URL]", value_delimiter = ',', default_value = "http://localhost:2379")]
    pub listen_client_urls: Vec<String>,

    /// Raise alarms when the size of the store exceeds the given quota; 0 means the default.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub quota_backend_bytes: u64,
}

/// `host:port` of a client URL.
fn authority(url: &str) -> Result<&str> {
    match url.split_once("://") {
        Some(("http", authority)) => Ok(authority.trim_end_matches('/')),
        Some(("https", _)) => {
            bail!("--listen-client-urls: {url}: TLS is not supported; use http on a loopback address")
        }
        _ => bail!("--listen-client-urls: {url}: not a URL such as http://127.0.0.1:2379"),
    }
}

/// Rejects addresses that other machines can reach: every client could read and write all objects.
fn ensure_loopback(address: SocketAddr) -> Result<()> {
    ensure!(
        address.ip().is_loopback(),
        "--listen-client-urls: {address} is not a loopback address; clients are not authenticated, so use 127.0.0.1 or ::1"
    );
    Ok(())
}

pub async fn run(arguments: EtcdArgs) -> Result<ExitCode> {
    let tasks = TaskGroup::new();
    stop_on_signal(&tasks)?;
    let mut listeners = Vec::new();
    for url in &arguments.listen_client_urls {
        let authority = authority(url)?;
        let listener =
            TcpListener::bind(authority).await.with_context(|| format!("failed to listen on {authority}"))?;
        let address = listener.local_addr()?;
        ensure_loopback(address)?;
        say(format_args!("Serving etcd's API at http://{address}"));
        listeners.push(listener);
    }
    cluster::serve_store(&arguments.data_dir, arguments.quota_backend_bytes, listeners, &tasks).await?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn non_loopback_listen_address_is_rejected() {
        for (address, accepted) in [
            ("127.0.0.1:1", true),
            ("[::1]:1", true),
            ("0.0.0.0:1", false),
            ("10.0.0.1:1", false),
            ("[::]:1", false),
        ] {
            let outcome = ensure_loopback(address.parse().expect("an address"));
            assert_eq!(outcome.is_ok(), accepted, "{address}: {outcome:?}");
        }
    }

    #[test]
    fn client_url_requires_plain_http() {
        assert_eq!(authority("http://127.0.0.1:2379/").expect("an address"), "127.0.0.1:2379");
        for (url, want) in [("https://127.0.0.1:2379", "TLS"), ("127.0.0.1:2379", "not a URL")] {
            let error = authority(url).expect_err(url).to_string();
            assert!(error.contains(want), "{error}");
        }
    }
}
