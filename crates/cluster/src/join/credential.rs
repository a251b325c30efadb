//! A certificate of a node: requested once, stored in a file, renewed before it expires.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::clock::Clock;
use base::file::{self, PRIVATE};
use base::pki::{Identity, ServingNames};
use base::tasks::TaskGroup;
use client::{Client, Kubeconfig, read_material};
use kubelet::CertificateStatus;

use super::JoinError;
use super::certificate::{self, Purpose};

/// Check interval of the expiration.
const CHECK: Duration = Duration::from_secs(600);

/// Current names of a serving certificate.
pub(crate) type Names = Arc<dyn Fn() -> ServingNames + Send + Sync>;

/// A certificate of a node.
#[derive(Clone)]
pub(crate) struct Credential {
    pub file: PathBuf,
    pub node: String,
    /// Names of a serving certificate; `None` for a client certificate.
    pub names: Option<Names>,
    pub clock: Clock,
}

impl Credential {
    /// Content of the file, if it is valid for its purpose.
    pub fn load(&self) -> Option<Identity> {
        let identity = Identity::from_pem(&std::fs::read_to_string(&self.file).ok()?).ok()?;
        let covers = self.names.as_ref().is_none_or(|names| identity.covers(&names()));
        (covers && identity.expires() > self.clock.now().as_second()).then_some(identity)
    }

    /// True if a kubeconfig uses this certificate.
    pub fn is_used_by(&self, kubeconfig: &std::path::Path) -> bool {
        let shown = Kubeconfig::load(kubeconfig).ok().and_then(|loaded| loaded.certificate);
        let shown = shown.and_then(|(certificate, _)| read_material(&certificate).ok());
        shown.is_some() && shown == std::fs::read_to_string(&self.file).ok()
    }

    /// Requests a new certificate with the identity of `client`.
    pub async fn renew(&self, client: &Client) -> Result<Identity, JoinError> {
        let names = self.names.as_ref().map(|names| names());
        let purpose = match &names {
            None => Purpose::Client,
            Some(names) => Purpose::Serving(names),
        };
        // An expired certificate belongs to this node as well.
        let is_new = self.names.is_none() && !self.file.exists();
        let text = certificate::request(client, &self.node, purpose, is_new).await?;
        let identity = Identity::from_pem(&text).map_err(JoinError::Certificate)?;
        if let Some(directory) = self.file.parent() {
            std::fs::create_dir_all(directory)
                .map_err(|source| JoinError::Write { path: directory.to_owned(), source })?;
        }
        file::replace(&self.file, text.as_bytes(), PRIVATE)
            .map_err(|source| JoinError::Write { path: self.file.clone(), source })?;
        Ok(identity)
    }

    /// Renews the certificate before it expires, until `tasks` stop. `renewed` gets the new one, or `None` after a
    /// failure. Later connections use the new one.
    pub fn keep_fresh(
        self,
        client: Client,
        tasks: &TaskGroup,
        renewed: impl Fn(Option<&Identity>) + Send + Sync + 'static,
    ) {
        let (credential, group, renewed) = (Arc::new(self), tasks.clone(), Arc::new(renewed));
        tasks.supervise(format!("certificate {}", credential.file.display()), move || {
            let (credential, client) = (Arc::clone(&credential), client.clone());
            let (group, renewed) = (group.clone(), Arc::clone(&renewed));
            async move {
                let mut network = base::machine_network::subscribe();
                let renewing = async {
                    loop {
                        credential.renew_if_due(&client, &*renewed).await;
                        tokio::select! {
                            () = tokio::time::sleep(CHECK) => {}
                            _ = network.next() => {}
                        }
                    }
                };
                group.until_stopped(renewing).await;
            }
        });
    }

    /// Renews the client certificate of a kubelet, and reports its state.
    pub fn keep_client_fresh(self, client: Client, tasks: &TaskGroup, status: CertificateStatus) {
        if let Some(identity) = self.load() {
            status.set_client_expires(identity.expires());
        }
        self.keep_fresh(client, tasks, move |renewed| match renewed {
            Some(identity) => status.set_client_expires(identity.expires()),
            None => status.client_failed(),
        });
    }

    async fn renew_if_due(&self, client: &Client, renewed: &(impl Fn(Option<&Identity>) + Send + Sync)) {
        if self.load().is_some_and(|identity| !identity.is_due(self.clock.now())) {
            return;
        }
        match self.renew(client).await {
            Ok(identity) => {
                tracing::info!(node = self.node, file = %self.file.display(), "renewed certificate");
                renewed(Some(&identity));
            }
            Err(error) => {
                tracing::warn!(error = crate::chain(&error), file = %self.file.display(), "failed to renew certificate");
                renewed(None);
            }
        }
    }
}
