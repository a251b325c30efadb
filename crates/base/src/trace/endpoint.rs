//! Addresses of collectors, in Kubernetes' form and as URLs.

use crate::egress::Network;
use crate::http::{Origin, Trust};

/// Endpoint of a collector on this machine, Kubernetes' default.
pub const DEFAULT_ENDPOINT: &str = "localhost:4317";
const DEFAULT_PORT: u16 = 4317;

/// Reason why a text names no collector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    #[error("unsupported scheme: {0}. Options are none, dns, unix, unix-abstract, http, or https")]
    Scheme(String),
    #[error("{0:?} is not a host with an optional port")]
    Host(String),
    #[error("{0:?} is not a URL")]
    Url(String),
}

/// A collector: `host:port`, `dns:///host:port`, `unix:///path` or `unix-abstract://name` for OTLP over gRPC without TLS;
/// `http://host:port` or `https://host:port` for gRPC; the same with a path for OTLP over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub(super) text: String,
    pub(super) target: Target,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Host {
        host: String,
        port: u16,
    },
    Unix(String),
    /// Scheme and authority.
    Url(String),
    /// Scheme and authority; path and query.
    Http(String, String),
}

impl Default for Endpoint {
    fn default() -> Self {
        let target = Target::Host { host: "localhost".to_owned(), port: DEFAULT_PORT };
        Self { text: DEFAULT_ENDPOINT.to_owned(), target }
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::str::FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let (scheme, rest) = text.split_once("//").unwrap_or(("dns:", text));
        let target = match scheme {
            // gRPC's form has the authority of a DNS server before the path.
            "dns:" => host(rest.rsplit('/').next().unwrap_or_default())?,
            "unix:" if !rest.is_empty() => Target::Unix(rest.to_owned()),
            "unix-abstract:" if !rest.is_empty() => Target::Unix(format!("\0{rest}")),
            "http:" | "https:" => url(text)?,
            other => return Err(EndpointError::Scheme(other.trim_end_matches(':').to_owned())),
        };
        Ok(Self { text: text.to_owned(), target })
    }
}

impl Endpoint {
    /// Server of the collector. It is in the control plane's network, as in Kubernetes.
    pub(super) fn origin(&self) -> Result<Origin, crate::http::OriginError> {
        let origin = match &self.target {
            Target::Host { host, port } => Origin::plain(host, *port),
            Target::Unix(path) => Origin::unix(path),
            Target::Url(base) | Target::Http(base, _) => Origin::of_url(base, &Trust::default())?,
        };
        Ok(origin.on(Network::ControlPlane))
    }

    /// Path of OTLP over HTTP; `None` for gRPC.
    pub(super) fn path(&self) -> Option<&str> {
        match &self.target {
            Target::Http(_, path) => Some(path),
            _ => None,
        }
    }
}

fn host(text: &str) -> Result<Target, EndpointError> {
    let bad = || EndpointError::Host(text.to_owned());
    let authority: http::uri::Authority = text.parse().map_err(|_| bad())?;
    let has_port = text.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
    let port = authority.port_u16();
    if authority.host().is_empty() || text.contains('@') || (has_port && port.is_none()) {
        return Err(bad());
    }
    Ok(Target::Host { host: authority.host().to_owned(), port: port.unwrap_or(DEFAULT_PORT) })
}

fn url(text: &str) -> Result<Target, EndpointError> {
    let bad = || EndpointError::Url(text.to_owned());
    let uri: http::Uri = text.parse().map_err(|_| bad())?;
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else { return Err(bad()) };
    if authority.host().is_empty() || authority.as_str().contains('@') {
        return Err(bad());
    }
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    if path != "/" {
        return Ok(Target::Http(format!("{scheme}://{authority}"), path.to_owned()));
    }
    // The port of OTLP, not that of the web.
    let port = authority.port_u16().unwrap_or(DEFAULT_PORT);
    Ok(Target::Url(format!("{scheme}://{}:{port}", authority.host())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_forms_are_parsed() {
        let host = |host: &str, port| Target::Host { host: host.to_owned(), port };
        for (text, want) in [
            (DEFAULT_ENDPOINT, host("localhost", 4317)),
            ("collector", host("collector", 4317)),
            ("dns:///collector:55", host("collector", 55)),
            ("dns://10.0.0.1/collector:55", host("collector", 55)),
            ("[::1]:9", host("[::1]", 9)),
            ("unix:///run/otel.sock", Target::Unix("/run/otel.sock".to_owned())),
            ("unix-abstract://otel", Target::Unix("\0otel".to_owned())),
            ("http://c:4317", Target::Url("http://c:4317".to_owned())),
            ("https://c", Target::Url("https://c:4317".to_owned())),
            ("http://c:4318/v1/traces", Target::Http("http://c:4318".to_owned(), "/v1/traces".to_owned())),
            ("https://c/v1/traces?k=1", Target::Http("https://c".to_owned(), "/v1/traces?k=1".to_owned())),
        ] {
            let endpoint: Endpoint = text.parse().expect(text);
            assert_eq!(endpoint.target, want, "{text}");
        }
        assert_eq!(DEFAULT_ENDPOINT.parse::<Endpoint>().expect("the default"), Endpoint::default());
    }

    #[test]
    fn endpoint_malformed_is_rejected() {
        for text in [
            "",
            ":4317",
            "a b",
            "host:port",
            "host:99999",
            "user@host:1",
            "ftp://host",
            "unix://",
            "http://",
            "http://user:secret@host/v1/traces",
            "dns:///",
            "x//y",
        ] {
            assert!(text.parse::<Endpoint>().is_err(), "{text:?}");
        }
    }
}
