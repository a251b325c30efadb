//! Pod addresses of this node: one file per address in use, named after it, with the owner as content.

use std::fs::File;
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use ipnet::IpNet;
use rustix::fs::{FlockOperation, flock};

#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    #[error("invalid address range {0:?}")]
    Range(String),
    #[error("no free address in {0}")]
    Full(String),
    #[error("failed to access address files in {0}")]
    Io(PathBuf, #[source] io::Error),
}

/// A range of pod addresses; its first address is the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodRange(IpNet);

impl FromStr for PodRange {
    type Err = AddressError;

    /// Parses a CIDR with at least two host addresses; host bits are cleared.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        let range =
            text.parse::<IpNet>().ok().filter(|range| range.max_prefix_len() - range.prefix_len() >= 2);
        range.map(|range| Self(range.trunc())).ok_or_else(|| AddressError::Range(text.to_owned()))
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    }
}

fn from_number(number: u128, v4: bool) -> IpAddr {
    if v4 {
        IpAddr::V4(Ipv4Addr::from(u32::try_from(number & u128::from(u32::MAX)).unwrap_or(0)))
    } else {
        IpAddr::V6(Ipv6Addr::from(number))
    }
}

impl PodRange {
    #[must_use]
    pub fn cidr(&self) -> IpNet {
        self.0
    }

    #[must_use]
    pub fn is_ipv4(&self) -> bool {
        self.0.addr().is_ipv4()
    }

    #[must_use]
    pub fn gateway(&self) -> IpAddr {
        from_number(number(self.0.addr()) + 1, self.is_ipv4())
    }

    /// Default cluster range of pods: node ranges usually differ in one byte, or two for IPv6.
    #[must_use]
    pub fn around(&self) -> IpNet {
        let wider = self.0.prefix_len().saturating_sub(if self.is_ipv4() { 8 } else { 16 });
        IpNet::new(self.0.addr(), wider).map_or(self.0, |range| range.trunc())
    }

    /// Number of pod addresses: excludes the network, gateway and broadcast ones.
    fn size(&self) -> u128 {
        (1_u128 << (self.0.max_prefix_len() - self.0.prefix_len()).min(64)) - 3
    }

    /// Pod addresses, starting after `last` and wrapping around to it.
    fn after(&self, last: Option<IpAddr>) -> impl Iterator<Item = IpAddr> {
        let (first, size, v4) = (number(self.0.addr()) + 2, self.size(), self.is_ipv4());
        let start =
            last.filter(|last| self.0.contains(last)).map_or(0, |last| number(last).wrapping_sub(first) + 1);
        (0..size.min(1 << 20)).map(move |step| from_number(first + (start.wrapping_add(step)) % size, v4))
    }
}

/// Addresses in use, locked by one process at a time.
#[derive(Debug)]
pub struct AddressBook {
    directory: PathBuf,
    _lock: File,
}

impl AddressBook {
    pub fn open(directory: &Path) -> Result<Self, AddressError> {
        let failed = |error: io::Error| AddressError::Io(directory.to_owned(), error);
        std::fs::create_dir_all(directory).map_err(failed)?;
        let lock = File::create(directory.join("lock")).map_err(failed)?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|error| failed(error.into()))?;
        Ok(Self { directory: directory.to_owned(), _lock: lock })
    }

    fn failed(&self) -> impl Fn(io::Error) -> AddressError {
        let directory = self.directory.clone();
        move |error| AddressError::Io(directory.clone(), error)
    }

    /// Allocates an address for `owner`; idempotent. Addresses are reused as late as possible, so that a new pod is
    /// not mistaken for an old one.
    pub fn take(&self, range: &PodRange, owner: &str) -> Result<IpAddr, AddressError> {
        if let Some(has) = self.of(owner)?.into_iter().find(|address| range.0.contains(address)) {
            return Ok(has);
        }
        let last_file = self.directory.join(if range.is_ipv4() { "last4" } else { "last6" });
        let last = std::fs::read_to_string(&last_file).ok().and_then(|text| text.trim().parse().ok());
        for address in range.after(last) {
            let made =
                File::options().write(true).create_new(true).open(self.directory.join(address.to_string()));
            match made {
                Ok(mut file) => {
                    file.write_all(owner.as_bytes()).map_err(self.failed())?;
                    std::fs::write(&last_file, address.to_string()).map_err(self.failed())?;
                    return Ok(address);
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(self.failed()(error)),
            }
        }
        Err(AddressError::Full(range.0.to_string()))
    }

    /// All addresses with their owners.
    pub fn list(&self) -> Result<Vec<(IpAddr, String)>, AddressError> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&self.directory).map_err(self.failed())? {
            let entry = entry.map_err(self.failed())?;
            if let Ok(address) = entry.file_name().to_string_lossy().parse() {
                found.push((address, std::fs::read_to_string(entry.path()).map_err(self.failed())?));
            }
        }
        found.sort();
        Ok(found)
    }

    /// Addresses of an owner.
    pub fn of(&self, owner: &str) -> Result<Vec<IpAddr>, AddressError> {
        Ok(self.list()?.into_iter().filter(|(_, found)| found == owner).map(|(address, _)| address).collect())
    }

    /// Releases all addresses of an owner.
    pub fn release_owner(&self, owner: &str) -> Result<(), AddressError> {
        for address in self.of(owner)? {
            std::fs::remove_file(self.directory.join(address.to_string())).map_err(self.failed())?;
        }
        Ok(())
    }

    /// Releases addresses whose owner is not in `owners`.
    pub fn keep_only(&self, owners: &[String]) -> Result<(), AddressError> {
        for (_, owner) in self.list()? {
            if !owners.contains(&owner) {
                self.release_owner(&owner)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn range_is_parsed_and_widened() {
        let range: PodRange = "10.1.2.3/24".parse().unwrap();
        assert_eq!(range.cidr(), "10.1.2.0/24".parse().unwrap());
        assert_eq!((range.gateway(), range.size()), (ip("10.1.2.1"), 253));
        assert_eq!(range.around(), "10.1.0.0/16".parse().unwrap());
        let six: PodRange = "fd00:1::/64".parse().unwrap();
        assert_eq!(six.around(), "fd00:1::/48".parse().unwrap());
        assert_eq!(six.after(None).next(), Some(ip("fd00:1::2")));
        for bad in ["", "10.0.0.0", "10.0.0.0/31", "10.0.0.0/33", "x/24", "fd00::/127"] {
            assert!(bad.parse::<PodRange>().is_err(), "{bad}");
        }
    }

    #[test]
    fn released_address_is_reused_last() {
        let dir = tempfile::tempdir().unwrap();
        let range: PodRange = "10.1.0.0/29".parse().unwrap();
        let book = AddressBook::open(dir.path()).unwrap();
        assert_eq!(book.take(&range, "a").unwrap(), ip("10.1.0.2"));
        assert_eq!(book.take(&range, "a").unwrap(), ip("10.1.0.2"), "idempotent");
        assert_eq!(book.take(&range, "b").unwrap(), ip("10.1.0.3"));
        book.release_owner("a").unwrap();
        for (owner, address) in [("c", "10.1.0.4"), ("d", "10.1.0.5"), ("e", "10.1.0.6"), ("f", "10.1.0.2")] {
            assert_eq!(book.take(&range, owner).unwrap(), ip(address));
        }
        assert!(matches!(book.take(&range, "g"), Err(AddressError::Full(_))));
        book.keep_only(&["b".to_owned()]).unwrap();
        assert_eq!(book.list().unwrap(), [(ip("10.1.0.3"), "b".to_owned())]);
    }
}
