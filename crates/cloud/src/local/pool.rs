//! Address ranges of which every service gets one address per family.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use objects::core::v1::Service;

use super::has_family;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PoolError {
    #[error("invalid range {0:?}: expected the form 192.0.2.10-192.0.2.20 or 192.0.2.0/28")]
    Range(String),
    #[error("{0} is not in the load balancer range")]
    Outside(IpAddr),
    #[error("{0} is not a valid IP address")]
    Address(String),
    #[error("{0} is allocated to another service")]
    Taken(IpAddr),
    #[error("the load balancer range is exhausted")]
    Exhausted,
}

/// Ranges, both ends inclusive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    ranges: Vec<(IpAddr, IpAddr)>,
}

impl Pool {
    /// Parses texts such as `192.0.2.10-192.0.2.20`, `192.0.2.0/28` or a single address.
    pub fn parse(texts: &[String]) -> Result<Self, PoolError> {
        let ranges =
            texts.iter().map(|text| range(text.trim()).ok_or_else(|| PoolError::Range(text.clone())));
        Ok(Self { ranges: ranges.collect::<Result<_, _>>()? })
    }

    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let same = |first: &IpAddr| first.is_ipv4() == address.is_ipv4();
        self.ranges.iter().any(|(first, last)| same(first) && *first <= address && address <= *last)
    }

    /// Addresses of a service: its current ones, if they are still in the pool and free; the requested one; or the
    /// first free one of each of its families.
    pub fn choose(
        &self,
        service: &Service,
        held: &[IpAddr],
        used: &BTreeSet<IpAddr>,
    ) -> Result<Vec<IpAddr>, PoolError> {
        let spec = service.spec.as_ref();
        let wanted = spec.and_then(|spec| spec.load_balancer_ip.as_deref()).filter(|text| !text.is_empty());
        if let Some(text) = wanted {
            let address: IpAddr = text.parse().map_err(|_| PoolError::Address(text.to_owned()))?;
            if !self.contains(address) {
                return Err(PoolError::Outside(address));
            }
            return if used.contains(&address) { Err(PoolError::Taken(address)) } else { Ok(vec![address]) };
        }
        let mut chosen = Vec::new();
        for v4 in [true, false] {
            let ours = |address: &IpAddr| {
                address.is_ipv4() == v4 && has_family(service, *address) && !used.contains(address)
            };
            let retained = held.iter().copied().find(|address| self.contains(*address) && ours(address));
            chosen.extend(retained.or_else(|| self.addresses(v4).find(ours)));
        }
        if chosen.is_empty() { Err(PoolError::Exhausted) } else { Ok(chosen) }
    }

    fn addresses(&self, v4: bool) -> impl Iterator<Item = IpAddr> {
        let ranges = self.ranges.iter().filter(move |(first, _)| first.is_ipv4() == v4);
        ranges.flat_map(|(first, last)| {
            let (begin, end) = (bits(*first), bits(*last));
            let v4 = first.is_ipv4();
            (begin..=end).map(move |bits| address(bits, v4))
        })
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn address(bits: u128, v4: bool) -> IpAddr {
    if v4 { IpAddr::V4((bits as u32).into()) } else { IpAddr::V6(bits.into()) }
}

fn range(text: &str) -> Option<(IpAddr, IpAddr)> {
    if let Some((first, last)) = text.split_once('-') {
        let (first, last): (IpAddr, IpAddr) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        return (first.is_ipv4() == last.is_ipv4() && first <= last).then_some((first, last));
    }
    if let Ok(single) = text.parse::<IpAddr>() {
        return Some((single, single));
    }
    Some(match text.parse().ok()? {
        // Excludes the network and broadcast addresses of an IPv4 network.
        IpNet::V4(range) if range.prefix_len() < 31 => {
            let (first, last) = (range.network().to_bits() + 1, range.broadcast().to_bits() - 1);
            (Ipv4Addr::from_bits(first).into(), Ipv4Addr::from_bits(last).into())
        }
        range => (range.network(), range.broadcast()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pool(texts: &[&str]) -> Result<Pool, PoolError> {
        Pool::parse(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>())
    }

    fn service(families: &[&str], wanted: &str) -> Service {
        serde_json::from_value(json!({ "spec": { "ipFamilies": families, "loadBalancerIP": wanted } }))
            .expect("a service")
    }

    #[test]
    fn pool_ranges_are_parsed() {
        for bad in ["", "x", "10.0.0.2-10.0.0.1", "10.0.0.1-fd00::1", "10.0.0.0/33"] {
            assert!(pool(&[bad]).is_err(), "{bad}");
        }
        let all =
            pool(&["192.0.2.8/30", "192.0.2.20-192.0.2.21", "192.0.2.30", "fd00::/126"]).expect("a pool");
        let texts: Vec<String> = all.addresses(true).map(|address| address.to_string()).collect();
        assert_eq!(texts, ["192.0.2.9", "192.0.2.10", "192.0.2.20", "192.0.2.21", "192.0.2.30"]);
        assert_eq!(all.addresses(false).count(), 4);
        assert!(all.contains([192, 0, 2, 20].into()) && !all.contains([192, 0, 2, 22].into()));
    }

    #[test]
    fn service_gets_one_pool_address_and_keeps_it() {
        let pool = pool(&["192.0.2.1-192.0.2.3", "fd00::1-fd00::9"]).expect("a pool");
        let (first, second): (IpAddr, IpAddr) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        let v6: IpAddr = "fd00::1".parse().expect("an address");
        let none = BTreeSet::new();
        assert_eq!(pool.choose(&service(&["IPv4"], ""), &[], &none), Ok(vec![first]));
        assert_eq!(pool.choose(&service(&["IPv4", "IPv6"], ""), &[], &[first].into()), Ok(vec![second, v6]));
        assert_eq!(pool.choose(&service(&["IPv4"], ""), &[second], &none), Ok(vec![second]));
        assert_eq!(pool.choose(&service(&["IPv4"], ""), &[[10, 0, 0, 1].into()], &none), Ok(vec![first]));
        assert_eq!(pool.choose(&service(&["IPv4"], "192.0.2.2"), &[], &none), Ok(vec![second]));
        let requests = |text, used: &[IpAddr]| {
            pool.choose(&service(&["IPv4"], text), &[], &used.iter().copied().collect())
        };
        assert_eq!(requests("192.0.2.2", &[second]), Err(PoolError::Taken(second)));
        assert_eq!(requests("192.0.2.9", &[]), Err(PoolError::Outside([192, 0, 2, 9].into())));
        assert_eq!(requests("x", &[]), Err(PoolError::Address("x".to_owned())));
        let all: Vec<IpAddr> = pool.addresses(true).collect();
        assert_eq!(requests("", &all), Err(PoolError::Exhausted));
    }
}
