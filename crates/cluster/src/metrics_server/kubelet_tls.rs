//! TLS towards kubelets: the API server's own in its process, that of a kubeconfig and flags alone.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::metrics::KubeletTls;
use apiserver::ApiServer;
use base::http::{Authorities, Trust};
use client::{Kubeconfig, read_material};
use parking_lot::Mutex;
use rustls::ClientConfig;

/// Time after which files are read again.
const LIFE: Duration = Duration::from_secs(300);

/// The API server's own certificate and trust.
pub(super) struct OfServer(pub Arc<ApiServer>);

impl KubeletTls for OfServer {
    fn config(&self, node: &str) -> Result<Option<Arc<ClientConfig>>, String> {
        let config = self.0.kubelet_tls(node);
        config.map(Some).ok_or_else(|| "the API server has no certificate for kubelets".to_owned())
    }
}

/// Flags about kubelets of `ferry metrics-server`.
#[derive(Clone, Debug, Default)]
pub struct KubeletClientConfig {
    /// Accepts any certificate.
    pub insecure_tls: bool,
    /// Uses plain HTTP and no credentials.
    pub completely_insecure: bool,
    pub certificate_authority: Option<PathBuf>,
    /// Certificate and key.
    pub client_certificate: Option<(PathBuf, PathBuf)>,
}

/// The credentials of a kubeconfig, with what flags say instead.
pub(super) struct OfKubeconfig {
    pub kubeconfig: Kubeconfig,
    pub flags: KubeletClientConfig,
    current: Mutex<Option<(Arc<ClientConfig>, Instant)>>,
}

impl OfKubeconfig {
    pub fn new(kubeconfig: Kubeconfig, flags: KubeletClientConfig) -> Self {
        Self { kubeconfig, flags, current: Mutex::default() }
    }

    fn trust(&self) -> Result<Trust, String> {
        let read = |path: &Path| std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
        let authorities = match (&self.flags.certificate_authority, &self.kubeconfig.authority) {
            _ if self.flags.insecure_tls => Authorities::Unverified,
            (Some(file), _) => Authorities::Pem(read(file)?),
            (None, Some(own)) => {
                Authorities::Pem(read_material(own).map_err(|error| error.to_string())?.into_bytes())
            }
            (None, None) => Authorities::System,
        };
        let identity = match (&self.flags.client_certificate, &self.kubeconfig.certificate) {
            (Some((certificate, key)), _) => Some((read(certificate)?, read(key)?)),
            (None, Some((certificate, key))) => {
                let text =
                    |one: Result<String, client::KubeconfigError>| one.map_err(|error| error.to_string());
                Some((text(read_material(certificate))?.into_bytes(), text(read_material(key))?.into_bytes()))
            }
            (None, None) => None,
        };
        Ok(Trust { authorities, identity, server_name: None })
    }
}

impl KubeletTls for OfKubeconfig {
    fn config(&self, _node: &str) -> Result<Option<Arc<ClientConfig>>, String> {
        if self.flags.completely_insecure {
            return Ok(None);
        }
        let mut current = self.current.lock();
        if let Some((config, since)) = current.as_ref()
            && since.elapsed() < LIFE
        {
            return Ok(Some(Arc::clone(config)));
        }
        let config = self.trust()?.config().map_err(|error| error.to_string())?;
        *current = Some((Arc::clone(&config), Instant::now()));
        Ok(Some(config))
    }

    fn token(&self) -> Result<Option<String>, String> {
        if self.flags.completely_insecure {
            return Ok(None);
        }
        let token = self.kubeconfig.token.as_ref().map(read_material).transpose();
        Ok(token.map_err(|error| error.to_string())?.map(|token| token.trim().to_owned()))
    }
}
