//! `registries.yaml`: mirrors, credentials and trust per registry. A registry that is not listed is contacted at its
//! own address over TLS; nothing is insecure unless the file enables it. See `docs/images.md`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::auth::Credentials;

#[derive(Debug, thiserror::Error)]
pub enum HostsError {
    #[error("failed to read {}: {reason}", .path.display())]
    Read { path: PathBuf, reason: String },
    #[error("{url:?} is not a registry URL: {reason}")]
    Url { url: String, reason: &'static str },
}

/// The content of the file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Registries {
    /// By the registry's name in image references; `*` applies to registries without an entry.
    mirrors: BTreeMap<String, Mirror>,
    /// By host, with its port if it has one: registries and mirrors alike.
    configs: BTreeMap<String, HostConfig>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Mirror {
    /// Tried in this order, the registry itself last.
    #[serde(alias = "endpoints")]
    endpoint: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct HostConfig {
    auth: Option<Credentials>,
    tls: Tls,
}

/// Trusted authorities and client credentials.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tls {
    /// Authorities in addition to the system's.
    pub ca_file: Option<PathBuf>,
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
    pub insecure_skip_verify: bool,
}

/// A server that images are pulled from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub secure: bool,
    pub host: String,
    pub port: u16,
    /// Path prefix before `/v2`.
    pub prefix: String,
    /// The registry that it mirrors, if it is a mirror.
    pub mirrors: Option<String>,
    pub tls: Tls,
    pub credentials: Option<Credentials>,
}

impl Endpoint {
    /// Parses `host` or `host:port`.
    #[must_use]
    pub fn authority(&self) -> String {
        authority(self.secure, &self.host, self.port)
    }

    fn parse(url: &str, mirrors: Option<&str>) -> Result<Self, HostsError> {
        let wrong = |reason| HostsError::Url { url: url.to_owned(), reason };
        let uri: ::http::Uri = url.parse().map_err(|_| wrong("the URL is malformed"))?;
        let secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(wrong("it must begin with https:// or http://")),
        };
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(|| wrong("it has no host"))?;
        let prefix = uri.path().trim_end_matches('/');
        Ok(Self {
            secure,
            host: host.to_owned(),
            port: uri.port_u16().unwrap_or(if secure { 443 } else { 80 }),
            prefix: prefix.strip_suffix("/v2").unwrap_or(prefix).to_owned(),
            mirrors: mirrors.map(str::to_owned),
            tls: Tls::default(),
            credentials: None,
        })
    }
}

pub(super) fn authority(secure: bool, host: &str, port: u16) -> String {
    if port == if secure { 443 } else { 80 } { host.to_owned() } else { format!("{host}:{port}") }
}

/// Server of a registry, where its name is not a host name.
fn server_of(registry: &str) -> &str {
    if registry == "docker.io" { "registry-1.docker.io" } else { registry }
}

impl Registries {
    /// Reads the file; a missing one is empty.
    pub fn read(path: &Path) -> Result<Self, HostsError> {
        let wrong = |reason: String| HostsError::Read { path: path.to_owned(), reason };
        let text = match std::fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(wrong(error.to_string())),
        };
        Self::parse(&text).map_err(wrong)
    }

    fn parse(text: &[u8]) -> Result<Self, String> {
        if text.iter().all(u8::is_ascii_whitespace) {
            return Ok(Self::default());
        }
        let value = machinery::codec::yaml::decode(text).map_err(|error| error.to_string())?.value;
        let parsed: Self = serde_json::from_value(value).map_err(|error| error.to_string())?;
        for (registry, mirror) in &parsed.mirrors {
            for url in &mirror.endpoint {
                Endpoint::parse(url, Some(registry)).map_err(|error| error.to_string())?;
            }
        }
        Ok(parsed)
    }

    /// Endpoints for images of a registry, in order: its mirrors, then the registry itself.
    pub fn endpoints(&self, registry: &str) -> Result<Vec<Endpoint>, HostsError> {
        let mirror = self.mirrors.get(registry).or_else(|| self.mirrors.get("*"));
        let mut found: Vec<Endpoint> = Vec::new();
        for url in mirror.iter().flat_map(|mirror| &mirror.endpoint) {
            found.push(Endpoint::parse(url, Some(registry))?);
        }
        let server = server_of(registry);
        let own = Endpoint::parse(&format!("https://{server}"), None)?;
        // A registry with an explicit scheme is contacted with that scheme only.
        match found.iter_mut().find(|endpoint| {
            endpoint.host == own.host
                && endpoint.prefix.is_empty()
                && [server, registry].contains(&endpoint.authority().as_str())
        }) {
            Some(itself) => itself.mirrors = None,
            None => found.push(own),
        }
        for endpoint in &mut found {
            let authority = endpoint.authority();
            let config = self.configs.get(&authority).or_else(|| {
                // `docker.io` is an alias of its server, and a port may be omitted.
                let names = [registry, endpoint.host.as_str()];
                let skip = usize::from(endpoint.mirrors.is_some());
                names.iter().skip(skip).find_map(|name| self.configs.get(*name))
            });
            if let Some(config) = config {
                endpoint.tls = config.tls.clone();
                endpoint.credentials.clone_from(&config.auth);
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
mirrors:
  docker.io:
    endpoint: [https://mirror.example:5000/hub/v2/]
  "plain.example:5000":
    endpoint: ["http://plain.example:5000"]
  "*":
    endpoint: [https://all.example]
configs:
  docker.io:
    auth: {username: me, password: secret}
  "mirror.example:5000":
    tls: {insecure_skip_verify: true}
"#;

    #[test]
    fn endpoints_list_mirrors_first_and_default_to_tls() {
        let file = Registries::parse(FILE.as_bytes()).unwrap();
        let hub = file.endpoints("docker.io").unwrap();
        assert_eq!(
            hub.iter().map(Endpoint::authority).collect::<Vec<_>>(),
            ["mirror.example:5000", "registry-1.docker.io"]
        );
        assert_eq!((hub[0].prefix.as_str(), hub[0].mirrors.as_deref()), ("/hub", Some("docker.io")));
        assert!(hub[0].tls.insecure_skip_verify && hub[0].credentials.is_none());
        assert!(!hub[1].tls.insecure_skip_verify && hub[1].credentials.is_some());
        let plain = file.endpoints("plain.example:5000").unwrap();
        assert_eq!((plain.len(), plain[0].secure, &plain[0].mirrors), (1, false, &None));
        let other = file.endpoints("other.example").unwrap();
        assert_eq!((other.len(), other[1].secure), (2, true));
        assert!(Registries::default().endpoints("127.0.0.1:5000").unwrap()[0].secure);
    }

    #[test]
    fn registries_file_mistakes_are_errors() {
        for bad in ["mirrors: {x: {endpoint: [ftp://x]}}", "mirrors: {x: {endpint: []}}", "configs: [", "- a"]
        {
            assert!(Registries::parse(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(Registries::parse(b"\n").is_ok());
        assert!(Registries::read(Path::new("/nowhere/registries.yaml")).is_ok());
    }
}
