//! Addresses of pods on this node: one file per address in use, named after it, with the owner in it.

use std::fs::File;
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::{FlockOperation, flock};

#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    #[error("{0:?} is no address range")]
    Range(String),
    #[error("no address is free in {0}")]
    Full(String),
    #[error("address files in {0}")]
    Io(PathBuf, #[source] io::Error),
}

/// A range of addresses; its first is the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    pub base: IpAddr,
    pub prefix: u8,
}

impl FromStr for Range {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let wrong = || AddressError::Range(text.to_owned());
        let (address, prefix) = text.split_once('/').ok_or_else(wrong)?;
        let base: IpAddr = address.parse().map_err(|_| wrong())?;
        let prefix: u8 = prefix.parse().map_err(|_| wrong())?;
        // Two addresses for hosts at least.
        let width = if base.is_ipv4() { 32 } else { 128 };
        if prefix > width - 2 {
            return Err(wrong());
        }
        let mask = u128::MAX.checked_shl(u32::from(width - prefix)).unwrap_or(0);
        let base = from_number(number(base) & mask, base.is_ipv4());
        Ok(Self { base, prefix })
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    }
}

pub fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn from_number(number: u128, v4: bool) -> IpAddr {
    if v4 {
        IpAddr::V4(Ipv4Addr::from(u32::try_from(number & u128::from(u32::MAX)).unwrap_or(0)))
    } else {
        IpAddr::V6(Ipv6Addr::from(number))
    }
}

impl Range {
    #[must_use]
    pub fn gateway(&self) -> IpAddr {
        from_number(number(self.base) + 1, self.base.is_ipv4())
    }

    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let width: u32 = if self.base.is_ipv4() { 32 } else { 128 };
        let mask = u128::MAX.checked_shl(width - u32::from(self.prefix)).unwrap_or(0);
        address.is_ipv4() == self.base.is_ipv4() && number(address) & mask == number(self.base) & mask
    }

    /// Its mask and its first address, as bytes.
    #[must_use]
    pub fn mask_and_network(&self) -> (Vec<u8>, Vec<u8>) {
        let width: u32 = if self.base.is_ipv4() { 32 } else { 128 };
        let mask = u128::MAX.checked_shl(width - u32::from(self.prefix)).unwrap_or(0);
        (octets(from_number(mask, self.base.is_ipv4())), octets(self.base))
    }

    /// The range that the pods of all nodes are in, unless somebody says another: nodes usually have neighbours that
    /// differ in one byte, or two where addresses are long.
    #[must_use]
    pub fn around(&self) -> Self {
        let wider = self.prefix.saturating_sub(if self.base.is_ipv4() { 8 } else { 16 });
        let width: u32 = if self.base.is_ipv4() { 32 } else { 128 };
        let mask = u128::MAX.checked_shl(width - u32::from(wider)).unwrap_or(0);
        Self { base: from_number(number(self.base) & mask, self.base.is_ipv4()), prefix: wider }
    }

    /// How many addresses pods can have: not the network's, the gateway's or the broadcast one.
    fn size(&self) -> u128 {
        let width: u32 = if self.base.is_ipv4() { 32 } else { 128 };
        (1_u128 << (width - u32::from(self.prefix)).min(64)) - 3
    }

    /// The pods' addresses, beginning after `last`, around to it.
    fn after(&self, last: Option<IpAddr>) -> impl Iterator<Item = IpAddr> {
        let (first, size, v4) = (number(self.base) + 2, self.size(), self.base.is_ipv4());
        let start =
            last.filter(|last| self.contains(*last)).map_or(0, |last| number(last).wrapping_sub(first) + 1);
        (0..size.min(1 << 20)).map(move |step| from_number(first + (start.wrapping_add(step)) % size, v4))
    }
}

/// The addresses in use, held by one process at a time.
#[derive(Debug)]
pub struct Book {
    directory: PathBuf,
    _lock: File,
}

impl Book {
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

    /// Takes an address for `owner`; asked again it answers the same. Addresses come around as late as possible, so
    /// that nobody takes a new pod for the one before.
    pub fn take(&self, range: &Range, owner: &str) -> Result<IpAddr, AddressError> {
        if let Some(has) = self.of(owner)?.into_iter().find(|address| range.contains(*address)) {
            return Ok(has);
        }
        let last_file = self.directory.join(if range.base.is_ipv4() { "last4" } else { "last6" });
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
        Err(AddressError::Full(format!("{}/{}", range.base, range.prefix)))
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

    /// The addresses of an owner.
    pub fn of(&self, owner: &str) -> Result<Vec<IpAddr>, AddressError> {
        Ok(self.list()?.into_iter().filter(|(_, found)| found == owner).map(|(address, _)| address).collect())
    }

    /// Gives back all addresses of an owner.
    pub fn give_back(&self, owner: &str) -> Result<(), AddressError> {
        for address in self.of(owner)? {
            std::fs::remove_file(self.directory.join(address.to_string())).map_err(self.failed())?;
        }
        Ok(())
    }

    /// Gives back what belongs to nobody in `owners`.
    pub fn keep_only(&self, owners: &[String]) -> Result<(), AddressError> {
        for (_, owner) in self.list()? {
            if !owners.contains(&owner) {
                self.give_back(&owner)?;
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
    fn ranges() {
        let range: Range = "10.1.2.3/24".parse().unwrap();
        assert_eq!((range.base, range.gateway(), range.size()), (ip("10.1.2.0"), ip("10.1.2.1"), 253));
        assert!(
            range.contains(ip("10.1.2.255")) && !range.contains(ip("10.1.3.0")) && !range.contains(ip("::1"))
        );
        assert_eq!(range.mask_and_network(), (vec![255, 255, 255, 0], vec![10, 1, 2, 0]));
        assert_eq!(range.around(), "10.1.0.0/16".parse().unwrap());
        let six: Range = "fd00:1::/64".parse().unwrap();
        assert_eq!(six.around(), "fd00:1::/48".parse().unwrap());
        assert_eq!(six.after(None).next(), Some(ip("fd00:1::2")));
        for bad in ["", "10.0.0.0", "10.0.0.0/31", "10.0.0.0/33", "x/24", "fd00::/127"] {
            assert!(bad.parse::<Range>().is_err(), "{bad}");
        }
    }

    #[test]
    fn addresses_come_around_late() {
        let dir = tempfile::tempdir().unwrap();
        let range: Range = "10.1.0.0/29".parse().unwrap();
        let book = Book::open(dir.path()).unwrap();
        assert_eq!(book.take(&range, "a").unwrap(), ip("10.1.0.2"));
        assert_eq!(book.take(&range, "a").unwrap(), ip("10.1.0.2"), "asked again");
        assert_eq!(book.take(&range, "b").unwrap(), ip("10.1.0.3"));
        book.give_back("a").unwrap();
        for (owner, address) in [("c", "10.1.0.4"), ("d", "10.1.0.5"), ("e", "10.1.0.6"), ("f", "10.1.0.2")] {
            assert_eq!(book.take(&range, owner).unwrap(), ip(address));
        }
        assert!(matches!(book.take(&range, "g"), Err(AddressError::Full(_))));
        book.keep_only(&["b".to_owned()]).unwrap();
        assert_eq!(book.list().unwrap(), [(ip("10.1.0.3"), "b".to_owned())]);
    }
}
