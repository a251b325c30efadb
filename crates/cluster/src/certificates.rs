//! Certificates in use: Ferry's own or the operator's files, renewed and reloaded at run time.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use apiserver::serve::{ClientTrust, NamedCertificate, Tls, check_pair};
use apiserver::{ApiServer, AuthenticationTrust, KubeletIdentity};
use base::addresses;
use base::machine_network::MachineNetwork;
use base::pki::{Identity, Pki, ServingNames, certificates_from_pem, dns_names_of_certificate};
use base::tasks::TaskGroup;
use parking_lot::Mutex;

use crate::config::NamedFiles;
use crate::{ClusterError, Config, chain};

/// User of the API server at kubelets.
pub(crate) const KUBELET_CLIENT: &str = "kube-apiserver-kubelet-client";

/// Certificates of the cluster and the TLS settings derived from them.
#[derive(Debug)]
pub struct Certificates {
    config: Config,
    address: SocketAddr,
    pub pki: Arc<Pki>,
    pub tls: Arc<Tls>,
    in_use: Mutex<InUse>,
}

/// Last valid contents of the operator's files, which stay in use while a file is invalid.
#[derive(Debug)]
struct InUse {
    serving: Identity,
    /// Names and certificates of `--tls-sni-cert-key`, in its order.
    named: Vec<(Vec<String>, Identity)>,
    trust: ClientTrust,
}

impl InUse {
    fn read(config: &Config, pki: &Pki) -> Result<Self, ClusterError> {
        let named = config.files.named.iter().map(named).collect::<Result<_, _>>()?;
        Ok(Self { serving: serving_identity(config, pki)?, named, trust: trust(config, pki)? })
    }

    /// Rereads all files. Invalid ones are logged, and their previous contents kept.
    fn refresh(&mut self, config: &Config, pki: &Pki) {
        replace_if_valid(&mut self.serving, serving_identity(config, pki));
        for (kept, files) in self.named.iter_mut().zip(&config.files.named) {
            replace_if_valid(kept, named(files));
        }
        replace_if_valid(&mut self.trust, trust(config, pki));
    }

    fn named(&self) -> Vec<NamedCertificate> {
        let of = |(names, identity): &(Vec<String>, Identity)| NamedCertificate {
            names: names.clone(),
            chain: identity.chain.clone(),
            key: identity.key(),
        };
        self.named.iter().map(of).collect()
    }
}

fn replace_if_valid<T>(kept: &mut T, read: Result<T, ClusterError>) {
    match read {
        Ok(read) => *kept = read,
        Err(error) => {
            tracing::error!(
                error = chain(&error),
                "failed to reload certificates, keeping the current ones until the file changes again"
            );
        }
    }
}

impl Certificates {
    /// Opens or creates the certificates for a listener bound to `address`. Blocks on files.
    pub fn open(config: &Config, address: SocketAddr) -> Result<Self, ClusterError> {
        let names = serving_names(config, address);
        let pki = Pki::open(&config.pki(), &names, config.clock.now()).map_err(ClusterError::Pki)?;
        let in_use = InUse::read(config, &pki)?;
        let (chain, key) = (in_use.serving.chain.clone(), in_use.serving.key());
        let tls = Tls::with_options(chain, key, in_use.named(), in_use.trust.clone(), &config.files.tls)
            .map_err(ClusterError::Tls)?;
        let in_use = Mutex::new(in_use);
        Ok(Self { config: config.clone(), address, pki: Arc::new(pki), tls: Arc::new(tls), in_use })
    }

    /// URL for clients on this machine.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://{}", addresses::for_local_clients(self.address))
    }

    /// Address for other machines, as far as it can be detected.
    #[must_use]
    pub fn advertised(&self) -> SocketAddr {
        match self.config.advertise {
            Some(ip) => SocketAddr::new(ip, self.address.port()),
            None => addresses::for_other_machines(self.address, &self.config.families),
        }
    }

    /// Certificate authority of the serving certificate, as PEM.
    pub(crate) fn serving_authority(&self) -> Result<String, ClusterError> {
        // An operator's serving certificate is its own trust anchor: its authority is unknown here.
        match &self.config.files.serving {
            None => Ok(self.pki.server_authority.certificate_pem.clone()),
            Some((certificate, _)) => read(certificate),
        }
    }

    /// Certificate and key of the client certificate authority, as stored in their files.
    pub(crate) fn client_authority_pem(&self) -> Option<(String, String)> {
        let key = std::fs::read_to_string(self.config.pki().join("client-ca.key")).ok()?;
        Some((self.pki.client_authority.certificate_pem.clone(), key))
    }

    /// Issues a certificate for a component of this process.
    pub(crate) fn issue_client(&self, user: &str, groups: &[&str]) -> Result<Identity, ClusterError> {
        let now = self.config.clock.now();
        self.pki.client_authority.issue_client_in(user, groups, now).map_err(ClusterError::Pki)
    }

    /// Client certificate that the API server presents to kubelets; issued at every start. Its user may use the
    /// kubelets' API by a binding of the RBAC policy, and nothing else: a kubelet that relays the connection gains no
    /// more.
    pub(crate) fn kubelet_client(&self) -> Result<KubeletIdentity, ClusterError> {
        if let Some(files) = &self.config.files.kubelet_client {
            let identity = identity(files)?;
            return Ok(KubeletIdentity { key: identity.key(), chain: identity.chain });
        }
        let now = self.config.clock.now();
        let issued = self.pki.client_authority.issue_client(KUBELET_CLIENT, None, now);
        let identity = issued.map_err(ClusterError::Pki)?;
        Ok(KubeletIdentity { key: identity.key(), chain: identity.chain })
    }

    /// Generates the service account signing key in the background: it takes longer than the rest of the start.
    pub fn prepare_service_account_key(&self, server: Arc<ApiServer>, tasks: &TaskGroup) {
        let pki = Arc::clone(&self.pki);
        tasks.spawn(async move {
            match tokio::task::spawn_blocking(move || pki.service_account_key()).await {
                Ok(Ok(key)) => {
                    if let Err(error) = server.set_service_account_key(&key) {
                        tracing::error!(
                            error = chain(&error),
                            "failed to load the service account signing key"
                        );
                    }
                }
                Ok(Err(error)) => {
                    tracing::error!(error = chain(&error), "failed to load the service account signing key");
                }
                Err(error) => tracing::error!(%error, "failed to load the service account signing key"),
            }
        });
    }

    /// Writes the administrator's kubeconfig if it is outdated.
    pub fn write_kubeconfig(&self) -> Result<(), ClusterError> {
        let path = self.config.kubeconfig();
        let text = self.admin_kubeconfig()?;
        if std::fs::read_to_string(&path).is_ok_and(|old| old == text) {
            return Ok(());
        }
        base::file::replace(&path, text.as_bytes(), base::file::PRIVATE)
            .map_err(|source| ClusterError::Kubeconfig { path, source })
    }

    fn admin_kubeconfig(&self) -> Result<String, ClusterError> {
        let admin = self.pki.leaves().admin;
        Ok(client::render_kubeconfig(&self.url(), &self.serving_authority()?, &admin))
    }

    /// Checks periodically for due renewals and changed files, until `tasks` stops.
    pub fn watch(self: Arc<Self>, server: Arc<ApiServer>, tasks: &TaskGroup) {
        let group = tasks.clone();
        tasks.supervise("certificate-renewal", move || {
            Arc::clone(&self).keep_fresh(Arc::clone(&server), group.clone())
        });
    }

    async fn keep_fresh(self: Arc<Self>, server: Arc<ApiServer>, group: TaskGroup) {
        let mut seen = self.modified();
        let mut network = base::machine_network::subscribe();
        loop {
            let due = async {
                tokio::select! {
                    () = tokio::time::sleep(self.config.certificate_check) => {}
                    network = network.next() => self.warn_of_lost(&network),
                }
            };
            if group.until_stopped(due).await.is_none() {
                return;
            }
            let now = self.modified();
            let changed = now != seen;
            let certificates = Arc::clone(&self);
            let outcome = tokio::task::spawn_blocking(move || certificates.refresh(changed)).await;
            match outcome {
                Ok(Ok(renewed)) => {
                    seen = now;
                    if changed {
                        self.publish(&server).await;
                    }
                    if renewed || changed {
                        self.renew_kubelet_client(&server);
                        self.set_front_proxy(&server);
                    }
                }
                Ok(Err(error)) => tracing::error!(error = chain(&error), "failed to renew certificates"),
                Err(error) => tracing::error!(%error, "failed to renew certificates"),
            }
        }
    }

    /// Logs addresses of flags that the machine no longer has.
    fn warn_of_lost(&self, network: &MachineNetwork) {
        let listen = ("--listen", Some(self.address.ip()));
        for (flag, ip) in [listen, ("--advertise-address", self.config.advertise)] {
            let followed = |ip: &IpAddr| !ip.is_loopback() && !ip.is_unspecified();
            if let Some(ip) = ip.filter(followed).filter(|ip| !network.addresses.contains(ip)) {
                tracing::error!(%ip, "the machine does not have the address of {flag}; restart with another one, or without it to follow the machine's address");
            }
        }
    }

    /// Certificate authorities of the server, as published in extension-apiserver-authentication.
    pub fn authentication_trust(&self) -> Result<AuthenticationTrust, ClusterError> {
        let with_file = |own: &base::pki::Authority, file: &Option<PathBuf>| {
            let more = file.as_deref().map(read).transpose()?.unwrap_or_default();
            Ok::<_, ClusterError>(format!("{}{more}", own.certificate_pem))
        };
        Ok(AuthenticationTrust {
            kubelet: self.config.files.kubelet_ca.as_deref().map(read).transpose()?,
            client: with_file(&self.pki.client_authority, &self.config.files.client_ca)?,
            front_proxy: with_file(&self.pki.front_proxy_authority, &self.config.files.front_proxy_ca)?,
            allowed_names: self.config.api.authentication.front_proxy_names.clone(),
        })
    }

    async fn publish(&self, server: &ApiServer) {
        match self.authentication_trust() {
            Ok(trust) => {
                if let Err(status) = server.publish_trust(&trust).await {
                    tracing::warn!(error = %status, "failed to publish extension-apiserver-authentication");
                }
            }
            Err(error) => {
                tracing::warn!(error = chain(&error), "failed to publish extension-apiserver-authentication")
            }
        }
    }

    /// Sets the client certificate for extension servers.
    pub(crate) fn set_front_proxy(&self, server: &ApiServer) {
        let files = self.config.files.proxy_client.as_ref().map(identity).transpose();
        match files {
            Ok(given) => {
                let pem = given.unwrap_or_else(|| self.pki.leaves().front_proxy_client).pem();
                server.aggregator.set_identity(pem.clone().into_bytes(), pem.into_bytes());
            }
            Err(error) => {
                tracing::error!(
                    error = chain(&error),
                    "failed to read the client certificate for extension servers"
                );
            }
        }
    }

    /// Never older than the oldest of the others, so it is renewed with them.
    fn renew_kubelet_client(&self, server: &ApiServer) {
        let outcome = self.kubelet_client().and_then(|identity| {
            server.set_kubelet_identity(identity).map_err(ClusterError::KubeletIdentity)
        });
        if let Err(error) = outcome {
            tracing::error!(error = chain(&error), "failed to renew the kubelet client certificate");
        }
    }

    /// True if a certificate must be renewed.
    pub(crate) fn is_due(&self, identity: &Identity) -> bool {
        identity.is_due(self.config.clock.now())
    }

    /// Renews due certificates and activates changes; on failure the current ones stay in use. Returns true if any
    /// was renewed.
    fn refresh(&self, files_changed: bool) -> Result<bool, ClusterError> {
        let names = serving_names(&self.config, self.address);
        let renewed = self.pki.renew(&names, self.config.clock.now()).map_err(ClusterError::Pki)?;
        if renewed.is_empty() && !files_changed {
            return Ok(false);
        }
        let mut in_use = self.in_use.lock();
        in_use.refresh(&self.config, &self.pki);
        let (chain, key) = (in_use.serving.chain.clone(), in_use.serving.key());
        self.tls.replace(chain, key, in_use.named(), in_use.trust.clone()).map_err(ClusterError::Tls)?;
        drop(in_use);
        self.write_kubeconfig()?;
        tracing::info!(?renewed, files_changed, "reloaded certificates");
        Ok(!renewed.is_empty())
    }

    fn modified(&self) -> Vec<Option<SystemTime>> {
        let modified = |path: &Path| std::fs::metadata(path).and_then(|m| m.modified()).ok();
        self.config.files.paths().map(modified).collect()
    }
}

/// Subject alternative names of the API server.
fn serving_names(config: &Config, address: SocketAddr) -> ServingNames {
    let mut names = ServingNames::of_the_api_server(&config.cluster_domain);
    names.dns.extend(addresses::hostname());
    names.ips = addresses::reachable(address);
    names.ips.insert(config.service_ip);
    names.ips.extend(config.advertise);
    names
}

fn serving_identity(config: &Config, pki: &Pki) -> Result<Identity, ClusterError> {
    let Some(files) = &config.files.serving else { return Ok(pki.leaves().serving) };
    identity(files)
}

/// Loads the certificate and key of two files.
fn identity((certificate, key): &(PathBuf, PathBuf)) -> Result<Identity, ClusterError> {
    let text = format!("{}\n{}", read(certificate)?, read(key)?);
    let bad = |reason| ClusterError::BadFile { path: certificate.clone(), reason };
    let identity = Identity::from_pem(&text).map_err(bad)?;
    check_pair(identity.chain.clone(), identity.key()).map_err(|error| bad(chain(&error)))?;
    Ok(identity)
}

/// Serving certificate for some names.
fn named(files: &NamedFiles) -> Result<(Vec<String>, Identity), ClusterError> {
    let identity = identity(&(files.certificate.clone(), files.key.clone()))?;
    let names = match files.names.is_empty() {
        true => identity.chain.first().map(|leaf| dns_names_of_certificate(leaf)).unwrap_or_default(),
        false => files.names.iter().map(|name| name.to_ascii_lowercase()).collect(),
    };
    Ok((names, identity))
}

/// Ferry's own authorities are always included: they issue the certificates of its components and the administrator.
fn trust(config: &Config, pki: &Pki) -> Result<ClientTrust, ClusterError> {
    let with_file = |own: &base::pki::Authority, file: &Option<PathBuf>| {
        let mut authorities = vec![own.certificate.clone()];
        if let Some(path) = file {
            let more = certificates_from_pem(&read(path)?)
                .map_err(|reason| ClusterError::BadFile { path: path.clone(), reason })?;
            authorities.extend(more);
        }
        Ok::<_, ClusterError>(authorities)
    };
    let client = with_file(&pki.client_authority, &config.files.client_ca)?;
    let front_proxy = with_file(&pki.front_proxy_authority, &config.files.front_proxy_ca)?;
    ClientTrust::new(&client, &front_proxy).map_err(ClusterError::Tls)
}

fn read(path: &Path) -> Result<String, ClusterError> {
    std::fs::read_to_string(path).map_err(|source| ClusterError::ReadFile { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubelet_client_is_a_user_without_groups() {
        let directory = tempfile::tempdir().expect("a directory");
        let address = SocketAddr::from(([127, 0, 0, 1], 6443));
        let certificates = Certificates::open(&Config::new(directory.path()), address).expect("opens");
        let identity = certificates.kubelet_client().expect("issued");
        let user = base::pki::user_of_certificate(&identity.chain[0]).expect("a user");
        assert_eq!((user.name.as_str(), user.groups.as_slice()), (KUBELET_CLIENT, &[][..]));
    }
}
