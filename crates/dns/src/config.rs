//! Configuration of the server.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use crate::wire::{Name, NameError};

/// Settings of one server.
#[derive(Clone, Debug)]
pub struct Config {
    /// Addresses to serve on, UDP and TCP. Not wildcards: the reply must have the address that the client used.
    pub listen: Vec<SocketAddr>,
    pub domain: String,
    /// TTL of records of the cluster, in seconds.
    pub ttl: u32,
    /// Address of this server for clients in the cluster.
    pub service_addresses: Vec<IpAddr>,
    /// Upstream servers for names outside the cluster.
    pub upstreams: Vec<SocketAddr>,
    /// Stub domains with their own servers.
    pub stub_domains: Vec<StubDomain>,
    /// Number of cached replies, and their longest TTL in seconds.
    pub cache_entries: usize,
    pub cache_ttl: u32,
    /// Ranges of admitted clients: pods, services and nodes. Empty admits all.
    pub clients: Vec<ipnet::IpNet>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StubDomain {
    pub domain: Name,
    pub servers: Vec<SocketAddr>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            domain: "cluster.local".to_owned(),
            ttl: 30,
            service_addresses: Vec::new(),
            upstreams: Vec::new(),
            stub_domains: Vec::new(),
            cache_entries: 10_000,
            cache_ttl: 30,
            clients: Vec::new(),
        }
    }
}

impl StubDomain {
    /// From `domain=server[,server…]`.
    pub fn parse(text: &str) -> Result<Self, StubError> {
        let (domain, servers) = text.split_once('=').ok_or(StubError::NoServers)?;
        let domain = Name::parse(domain).map_err(StubError::Domain)?;
        let servers = servers.split(',').map(server).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { domain, servers })
    }
}

/// Error of a stub domain.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum StubError {
    #[error("expected DOMAIN=ADDRESS[,ADDRESS...]")]
    NoServers,
    #[error("invalid domain name")]
    Domain(#[source] NameError),
    #[error("{0:?} is not an address such as 10.0.0.53 or 10.0.0.53:5353")]
    Server(String),
}

fn server(text: &str) -> Result<SocketAddr, StubError> {
    let text = text.trim();
    text.parse()
        .or_else(|_| text.parse::<IpAddr>().map(|address| SocketAddr::new(address, 53)))
        .map_err(|_| StubError::Server(text.to_owned()))
}

/// Name servers of a `resolv.conf`, without those in `own`: forwarding to itself would loop.
pub fn upstreams_from(path: &Path, own: &[SocketAddr]) -> std::io::Result<Vec<SocketAddr>> {
    let text = std::fs::read_to_string(path)?;
    Ok(upstreams_in(&text).into_iter().filter(|server| !own.contains(server)).collect())
}

fn upstreams_in(text: &str) -> Vec<SocketAddr> {
    text.lines()
        .filter_map(|line| {
            let mut fields = line.split_whitespace();
            if fields.next()? != "nameserver" {
                return None;
            }
            // The zone of a link-local address is not supported by the address parser.
            let address = fields.next()?.split('%').next()?;
            Some(SocketAddr::new(address.parse().ok()?, 53))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolv_conf_yields_name_servers_except_own() {
        let text = "# comment\nsearch example.org\nnameserver 192.0.2.1\nnameserver 2001:db8::1\nnameserver what\noptions ndots:5\n";
        let got: Vec<String> = upstreams_in(text).iter().map(ToString::to_string).collect();
        assert_eq!(got, ["192.0.2.1:53", "[2001:db8::1]:53"]);
    }

    #[test]
    fn stub_domain_parses_servers_and_rejects_invalid() {
        let stub = StubDomain::parse("corp.example=10.0.0.53,10.0.0.54:5353").expect("a stub domain");
        assert_eq!(stub.domain.to_string(), "corp.example.");
        assert_eq!(stub.servers.len(), 2);
        assert_eq!(StubDomain::parse("corp.example"), Err(StubError::NoServers));
        assert_eq!(StubDomain::parse("corp.example=x"), Err(StubError::Server("x".to_owned())));
    }
}
