//! The cluster's own certificates: authorities, the serving certificate, the administrator's, the key that signs
//! service account tokens. Created at the first start, reloaded at the next, renewed while running.
//!
//! | file | purpose |
//! |---|---|
//! | `server-ca.crt`, `.key` | authority of the API server's serving certificate |
//! | `client-ca.crt`, `.key` | authority of users and components |
//! | `front-proxy-ca.crt`, `.key` | authority of proxies that assert a user by request headers |
//! | `apiserver.pem` | serving certificate and key |
//! | `admin.pem` | the administrator's client certificate and key |
//! | `front-proxy-client.pem` | client certificate of the API server towards aggregated API servers |
//! | `service-account.key`, `.pub` | signs and verifies service account tokens |

mod authority;
mod identity;
mod kubelet;
mod sec1;
mod service_account;
mod subject;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;

pub use authority::Authority;
pub use identity::{Identity, certificates_from_pem};
pub use kubelet::KubeletPki;
pub use service_account::ServiceAccountKey;
pub use subject::{
    SubjectError, SubjectUser, dns_names_of_certificate, expiry_of_certificate, user_of_certificate,
    user_of_subject,
};

use crate::file;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const AUTHORITY_LIFE: Duration = Duration::from_secs(DAY.as_secs() * 3650);
const LEAF_LIFE: Duration = Duration::from_secs(DAY.as_secs() * 365);

/// Errors of loading or creating certificates.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    #[error("failed to read {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("failed to write {path}")]
    Write { path: PathBuf, source: io::Error },
    #[error(
        "{path} is missing while its sibling {sibling} exists; restore it from a backup, or remove the whole directory to create new authorities"
    )]
    Incomplete { path: PathBuf, sibling: PathBuf },
    #[error("{path} is not a usable {what}: {reason}; restore it from a backup")]
    Corrupt { path: PathBuf, what: &'static str, reason: String },
    #[error("failed to generate {what}")]
    Make { what: &'static str, source: rcgen::Error },
}

/// The names a serving certificate must carry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServingNames {
    pub dns: BTreeSet<String>,
    pub ips: BTreeSet<IpAddr>,
}

impl ServingNames {
    /// Names of the API server for in-cluster clients, plus `localhost`; `domain` is the cluster's DNS domain.
    #[must_use]
    pub fn of_the_api_server(domain: &str) -> Self {
        let names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"];
        let mut dns: BTreeSet<String> = names.into_iter().map(str::to_owned).collect();
        dns.insert(format!("kubernetes.default.svc.{domain}"));
        Self { dns, ips: BTreeSet::new() }
    }
}

/// The certificates of one cluster, in one directory.
///
/// ```
/// use base::pki::{Pki, ServingNames};
/// use jiff::Timestamp;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// let names = ServingNames::of_the_api_server("cluster.local");
/// let path = directory.path().join("pki");
/// let created = Pki::open(&path, &names, Timestamp::now())?;
/// // The next start loads the same certificates.
/// let loaded = Pki::open(&path, &names, Timestamp::now())?;
/// assert_eq!(created.leaves().serving.chain, loaded.leaves().serving.chain);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Pki {
    directory: PathBuf,
    pub server_authority: Authority,
    pub client_authority: Authority,
    pub front_proxy_authority: Authority,
    leaves: Mutex<Leaves>,
    service_account: Mutex<Option<ServiceAccountKey>>,
}

/// The certificates that are renewed while running.
#[derive(Clone, Debug)]
pub struct Leaves {
    pub serving: Identity,
    pub admin: Identity,
    pub front_proxy_client: Identity,
}

impl Pki {
    /// Loads the certificates from `directory`, or creates them there. Leaves that are missing, expire soon or lack a
    /// name are reissued.
    pub fn open(directory: &Path, names: &ServingNames, now: Timestamp) -> Result<Self, PkiError> {
        if !directory.try_exists().map_err(read_error(directory))? {
            Self::create(directory, names, now)?;
        }
        let server_authority = Authority::load(directory, "server-ca")?;
        let client_authority = Authority::of_clients(directory)?;
        let front_proxy_authority = Authority::load(directory, "front-proxy-ca")?;
        let leaf =
            |file: &str, renew: &dyn Fn() -> Result<Identity, PkiError>| -> Result<Identity, PkiError> {
                let path = directory.join(file);
                match Identity::load(&path)? {
                    Some(identity) => Ok(identity),
                    None => {
                        let identity = renew()?;
                        identity.save(&path)?;
                        Ok(identity)
                    }
                }
            };
        let serving =
            leaf("apiserver.pem", &|| server_authority.issue_serving("kube-apiserver", names, now))?;
        let admin = leaf("admin.pem", &|| issue_admin(&client_authority, now))?;
        let front_proxy_client =
            leaf("front-proxy-client.pem", &|| issue_front_proxy_client(&front_proxy_authority, now))?;
        let pki = Self {
            directory: directory.to_owned(),
            server_authority,
            client_authority,
            front_proxy_authority,
            leaves: Mutex::new(Leaves { serving, admin, front_proxy_client }),
            service_account: Mutex::new(None),
        };
        pki.renew(names, now)?;
        Ok(pki)
    }

    /// Writes a new set to a temporary directory and renames it: a crash leaves all of it or none.
    fn create(directory: &Path, names: &ServingNames, now: Timestamp) -> Result<(), PkiError> {
        let mut name = directory.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.tmp", std::process::id()));
        let temporary = directory.with_file_name(name);
        let parent = directory.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(parent).map_err(write_error(parent))?;
        if temporary.exists() {
            fs::remove_dir_all(&temporary).map_err(write_error(&temporary))?;
        }
        fs::DirBuilder::new().mode(0o700).create(&temporary).map_err(write_error(&temporary))?;

        let server = Authority::create(&temporary, "server-ca", "ferry-server-ca", now)?;
        let client = Authority::create(&temporary, "client-ca", "ferry-client-ca", now)?;
        let front_proxy = Authority::create(&temporary, "front-proxy-ca", "ferry-front-proxy-ca", now)?;
        let leaves = [
            ("apiserver.pem", server.issue_serving("kube-apiserver", names, now)?),
            ("admin.pem", issue_admin(&client, now)?),
            ("front-proxy-client.pem", issue_front_proxy_client(&front_proxy, now)?),
        ];
        for (file, leaf) in leaves {
            let path = temporary.join(file);
            file::write(&path, leaf.pem().as_bytes(), file::PRIVATE).map_err(write_error(&path))?;
        }
        file::sync_directory(&temporary).map_err(write_error(&temporary))?;
        fs::rename(&temporary, directory).map_err(write_error(directory))?;
        file::sync_parent(directory).map_err(write_error(directory))?;
        tracing::info!(directory = %directory.display(), "created the cluster's certificates");
        Ok(())
    }

    /// The certificates in use.
    #[must_use]
    pub fn leaves(&self) -> Leaves {
        self.leaves.lock().clone()
    }

    /// Reissues leaves with less than a third of their lifetime left, and the serving certificate when it lacks one
    /// of `names`. Returns the names of the changed files.
    pub fn renew(&self, names: &ServingNames, now: Timestamp) -> Result<Vec<&'static str>, PkiError> {
        let mut leaves = self.leaves.lock();
        let mut renewed = Vec::new();
        if leaves.serving.is_due(now) || !leaves.serving.covers(names) {
            leaves.serving = self.server_authority.issue_serving("kube-apiserver", names, now)?;
            leaves.serving.save(&self.directory.join("apiserver.pem"))?;
            renewed.push("apiserver.pem");
        }
        if leaves.admin.is_due(now) {
            leaves.admin = issue_admin(&self.client_authority, now)?;
            leaves.admin.save(&self.directory.join("admin.pem"))?;
            renewed.push("admin.pem");
        }
        if leaves.front_proxy_client.is_due(now) {
            leaves.front_proxy_client = issue_front_proxy_client(&self.front_proxy_authority, now)?;
            leaves.front_proxy_client.save(&self.directory.join("front-proxy-client.pem"))?;
            renewed.push("front-proxy-client.pem");
        }
        Ok(renewed)
    }

    /// The key pair of service account tokens. Generating one takes a while, so it is deferred to the first call.
    pub fn service_account_key(&self) -> Result<ServiceAccountKey, PkiError> {
        let mut slot = self.service_account.lock();
        if let Some(key) = &*slot {
            return Ok(key.clone());
        }
        let key = ServiceAccountKey::load_or_create(&self.directory)?;
        *slot = Some(key.clone());
        Ok(key)
    }
}

fn issue_admin(authority: &Authority, now: Timestamp) -> Result<Identity, PkiError> {
    authority.issue_client("admin", Some("system:masters"), now)
}

fn issue_front_proxy_client(authority: &Authority, now: Timestamp) -> Result<Identity, PkiError> {
    authority.issue_client("front-proxy-client", None, now)
}

fn read_error(path: &Path) -> impl FnOnce(io::Error) -> PkiError {
    let path = path.to_owned();
    |source| PkiError::Read { path, source }
}

fn write_error(path: &Path) -> impl FnOnce(io::Error) -> PkiError {
    let path = path.to_owned();
    |source| PkiError::Write { path, source }
}

/// Reads a file that may be absent.
fn read_optional(path: &Path) -> Result<Option<String>, PkiError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(read_error(path)(error)),
    }
}
