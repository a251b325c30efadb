//! An HTTPS port whose requests are authenticated and authorized by the API server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use apiserver::serve::{self, Connection, RequestBody, ResponseBody, ServerConfig, Service, Tls};
use base::backoff::Backoff;
use base::clock::Clock;
use base::pki::{Identity, KubeletPki, ServingNames};
use base::tasks::TaskGroup;
use bytes::Bytes;
use client::Client;
use futures_util::future::BoxFuture;
use http::request::Parts;
use http::{Request, Response};
use tokio::net::TcpListener;

use super::{Delegated, PublishedTrust};
use crate::serving::read;
use crate::{ClusterError, chain};

/// Time between two looks at the API server's trust and the serving certificate.
const REFRESH: Duration = Duration::from_secs(60);
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));

/// Address and certificate of the port.
#[derive(Clone, Debug)]
pub struct SecurePort {
    pub listen: SocketAddr,
    /// Certificate and key; those of `cert_dir` if absent.
    pub serving: Option<(PathBuf, PathBuf)>,
    /// Directory of `NAME.crt` and `NAME.key`, where a certificate is made if they are absent; it is made in memory
    /// without a directory.
    pub cert_dir: Option<PathBuf>,
    /// Base name of certificate and key.
    pub pair_name: &'static str,
}

/// Replies to requests that are authorized.
pub(crate) trait Pages: Send + Sync + 'static {
    fn answer<'a>(&'a self, head: &'a Parts) -> BoxFuture<'a, Response<Bytes>>;
}

struct Server {
    pages: Arc<dyn Pages>,
    delegated: Delegated,
}

impl Service for Server {
    async fn call(
        &self,
        request: Request<RequestBody>,
        connection: Arc<Connection>,
    ) -> Response<ResponseBody> {
        let (head, _) = request.into_parts();
        let allowed = async {
            let user = self.delegated.user(&head.headers, &connection).await?;
            self.delegated.access.authorize(&user, &head.method, &head.uri).await
        };
        let answer = match allowed.await {
            Ok(()) => self.pages.answer(&head).await,
            Err(status) => ::metrics::refusal(&status),
        };
        answer.map(ResponseBody::Full)
    }
}

impl SecurePort {
    /// The serving certificate: of the configuration, of the directory, or made there.
    fn identity(&self, clock: &Clock) -> Result<Identity, ClusterError> {
        let file = |extension| Some(self.cert_dir.as_ref()?.join(format!("{}.{extension}", self.pair_name)));
        let usual = file("crt").zip(file("key")).filter(|(crt, key)| crt.is_file() && key.is_file());
        if let Some((certificate, key)) = self.serving.as_ref().or(usual.as_ref()) {
            let text = format!("{}\n{}", read(certificate)?, read(key)?);
            return Identity::from_pem(&text)
                .map_err(|reason| ClusterError::BadFile { path: certificate.clone(), reason });
        }
        let mut names = ServingNames::default();
        names.dns.insert("localhost".to_owned());
        names.dns.extend(base::addresses::hostname());
        names.ips.extend(Some(self.listen.ip()).filter(|ip| !ip.is_unspecified()));
        let made = match &self.cert_dir {
            Some(directory) => KubeletPki::open(directory, &names, clock.now()).map(|made| made.serving),
            None => Identity::in_memory(self.pair_name, &names, clock.now()),
        };
        made.map_err(ClusterError::Pki)
    }

    /// Reports whether the certificate is in files, which may change.
    fn has_files(&self) -> bool {
        self.serving.is_some() || self.cert_dir.is_some()
    }

    /// Opens the port; requests are served by [`Listening::serve`].
    pub(crate) fn bind(self) -> Result<Listening, ClusterError> {
        let (listener, address) = serve::bind(self.listen).map_err(ClusterError::Listen)?;
        Ok(Listening { port: self, listener, address })
    }
}

/// An open port.
pub(crate) struct Listening {
    port: SecurePort,
    listener: TcpListener,
    pub address: SocketAddr,
}

impl Listening {
    /// Waits for the trust that the API server publishes, then serves until `tasks` stops.
    pub async fn serve(
        self,
        client: Client,
        pages: Arc<dyn Pages>,
        clock: &Clock,
        tasks: &TaskGroup,
    ) -> Result<(), ClusterError> {
        let Some(trust) = tasks.until_stopped(published(&client)).await else { return Ok(()) };
        let identity = self.port.identity(clock)?;
        let tls = Tls::new(identity.chain.clone(), identity.key(), trust.client_trust()?);
        let tls = Arc::new(tls.map_err(ClusterError::Tls)?);
        let server = Arc::new(Server { pages, delegated: Delegated::new(client.clone(), trust) });
        let used = (identity, self.port);
        refresh(Arc::clone(&server), Arc::clone(&tls), client, used, clock.clone(), tasks);
        serve::serve(self.listener, tls, server, ServerConfig::default(), tasks.clone()).await;
        Ok(())
    }
}

/// The trust that the API server publishes; waits for it.
async fn published(client: &Client) -> PublishedTrust {
    let mut retry = RETRY;
    loop {
        match PublishedTrust::read(client).await {
            Ok(trust) => return trust,
            Err(error) => {
                let error = chain(&error);
                if retry.is_reset() {
                    // The API server may be about to publish it.
                    tracing::debug!(error, "failed to read extension-apiserver-authentication, retrying");
                } else {
                    tracing::warn!(error, "failed to read extension-apiserver-authentication, retrying");
                }
                retry.wait().await;
            }
        }
    }
}

/// Uses renewed certificates and changed trust while the server runs.
fn refresh(
    server: Arc<Server>,
    tls: Arc<Tls>,
    client: Client,
    (identity, port): (Identity, SecurePort),
    clock: Clock,
    tasks: &TaskGroup,
) {
    let group = tasks.clone();
    tasks.supervise(format!("trust of port {}", port.listen), move || {
        let (server, tls, client) = (Arc::clone(&server), Arc::clone(&tls), client.clone());
        let (mut current, port) = (identity.clone(), port.clone());
        let (clock, group) = (clock.clone(), group.clone());
        async move {
            loop {
                if group.until_stopped(tokio::time::sleep(REFRESH)).await.is_none() {
                    return;
                }
                let outcome = async {
                    let trust = PublishedTrust::read(&client).await.map_err(ClusterError::Client)?;
                    if current.is_due(clock.now()) || port.has_files() {
                        current = port.identity(&clock)?;
                    }
                    let (chain, key) = (current.chain.clone(), current.key());
                    tls.replace(chain, key, Vec::new(), trust.client_trust()?).map_err(ClusterError::Tls)?;
                    server.delegated.trust.store(Arc::new(trust));
                    Ok::<_, ClusterError>(())
                };
                if let Err(error) = outcome.await {
                    tracing::warn!(error = chain(&error), "failed to refresh certificates and trust");
                }
            }
        }
    });
}
