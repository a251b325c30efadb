//! A certificate of a node's: asked for once, kept in a file, renewed before it ends.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::clock::Clock;
use base::file::{self, PRIVATE};
use base::pki::{Identity, ServingNames};
use base::tasks::TaskGroup;
use client::{Client, Kubeconfig};

use super::JoinError;
use super::certificate::{self, Asked};

/// How often it is looked whether the certificate is near its end.
const CHECK: Duration = Duration::from_secs(600);

/// A certificate of a node's.
#[derive(Clone, Debug)]
pub(crate) struct Credential {
    pub file: PathBuf,
    pub node: String,
    /// The names it is to serve under; without any it is for the node as a client.
    pub names: Option<ServingNames>,
    pub clock: Clock,
}

impl Credential {
    /// What is in the file, if it is still good for what it is for.
    pub fn load(&self) -> Option<Identity> {
        let identity = Identity::from_pem(&std::fs::read_to_string(&self.file).ok()?).ok()?;
        let covers = self.names.as_ref().is_none_or(|names| identity.covers(names));
        (covers && identity.expires() > self.clock.now().as_second()).then_some(identity)
    }

    /// Whether a kubeconfig shows this certificate.
    pub fn is_used_by(&self, kubeconfig: &std::path::Path) -> bool {
        let shown = Kubeconfig::load(kubeconfig).ok().and_then(|loaded| loaded.certificate);
        let shown = shown.and_then(|(certificate, _)| certificate.read().ok());
        shown.is_some() && shown == std::fs::read_to_string(&self.file).ok()
    }

    /// Gets a new certificate as whoever `client` is.
    pub async fn renew(&self, client: &Client) -> Result<Identity, JoinError> {
        let asked = match &self.names {
            None => Asked::Client,
            Some(names) => Asked::Serving(names),
        };
        let text = certificate::request(client, &self.node, asked).await?;
        let identity = Identity::from_pem(&text).map_err(JoinError::Certificate)?;
        if let Some(directory) = self.file.parent() {
            std::fs::create_dir_all(directory)
                .map_err(|source| JoinError::Write { path: directory.to_owned(), source })?;
        }
        file::replace(&self.file, text.as_bytes(), PRIVATE)
            .map_err(|source| JoinError::Write { path: self.file.clone(), source })?;
        Ok(identity)
    }

    /// Renews the certificate before it ends, until `tasks` stop, and says so. Connections made later show the new one.
    pub fn keep_fresh(
        self,
        client: Client,
        tasks: &TaskGroup,
        renewed: impl Fn(&Identity) + Send + Sync + 'static,
    ) {
        let (credential, group, renewed) = (Arc::new(self), tasks.clone(), Arc::new(renewed));
        tasks.supervise(format!("certificate {}", credential.file.display()), move || {
            let (credential, client) = (Arc::clone(&credential), client.clone());
            let (group, renewed) = (group.clone(), Arc::clone(&renewed));
            async move {
                let renewing = async {
                    loop {
                        credential.renew_if_due(&client, &*renewed).await;
                        tokio::time::sleep(CHECK).await;
                    }
                };
                tokio::select! {
                    () = group.stopping() => {}
                    () = renewing => {}
                }
            }
        });
    }

    async fn renew_if_due(&self, client: &Client, renewed: &(impl Fn(&Identity) + Send + Sync)) {
        if self.load().is_some_and(|identity| !identity.is_due(self.clock.now())) {
            return;
        }
        match self.renew(client).await {
            Ok(identity) => {
                tracing::info!(node = self.node, file = %self.file.display(), "a certificate is renewed");
                renewed(&identity);
            }
            Err(error) => {
                tracing::warn!(error = crate::chain(&error), file = %self.file.display(), "a certificate is not renewed");
            }
        }
    }
}
