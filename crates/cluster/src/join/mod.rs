//! How a node joins a cluster: with a bootstrap token it learns whom to trust and gets a certificate of its own, as
//! which it acts from then on; the token is not needed again.

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
use client::{Client, ClientError, KubeconfigError};

use credential::Credential;
pub use token::{
    BootstrapToken, TokenError, TokenInfo, advertised_server, create as create_token, delete as delete_token,
    list as list_tokens,
};

/// Why a node could not join.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error("writing {}", .path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error("reading {}", .path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("this node has no certificate yet, so it needs a token")]
    NoToken,
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error("{0:?} is not the URL of an API server, such as https://10.0.0.1:6443")]
    Server(String),
    #[error("asking {server} about the cluster")]
    Discover { server: String, source: discover::DiscoverError },
    #[error("the kubeconfig that was made")]
    Kubeconfig(#[source] KubeconfigError),
    #[error("making a key")]
    Key(#[source] rcgen::Error),
    #[error("asking for a certificate")]
    Request(#[source] ClientError),
    #[error("the certificate was refused: {0}")]
    Refused(String),
    #[error("nobody signed the certificate within {0:?}")]
    Unsigned(Duration),
    #[error("the certificate is not usable: {0}")]
    Certificate(String),
}

/// Which cluster to join, and as which node.
#[derive(Clone, Debug)]
pub struct Join {
    /// The API server's URL.
    pub server: String,
    /// Needed until the node has its certificate.
    pub token: Option<String>,
    /// Who vouches for the API server; learned with the token if absent.
    pub authority: Option<PathBuf>,
    /// Where the node keeps its credentials.
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

    /// The kubeconfig of the node's own user, made with a token if there is none yet.
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
        write(
            &kubeconfig,
            &render(&self.server, "client-certificate: client.pem\n    client-key: client.pem"),
            PRIVATE,
        )?;
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
        write(&bootstrap, &render(&self.server, &format!("token: {token}")), PRIVATE)?;
        let client = Client::connect(&bootstrap, "ferry-agent").map_err(JoinError::Request)?;
        let outcome = self.credential().renew(&client).await;
        // What is in there is not needed any more, or wrong.
        let _ = std::fs::remove_file(&bootstrap);
        outcome.map(drop)
    }

    /// Renews the certificate before it ends, until `tasks` stop. Connections made later show the new one.
    pub fn keep_fresh(self, client: Client, tasks: &TaskGroup) {
        self.credential().keep_fresh(client, tasks, |_| {});
    }
}

fn write(path: &Path, text: &str, mode: u32) -> Result<(), JoinError> {
    file::replace(path, text.as_bytes(), mode)
        .map_err(|source| JoinError::Write { path: path.to_owned(), source })
}

/// A kubeconfig beside the authority's certificate.
fn render(server: &str, user: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: ferry\nclusters:\n- name: ferry\n  cluster:\n    \
         server: {server}\n    certificate-authority: ca.crt\ncontexts:\n- name: ferry\n  context:\n    \
         cluster: ferry\n    user: node\nusers:\n- name: node\n  user:\n    {user}\n"
    )
}
