//! Cluster IPs of one family: one or more ranges (service CIDRs), each in two bands like node ports.

use super::random::Random;
use ipnet::IpNet;
use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IpError {
    #[error("range is full")]
    Full,
    #[error("provided IP is already allocated")]
    Allocated,
    #[error("the provided IP ({ip}) is not in the valid range. The range of valid IPs is {range}")]
    NotInRange { ip: IpAddr, range: String },
    #[error("the provided network does not match the current range")]
    MismatchedNetwork,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid service CIDR: {0}")]
pub struct RangeError(pub String);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    /// Name in Services and IPAddresses.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "IPv4" => Some(Self::V4),
            "IPv6" => Some(Self::V6),
            _ => None,
        }
    }

    pub fn of(ip: IpAddr) -> Self {
        if ip.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    pub fn other(self) -> Self {
        match self {
            Self::V4 => Self::V6,
            Self::V6 => Self::V4,
        }
    }
}

/// A service CIDR: its usable addresses, the lowest of which are reserved for explicit requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpRange {
    net: IpNet,
    first: u128,
    last: u128,
    static_band: u128,
}

impl IpRange {
    /// Parses `10.96.0.0/12` or `fd00::/108`; bits beyond the prefix are dropped.
    pub fn parse(cidr: &str) -> Result<Self, RangeError> {
        let reject = || RangeError(cidr.to_owned());
        let net = cidr.parse::<IpNet>().map_err(|_| reject())?.trunc();
        let family = Family::of(net.addr());
        if family == Family::V6 && net.prefix_len() < 64 {
            return Err(reject());
        }
        let hosts = 1u128 << (net.max_prefix_len() - net.prefix_len());
        let network = number(net.addr());
        // The network address and, for IPv4, the broadcast address are not allocated.
        let first = network + 1;
        let last = match family {
            Family::V4 => (network + hosts - 1).saturating_sub(1),
            Family::V6 => network + (hosts - 1),
        };
        let static_band = if hosts <= 16 { 0 } else { (hosts / 16).clamp(16, 256) };
        Ok(Self { net, first, last, static_band })
    }

    pub fn family(&self) -> Family {
        Family::of(self.net.addr())
    }

    /// Reports whether an address may be allocated from the range.
    pub fn includes(&self, ip: IpAddr) -> bool {
        self.family() == Family::of(ip) && self.contains(number(ip))
    }

    fn contains(&self, ip: u128) -> bool {
        self.first <= ip && ip <= self.last
    }

    fn network_address(&self) -> IpAddr {
        self.net.addr()
    }
}

impl std::fmt::Display for IpRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(&self.net, f)
    }
}

/// Allocated cluster IPs of a family.
///
/// ```
/// use api::allocation::ip::{IpAllocator, IpRange};
///
/// let range = IpRange::parse("10.96.0.0/24").expect("a range");
/// let mut allocator = IpAllocator::new(vec![range], 7);
/// let ip = allocator.allocate_next().expect("a free address");
/// assert!(allocator.has(ip) && allocator.allocate(ip).is_err());
/// ```
#[derive(Clone, Debug)]
pub struct IpAllocator {
    ranges: Vec<IpRange>,
    used: HashSet<u128>,
    random: Random,
}

impl IpAllocator {
    /// Ranges of another family than the first's are ignored.
    pub fn new(ranges: Vec<IpRange>, seed: u64) -> Self {
        let mut allocator = Self { ranges: Vec::new(), used: HashSet::new(), random: Random::new(seed) };
        allocator.set_ranges(ranges);
        allocator
    }

    /// Replaces the service CIDRs; allocations are retained.
    pub fn set_ranges(&mut self, mut ranges: Vec<IpRange>) {
        if let Some(family) = ranges.first().map(IpRange::family) {
            ranges.retain(|range| range.family() == family);
        }
        self.ranges = ranges;
    }

    pub fn used(&self) -> usize {
        self.used.len()
    }

    /// Service CIDRs with their numbers of allocated and of usable addresses.
    pub fn usage(&self) -> Vec<(&IpRange, usize, u128)> {
        let used = |range: &IpRange| self.used.iter().filter(|ip| range.contains(**ip)).count();
        self.ranges
            .iter()
            .map(|range| (range, used(range), range.last.saturating_sub(range.first) + 1))
            .collect()
    }

    pub fn has(&self, ip: IpAddr) -> bool {
        self.used.contains(&number(ip))
    }

    /// Allocates this address.
    pub fn allocate(&mut self, ip: IpAddr) -> Result<(), IpError> {
        let key = number(ip);
        if !self.ranges.iter().any(|range| range.family() == Family::of(ip) && range.contains(key)) {
            return Err(IpError::MismatchedNetwork);
        }
        if !self.used.insert(key) {
            return Err(IpError::Allocated);
        }
        Ok(())
    }

    /// Allocates any free address, from the upper band while it has one.
    pub fn allocate_next(&mut self) -> Result<IpAddr, IpError> {
        for range in &self.ranges {
            let split = range.first + range.static_band;
            let found = find(&self.used, &mut self.random, split, range.last).or_else(|| {
                let last = split.checked_sub(1)?;
                find(&self.used, &mut self.random, range.first, last)
            });
            if let Some(key) = found {
                self.used.insert(key);
                return Ok(address(range.family(), key));
            }
        }
        Err(IpError::Full)
    }

    /// Dry run of an explicit address: only the range is checked.
    pub fn check(&self, ip: IpAddr) -> Result<(), IpError> {
        let range = self.ranges.first().ok_or(IpError::Full)?;
        if range.family() == Family::of(ip) && range.contains(number(ip)) {
            return Ok(());
        }
        Err(IpError::NotInRange { ip, range: range.to_string() })
    }

    /// Placeholder of a dry run for a chosen address: the network address.
    pub fn placeholder(&self) -> Result<IpAddr, IpError> {
        self.ranges.first().map(IpRange::network_address).ok_or(IpError::Full)
    }

    /// Releases an address; releasing a free one is not an error.
    pub fn release(&mut self, ip: IpAddr) {
        self.used.remove(&number(ip));
    }
}

fn find(used: &HashSet<u128>, random: &mut Random, first: u128, last: u128) -> Option<u128> {
    let size = last.checked_sub(first)?.checked_add(1)?;
    let start = random.below(size);
    // At most used + 1 addresses are checked.
    let tries = size.min(used.len() as u128 + 1);
    (0..tries).map(|step| first + (start + step) % size).find(|key| !used.contains(key))
}

fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u128::from(u32::from(ip)),
        IpAddr::V6(ip) => u128::from(ip),
    }
}

fn address(family: Family, number: u128) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::from(u32::try_from(number & 0xffff_ffff).unwrap_or(0))),
        Family::V6 => IpAddr::V6(Ipv6Addr::from(number)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocator(cidrs: &[&str]) -> IpAllocator {
        let ranges = cidrs.iter().map(|cidr| IpRange::parse(cidr).expect("a valid CIDR")).collect();
        IpAllocator::new(ranges, 3)
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("a valid address")
    }

    #[test]
    fn allocate_next_uses_upper_band_first_and_each_address_once() {
        let mut ips = allocator(&["10.0.0.0/26"]);
        for nth in 0..62 {
            let IpAddr::V4(got) = ips.allocate_next().expect("addresses are left") else {
                panic!("an IPv4 range contains IPv4 addresses");
            };
            let low = got.octets()[3] <= 16;
            assert_eq!(low, nth >= 46, "{got} at {nth}");
            assert!(!matches!(got.octets()[3], 0 | 63));
        }
        assert_eq!(ips.allocate_next(), Err(IpError::Full));
        ips.release(ip("10.0.0.7"));
        assert_eq!(ips.allocate_next(), Ok(ip("10.0.0.7")));
    }

    #[test]
    fn allocate_explicit_address_checks_range_and_use() {
        let mut ips = allocator(&["10.0.0.0/16", "192.168.0.0/24"]);
        assert_eq!(ips.allocate(ip("10.0.3.3")), Ok(()));
        assert_eq!(ips.allocate(ip("10.0.3.3")), Err(IpError::Allocated));
        assert_eq!(ips.allocate(ip("192.168.0.9")), Ok(()));
        for outside in ["10.0.0.0", "10.0.255.255", "11.0.0.1", "fd00::1"] {
            assert_eq!(ips.allocate(ip(outside)), Err(IpError::MismatchedNetwork), "{outside}");
        }
        assert_eq!(
            ips.check(ip("11.0.0.1")).expect_err("out of range").to_string(),
            "the provided IP (11.0.0.1) is not in the valid range. The range of valid IPs is 10.0.0.0/16"
        );
        assert_eq!(ips.placeholder(), Ok(ip("10.0.0.0")));
    }

    #[test]
    fn ip_ranges_are_parsed_and_bounded() {
        for bad in ["10.0.0.0", "10.0.0.0/33", "x/8", "fd00::/63", ""] {
            assert!(IpRange::parse(bad).is_err(), "{bad}");
        }
        let mut ips = allocator(&["fd00::/112"]);
        let got = ips.allocate_next().expect("an address");
        assert!(got.is_ipv6());
        let mut big = allocator(&["fd00::/64"]);
        assert!(big.allocate_next().is_ok());
        assert_eq!(big.allocate(ip("fd00::ffff:ffff:ffff:ffff")), Ok(()));
        let mut none = allocator(&["10.0.0.1/32"]);
        assert_eq!(none.allocate_next(), Err(IpError::Full));
    }
}
