//! Address blocks with exceptions, as disjoint ranges.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// Ranges of one family, in order, both ends included.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ranges {
    pub v6: bool,
    ranges: Vec<(u128, u128)>,
}

impl Ranges {
    /// The block of a CIDR without those of `except`; `None` if the block is invalid. Invalid exceptions, which the
    /// API server rejects, are ignored.
    #[must_use]
    pub fn new(block: &str, except: &[String]) -> Option<Self> {
        let (v6, first, last) = parse(block)?;
        let mut holes: Vec<(u128, u128)> = except
            .iter()
            .filter_map(|text| parse(text))
            .filter(|(family, ..)| *family == v6)
            .map(|(_, first, last)| (first, last))
            .collect();
        holes.sort_unstable();
        let mut ranges = Vec::new();
        // Start of the next range; `None` after the last address.
        let mut from = Some(first);
        for (hole, end) in holes {
            let Some(begin) = from.filter(|begin| *begin <= last) else { break };
            if hole > begin {
                ranges.push((begin, (hole - 1).min(last)));
            }
            from = end.checked_add(1).map(|next| next.max(begin));
        }
        ranges.extend(from.filter(|begin| *begin <= last).map(|begin| (begin, last)));
        Some(Self { v6, ranges })
    }

    /// Union of several, one per family.
    #[must_use]
    pub fn union(all: Vec<Self>) -> Vec<Self> {
        [false, true]
            .into_iter()
            .filter_map(|v6| {
                let family: Vec<&Self> = all.iter().filter(|ranges| ranges.v6 == v6).collect();
                let mut ranges: Vec<(u128, u128)> =
                    family.iter().flat_map(|ranges| ranges.ranges.iter().copied()).collect();
                ranges.sort_unstable();
                let mut joined: Vec<(u128, u128)> = Vec::new();
                for (first, last) in ranges {
                    match joined.last_mut() {
                        // Adjacent ranges are merged too: the kernel rejects an interval that ends where another
                        // begins.
                        Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
                        _ => joined.push((first, last)),
                    }
                }
                (!family.is_empty()).then_some(Self { v6, ranges: joined })
            })
            .collect()
    }

    /// First address of each range, and the address after its last one unless that is the end of the address space.
    pub fn bounds(&self) -> impl Iterator<Item = (IpAddr, Option<IpAddr>)> {
        let end = if self.v6 { u128::MAX } else { u128::from(u32::MAX) };
        self.ranges
            .iter()
            .map(move |(first, last)| (self.address(*first), (*last < end).then(|| self.address(last + 1))))
    }

    fn address(&self, bits: u128) -> IpAddr {
        if self.v6 {
            return Ipv6Addr::from_bits(bits).into();
        }
        Ipv4Addr::from_bits(u32::try_from(bits).unwrap_or(u32::MAX)).into()
    }
}

/// IPv6 flag, first and last address.
fn parse(text: &str) -> Option<(bool, u128, u128)> {
    Some(match text.trim().parse().ok()? {
        IpNet::V4(block) => (false, block.network().to_bits().into(), block.broadcast().to_bits().into()),
        IpNet::V6(block) => (true, block.network().to_bits(), block.broadcast().to_bits()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(block: &str, except: &[&str]) -> Vec<String> {
        let except: Vec<String> = except.iter().map(|text| (*text).to_owned()).collect();
        let ranges = Ranges::new(block, &except).expect("a block");
        let end = |end: Option<IpAddr>| end.map_or("end".to_owned(), |end| end.to_string());
        ranges.bounds().map(|(first, behind)| format!("{first} {}", end(behind))).collect()
    }

    #[test]
    fn blocks_are_merged_per_family() {
        let all = ["10.0.0.0/25", "10.0.0.128/25", "10.0.0.64/26", "10.0.2.0/24", "fd00::/8"];
        let all: Vec<Ranges> = all.iter().filter_map(|text| Ranges::new(text, &[])).collect();
        let texts: Vec<Vec<String>> = Ranges::union(all)
            .iter()
            .map(|ranges| ranges.bounds().map(|(first, _)| first.to_string()).collect())
            .collect();
        assert_eq!(texts, [vec!["10.0.0.0", "10.0.2.0"], vec!["fd00::"]]);
        assert_eq!(Ranges::union(vec![]), vec![]);
    }

    #[test]
    fn except_splits_block_into_ranges() {
        assert_eq!(texts("10.0.0.7/8", &[]), ["10.0.0.0 11.0.0.0"]);
        assert_eq!(texts("0.0.0.0/0", &[]), ["0.0.0.0 end"]);
        assert_eq!(
            texts("0.0.0.0/0", &["255.0.0.0/8", "10.0.0.0/8"]),
            ["0.0.0.0 10.0.0.0", "11.0.0.0 255.0.0.0"]
        );
        assert_eq!(texts("10.0.0.0/24", &["10.0.0.0/25"]), ["10.0.0.128 10.0.1.0"]);
        assert_eq!(texts("10.0.0.0/24", &["10.0.0.0/24"]), Vec::<String>::new());
        // Exceptions within exceptions, outside the block, of the other family.
        assert_eq!(
            texts("10.0.0.0/24", &["10.0.0.64/26", "10.0.0.64/27", "11.0.0.0/8", "fd00::/8", "x"]),
            ["10.0.0.0 10.0.0.64", "10.0.0.128 10.0.1.0"]
        );
        assert_eq!(texts("::/0", &["8000::/1"]), [":: 8000::"]);
        assert_eq!(texts("ffff::/16", &["ffff::/17"]), ["ffff:8000:: end"]);
        for bad in ["10.0.0.0", "10.0.0.0/33", "x/8", "fd00::/129", ""] {
            assert_eq!(Ranges::new(bad, &[]), None, "{bad}");
        }
    }
}
