//! Host ports of pods: owners are recorded in a file, so that ports can be released after a crash.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sys::protocol::Protocol;

#[derive(Debug, thiserror::Error)]
pub enum PortError {
    #[error("host port {port}/{protocol} is in use by another pod ({owner:.13})")]
    Taken { port: u16, protocol: String, owner: String },
    #[error("unsupported port protocol {0:?}")]
    Protocol(String),
    #[error("invalid host IP {0:?}")]
    HostIp(String),
    #[error("failed to access host port file {0}: {1}")]
    Io(PathBuf, io::Error),
}

/// A port mapping, in CNI format.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Mapping {
    pub host_port: u16,
    pub container_port: u16,
    pub protocol: String,
    #[serde(rename = "hostIP")]
    pub host_ip: String,
}

/// An open host port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    /// Protocol number.
    pub protocol: u8,
    /// Restricts it to this address.
    pub at: Option<IpAddr>,
    pub port: u16,
    pub to: IpAddr,
    pub to_port: u16,
}

impl Open {
    fn collides(&self, other: &Self) -> bool {
        let together = match (self.at, other.at) {
            (Some(one), Some(other)) => one == other,
            _ => true,
        };
        self.protocol == other.protocol
            && self.port == other.port
            && self.to.is_ipv4() == other.to.is_ipv4()
            && together
    }
}

/// All host ports, by pod. The holder also holds the lock of the addresses.
#[derive(Debug)]
pub struct Ports {
    path: PathBuf,
    by_pod: BTreeMap<String, Vec<Open>>,
}

impl Ports {
    pub fn read(directory: &Path) -> Result<Self, PortError> {
        let path = directory.join("ports.json");
        let failed = |error| PortError::Io(path.clone(), error);
        let by_pod = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| failed(error.into()))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(failed(error)),
        };
        Ok(Self { path, by_pod })
    }

    /// Rewrites the file; removes it without ports.
    pub fn write(&self) -> Result<(), PortError> {
        let failed = |error| PortError::Io(self.path.clone(), error);
        if self.by_pod.is_empty() {
            return match std::fs::remove_file(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
                _ => Ok(()),
            };
        }
        let bytes = serde_json::to_vec(&self.by_pod).map_err(|error| failed(error.into()))?;
        let partial = self.path.with_extension("new");
        std::fs::write(&partial, bytes).and_then(|()| std::fs::rename(&partial, &self.path)).map_err(failed)
    }

    pub fn all(&self) -> impl Iterator<Item = &Open> {
        self.by_pod.values().flatten()
    }

    /// Opens ports for a pod with these addresses, replacing its previous ones.
    pub fn open(&mut self, pod: &str, mappings: &[Mapping], addresses: &[IpAddr]) -> Result<(), PortError> {
        self.by_pod.remove(pod);
        let mut found: Vec<Open> = Vec::new();
        for mapping in mappings.iter().filter(|mapping| mapping.host_port != 0) {
            let protocol = match mapping.protocol.to_ascii_uppercase().as_str() {
                "" => Some(Protocol::Tcp),
                name => Protocol::from_name(name),
            };
            let protocol = protocol.ok_or_else(|| PortError::Protocol(mapping.protocol.clone()))? as u8;
            let at: Option<IpAddr> = match mapping.host_ip.as_str() {
                "" => None,
                text => Some(text.parse().map_err(|_| PortError::HostIp(text.to_owned()))?),
            };
            let at = at.filter(|address| !address.is_unspecified());
            for to in addresses.iter().filter(|to| at.is_none_or(|at| at.is_ipv4() == to.is_ipv4())) {
                let (port, to_port) = (mapping.host_port, mapping.container_port);
                let open = Open { protocol, at, port, to: *to, to_port };
                if !found.contains(&open) {
                    found.push(open);
                }
            }
        }
        for (owner, theirs) in &self.by_pod {
            if let Some(open) = found.iter().find(|open| theirs.iter().any(|other| open.collides(other))) {
                let protocol = Protocol::from_number(open.protocol).map_or("", Protocol::lower_name);
                let (owner, protocol) = (owner.clone(), protocol.to_owned());
                return Err(PortError::Taken { port: open.port, protocol, owner });
            }
        }
        if !found.is_empty() {
            self.by_pod.insert(pod.to_owned(), found);
        }
        Ok(())
    }

    /// Closes the ports of a pod; true if it had any.
    pub fn close(&mut self, pod: &str) -> bool {
        self.by_pod.remove(pod).is_some()
    }

    /// Closes ports of pods that are not in the list; true if there were any.
    pub fn keep_only(&mut self, pods: &[String]) -> bool {
        let before = self.by_pod.len();
        self.by_pod.retain(|pod, _| pods.contains(pod));
        self.by_pod.len() != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(port: u16, protocol: &str, host_ip: &str) -> Mapping {
        Mapping { host_port: port, container_port: 80, protocol: protocol.into(), host_ip: host_ip.into() }
    }

    #[test]
    fn host_port_has_one_owner() {
        let dir = tempfile::tempdir().unwrap();
        let both: Vec<IpAddr> = vec!["10.1.0.2".parse().unwrap(), "fd00::2".parse().unwrap()];
        let mut ports = Ports::read(dir.path()).unwrap();
        ports.open("a", &[mapping(8080, "tcp", ""), mapping(0, "tcp", "")], &both).unwrap();
        assert_eq!(ports.all().count(), 2, "one per address");
        ports.open("b", &[mapping(8080, "udp", "")], &both).unwrap();
        ports.open("c", &[mapping(53, "tcp", "127.0.0.1")], &both).unwrap();
        ports.open("d", &[mapping(53, "tcp", "192.0.2.1")], &both).unwrap();
        for (bad, host_ip) in [("tcp", ""), ("tcp", "127.0.0.1"), ("icmp", ""), ("tcp", "x")] {
            let port = if host_ip.is_empty() { 8080 } else { 53 };
            assert!(ports.open("e", &[mapping(port, bad, host_ip)], &both).is_err(), "{bad} {host_ip}");
        }
        ports.write().unwrap();
        let mut again = Ports::read(dir.path()).unwrap();
        assert_eq!(again.all().count(), ports.all().count());
        assert!(again.close("a") && !again.close("a"));
        assert!(again.keep_only(&["b".to_owned()]));
        assert!(again.close("b"));
        again.write().unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
