//! Names that a cluster uses on its machine: nftables tables, iptables chains, links, cgroups and routes.
//!
//! Clusters share a machine, so every name carries the identity of the cluster's data directory. The main instance, of
//! the default data directory and of components that run alone, has names without an identity.

use std::path::Path;

/// Identity of a cluster on its machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Instance(Option<u32>);

impl Instance {
    /// The instance with names without an identity.
    pub const MAIN: Self = Self(None);

    /// The instance with this identity; 0 is the main instance.
    #[must_use]
    pub const fn new(identity: u32) -> Self {
        Self(if identity == 0 { None } else { Some(identity) })
    }

    /// The instance of a data directory, which is not the default one.
    #[must_use]
    pub fn of_directory(directory: &Path) -> Self {
        Self::new(fingerprint(directory.as_os_str().as_encoded_bytes()))
    }

    /// The identity; 0 for the main instance.
    #[must_use]
    pub fn identity(self) -> u32 {
        self.0.unwrap_or_default()
    }

    /// Name of an nftables table: `ferry-proxy`, or `ferry-proxy-1a2b3c4d`.
    #[must_use]
    pub fn table(self, base: &str) -> String {
        self.suffixed(base, '-')
    }

    /// Path of a cgroup: `/kubepods`, or `/kubepods-1a2b3c4d`.
    #[must_use]
    pub fn cgroup(self, base: &str) -> String {
        self.suffixed(base, '-')
    }

    /// Name of a link, at most 15 bytes: `main`, or `short` (at most 7 bytes) and the identity.
    #[must_use]
    pub fn link(self, main: &str, short: &str) -> String {
        self.0.map_or_else(|| main.to_owned(), |identity| format!("{short}{identity:08x}"))
    }

    /// Prefix of iptables chains: `FERRY-`, or `F1a2b3c4d-`. Neither is a prefix of the other.
    #[must_use]
    pub fn chain_prefix(self) -> String {
        self.0.map_or_else(|| "FERRY-".to_owned(), |identity| format!("F{identity:08x}-"))
    }

    /// Metric of the instance's routes, which identifies them; `None` is the kernel's default.
    #[must_use]
    pub fn route_metric(self) -> Option<u32> {
        // The most significant bit keeps identities away from the metrics that administrators and the kernel choose.
        self.0.map(|identity| identity | 1 << 31)
    }

    fn suffixed(self, base: &str, separator: char) -> String {
        self.0.map_or_else(|| base.to_owned(), |identity| format!("{base}{separator}{identity:08x}"))
    }
}

/// Short hash (FNV-1a), for names.
#[must_use]
pub fn fingerprint(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_instances_differ_and_fit_the_kernel() {
        let other = Instance::of_directory(Path::new("/srv/ferry"));
        assert_ne!(other, Instance::MAIN);
        let names = |one: Instance| {
            [
                one.table("ferry-proxy"),
                one.cgroup("/kubepods"),
                one.link("ferry-vxlan", "fvxlan"),
                one.chain_prefix(),
            ]
        };
        let (main, second) = (names(Instance::MAIN), names(other));
        assert_eq!(main, ["ferry-proxy", "/kubepods", "ferry-vxlan", "FERRY-"]);
        for (one, two) in main.iter().zip(&second) {
            assert!(one != two && !two.is_empty(), "{one} {two}");
        }
        assert!(second[2].len() <= 15, "{}", second[2]);
        // The chains of an instance are found by their prefix.
        assert!(!second[3].starts_with("FERRY-") && second[3].len() <= 10, "{}", second[3]);
        assert_eq!(Instance::MAIN.route_metric(), None);
        assert!(other.route_metric().is_some_and(|metric| metric >= 1 << 31));
    }
}
