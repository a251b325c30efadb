//! Target servers of outbound requests, with the path on them.

use base::egress::Network;
use base::http::{Origin, OriginError, Trust};
use http::Uri;

/// A server and a path on it.
pub struct Target {
    url: String,
    path: String,
    origin: Origin,
}

impl Target {
    /// A server on the control plane network.
    pub fn new(url: &str, trust: &Trust) -> Result<Self, OriginError> {
        Self::on(url, trust, Network::ControlPlane)
    }

    /// A webhook: one with a separate server name in its certificate is a service of the cluster.
    pub fn of_webhook(url: &str, trust: &Trust) -> Result<Self, OriginError> {
        let network = if trust.server_name.is_some() { Network::Cluster } else { Network::ControlPlane };
        Self::on(url, trust, network)
    }

    fn on(url: &str, trust: &Trust, network: Network) -> Result<Self, OriginError> {
        let origin = Origin::of_url(url, trust)?.on(network);
        let uri: Uri = url.parse().map_err(|_| OriginError::Url(url.to_owned()))?;
        let path = uri.path_and_query().map_or("", |path| path.as_str()).trim_end_matches('/').to_owned();
        Ok(Self { url: url.trim_end_matches('/').to_owned(), path, origin })
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn path(&self) -> &str {
        &self.path
    }

    pub fn origin(&self) -> &Origin {
        &self.origin
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_keeps_the_path_of_its_url() {
        let trust = Trust::default();
        for (url, authority, path) in
            [("http://127.0.0.1:8080/a/b/", "127.0.0.1:8080", "/a/b"), ("http://[::1]", "[::1]:80", "")]
        {
            let target = Target::new(url, &trust).expect("a target");
            assert_eq!((target.origin().authority().as_str(), target.path()), (authority, path));
        }
    }
}
