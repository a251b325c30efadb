//! Joins a node to a cluster: with a bootstrap token it discovers the certificate authority and gets its own
//! certificate, which it uses from then on; the token is not needed again.

pub(crate) mod bootstrap;
mod certificate;
pub(crate) mod credential;
mod discover;
mod token;

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::clock::Clock;
use base::file::{self, PRIVATE, PUBLIC};
use base::tasks::TaskGroup;
use base::version::user_agent;
use client::{Client, ClientError, KubeconfigError};
use kubelet::CertificateStatus;
use machinery::kubeconfig::{self, ClusterEntry, Material, UserEntry};

use credential::Credential;
pub use token::{
    BootstrapToken, TokenError, TokenInfo, advertised_server, create as create_token, delete as delete_token,
    list as list_tokens,
};

/// Failure to join.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error("failed to write {}", .path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error("failed to read {}", .path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("a token is required: this node has no certificate yet")]
    NoToken,
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error("{0:?} is not the URL of an API server, such as https://10.0.0.1:6443")]
    Server(String),
    #[error("failed to get cluster-info from {server}")]
    Discover { server: String, source: discover::DiscoverError },
    #[error("failed to load the generated kubeconfig")]
    Kubeconfig(#[source] KubeconfigError),
    #[error("failed to generate a private key")]
    Key(#[source] rcgen::Error),
    #[error("failed to request a certificate")]
    Request(#[source] ClientError),
    #[error("the certificate signing request was denied: {0}")]
    Refused(String),
    #[error("the certificate signing request was not signed within {0:?}")]
    Unsigned(Duration),
    #[error("the issued certificate is invalid: {0}")]
    Certificate(String),
}

/// Cluster to join, and node name.
#[derive(Clone, Debug)]
pub struct Join {
    /// URL of the API server.
    pub server: String,
    /// Required until the node has its certificate.
    pub token: Option<String>,
    /// Certificate authority of the API server; discovered with the token if absent.
    pub authority: Option<PathBuf>,
    /// Directory of the node's credentials.
    pub directory: PathBuf,
    pub node: String,
    pub clock: Clock,
}

impl Join {
    fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn credential(&self) -> Credential {
        let (node, clock) = (self.node.clone(), self.clock.clone());
        Credential { file: self.file("client.pem"), node, names: None, clock }
    }

    /// Kubeconfig of the node's own user, created with a token if missing.
    pub async fn kubeconfig(&self) -> Result<PathBuf, JoinError> {
        let kubeconfig = self.file("kubeconfig");
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.directory)
            .map_err(|source| JoinError::Write { path: self.directory.clone(), source })?;
        if self.credential().load().is_none() {
            self.bootstrap().await?;
        }
        let file = || Material::File("client.pem".into());
        let user = UserEntry { certificate: Some((file(), file())), ..UserEntry::default() };
        write(&kubeconfig, &render(&self.server, &user), PRIVATE)?;
        Ok(kubeconfig)
    }

    async fn bootstrap(&self) -> Result<(), JoinError> {
        let token = BootstrapToken::parse(self.token.as_deref().ok_or(JoinError::NoToken)?)?;
        let authority = match &self.authority {
            Some(path) => std::fs::read_to_string(path)
                .map_err(|source| JoinError::Read { path: path.clone(), source })?,
            None => discover::authority(&self.server, &token)
                .await
                .map_err(|source| JoinError::Discover { server: self.server.clone(), source })?,
        };
        write(&self.file("ca.crt"), &authority, PUBLIC)?;
        let bootstrap = self.file("bootstrap-kubeconfig");
        let user = UserEntry { token: Some(Material::Text(token.to_string())), ..UserEntry::default() };
        write(&bootstrap, &render(&self.server, &user), PRIVATE)?;
        let client = Client::connect(&bootstrap, &user_agent("ferry-agent")).map_err(JoinError::Request)?;
        let outcome = self.credential().renew(&client).await;
        // The old content is outdated or invalid.
        let _ = std::fs::remove_file(&bootstrap);
        outcome.map(drop)
    }

    /// Renews the certificate before it expires, until `tasks` stop, and reports its state. Later connections use the
    /// new one.
    pub fn keep_fresh(self, client: Client, tasks: &TaskGroup, status: CertificateStatus) {
        self.credential().keep_client_fresh(client, tasks, status);
    }
}

fn write(path: &Path, text: &str, mode: u32) -> Result<(), JoinError> {
    file::replace(path, text.as_bytes(), mode)
        .map_err(|source| JoinError::Write { path: path.to_owned(), source })
}

/// Kubeconfig next to the authority's certificate.
fn render(server: &str, user: &UserEntry) -> String {
    let authority = Some(Material::File("ca.crt".into()));
    let cluster = ClusterEntry { server: server.to_owned(), authority, ..ClusterEntry::default() };
    kubeconfig::render("ferry", "node", &cluster, user)
}
