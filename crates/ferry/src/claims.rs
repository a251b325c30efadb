//! Address ranges and ports of the clusters of this machine. A new cluster takes ranges and ports that are not in use
//! and keeps them in its data directory; a registry of the clusters in each network namespace avoids conflicts with
//! clusters that do not run at the moment.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use sys::netlink::Netlink;

/// Directory of the registry, which a reboot empties.
const REGISTRY: &str = "/run/ferry";
/// File in the data directory.
const FILE: &str = "network.json";
/// Distance between alternatives of a port, beyond the range of all default ports.
const PORT_STEP: u16 = 100;

/// Ports of a node and a control plane, by the name of the component.
pub const KUBELET: (&str, u16) = ("kubelet", 10250);
pub const PROXY_HEALTH: (&str, u16) = ("proxy health", 10256);
pub const PROXY_METRICS: (&str, u16) = ("proxy metrics", 10249);
pub const CONTROLLERS: (&str, u16) = ("kube-controller-manager", 10257);
pub const SCHEDULER: (&str, u16) = ("kube-scheduler", 10259);

/// Ranges and ports of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Claims {
    pub pods: Vec<String>,
    pub services: Vec<String>,
    pub nodes: Vec<String>,
    pub ports: BTreeMap<String, u16>,
}

/// An entry of the registry.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    data_dir: PathBuf,
    #[serde(flatten)]
    claims: Claims,
}

/// Ranges and ports that a new cluster cannot take.
#[derive(Debug, Default)]
pub struct Taken {
    ranges: Vec<IpNet>,
    ports: BTreeSet<u16>,
}

impl Taken {
    fn has(&self, range: &IpNet) -> bool {
        self.ranges.iter().any(|taken| taken.contains(range) || range.contains(taken))
    }

    /// The first candidate that is free, or the default.
    fn free(&self, default: &str, candidates: impl IntoIterator<Item = String>) -> Vec<String> {
        let is_free = |text: &String| text.parse().is_ok_and(|range| !self.has(&range));
        let free = std::iter::once(default.to_owned()).chain(candidates).find(is_free);
        vec![free.unwrap_or_else(|| default.to_owned())]
    }

    fn pods(&self) -> Vec<String> {
        let other = (20..30).map(|second| format!("172.{second}.0.0/16"));
        self.free("10.244.0.0/16", (245..=254).map(|second| format!("10.{second}.0.0/16")).chain(other))
    }

    fn services(&self) -> Vec<String> {
        self.free("10.96.0.0/12", (7..14).map(|part| format!("10.{}.0.0/12", part * 16)))
    }

    fn nodes(&self) -> Vec<String> {
        self.free("172.30.0.0/24", (1..=255).map(|third| format!("172.30.{third}.0/24")))
    }

    /// The port itself, or the next one that no other cluster has and that is free. `exclusive` ports of processes
    /// other than Ferry are left to fail with a message.
    fn port(&self, address: SocketAddr, exclusive: bool) -> u16 {
        let is_free = |port: u16| {
            !self.ports.contains(&port) && TcpListener::bind(SocketAddr::new(address.ip(), port)).is_ok()
        };
        if exclusive && !self.ports.contains(&address.port()) {
            return address.port();
        }
        let alternatives = std::iter::successors(Some(address.port()), |port| port.checked_add(PORT_STEP));
        alternatives.take(100).find(|port| is_free(*port)).unwrap_or(address.port())
    }
}

/// Registry of the clusters in this network namespace, locked until dropped.
#[derive(Debug)]
pub struct Registry {
    data_dir: PathBuf,
    directory: PathBuf,
    /// Identity of the network namespace.
    namespace: u64,
    _lock: File,
}

impl Registry {
    /// Locks the registry for the cluster in `data_dir`.
    pub fn open(data_dir: &Path) -> Result<Self> {
        let inode = || std::fs::metadata("/proc/thread-self/ns/net").map(|file| file.ino());
        // Kernels before 5.14 have no cookies.
        let namespace = sys::sockets::network_namespace_cookie().or_else(|_| inode());
        let namespace = namespace.context("failed to read the network namespace")?;
        Self::open_in(Path::new(REGISTRY), namespace, data_dir)
    }

    fn open_in(directory: &Path, namespace: u64, data_dir: &Path) -> Result<Self> {
        sys::directories::ensure(directory, 0o755)
            .with_context(|| format!("failed to create {}", directory.display()))?;
        let path = directory.join("lock");
        let lock = File::create(&path).with_context(|| format!("failed to create {}", path.display()))?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)
            .with_context(|| format!("failed to lock {}", path.display()))?;
        let (data_dir, directory) = (absolute(data_dir), directory.to_owned());
        Ok(Self { data_dir, directory, namespace, _lock: lock })
    }

    fn entry(&self) -> PathBuf {
        let name = sys::instance::fingerprint(self.data_dir.as_os_str().as_encoded_bytes());
        self.directory.join(format!("{}-{name:08x}.json", self.namespace))
    }

    /// Entries of other clusters that still exist.
    fn others(&self) -> Vec<Entry> {
        let files = std::fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let prefix = format!("{}-", self.namespace);
        let entries = files.filter_map(|file| {
            let entry: Entry = serde_json::from_slice(&std::fs::read(file.path()).ok()?).ok()?;
            let exists = entry.data_dir.join(FILE).exists();
            if !exists && entry.data_dir != self.data_dir {
                // Its data directory was removed by hand, or with that of another node.
                let _ = std::fs::remove_file(file.path());
            }
            let is_here = file.file_name().to_string_lossy().starts_with(&prefix);
            Some(entry).filter(|_| exists && is_here)
        });
        entries.filter(|entry| entry.data_dir != self.data_dir).collect()
    }

    /// Ranges and ports of other clusters, and ranges of the machine.
    pub fn taken(&self) -> Taken {
        let mut taken = Taken::default();
        for Entry { claims, .. } in self.others() {
            let ranges = claims.pods.iter().chain(&claims.services).chain(&claims.nodes);
            taken.ranges.extend(ranges.filter_map(|text| text.parse::<IpNet>().ok()));
            taken.ports.extend(claims.ports.into_values());
        }
        if let Ok(mut netlink) = Netlink::open() {
            let addresses = netlink.all_addresses().unwrap_or_default();
            taken.ranges.extend(addresses.into_iter().map(|(_, address)| IpNet::from(address.addr())));
            // Default routes, and those of whole private networks, are less specific than a cluster's.
            let routes = netlink.routes(None).unwrap_or_default();
            let routes = routes.into_iter().map(|route| route.destination);
            taken.ranges.extend(routes.filter(|to| to.addr().is_ipv4() && to.prefix_len() >= 12));
        }
        taken
    }

    /// Records the claims in the registry and the data directory.
    pub fn record(&self, claims: &Claims) -> Result<()> {
        let entry = Entry { data_dir: self.data_dir.clone(), claims: claims.clone() };
        let (own, path) = (self.data_dir.join(FILE), self.entry());
        for (path, text) in [(own, serde_json::to_vec(claims)?), (path, serde_json::to_vec(&entry)?)] {
            std::fs::write(&path, text).with_context(|| format!("failed to write {}", path.display()))?;
        }
        Ok(())
    }

    /// True if the cluster has an entry.
    pub fn is_known(&self) -> bool {
        self.entry().exists()
    }

    /// Removes the cluster's entry.
    pub fn forget(&self) {
        let _ = std::fs::remove_file(self.entry());
    }
}

/// Path without links, also of a directory that does not exist yet.
pub fn absolute(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let parent = path.parent().and_then(|parent| std::fs::canonicalize(parent).ok());
    let below = parent.zip(path.file_name()).map(|(parent, name)| parent.join(name));
    std::fs::canonicalize(&path).ok().or(below).unwrap_or(path)
}

/// Claims of the cluster in a data directory: the recorded ones; of a cluster of an earlier version none, so that it
/// keeps the defaults.
pub fn of(data_dir: &Path) -> Result<Option<Claims>> {
    let path = data_dir.join(FILE);
    match std::fs::read(&path) {
        Ok(text) => serde_json::from_slice(&text)
            .map(Some)
            .with_context(|| format!("failed to read {}", path.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("failed to read {}", path.display())),
    }
}

/// Claims for the next start: recorded ranges, or free ones for a new cluster; recorded or default ports, if they are
/// free.
pub fn choose(data_dir: &Path, taken: &Taken, ports: &[((&str, u16), SocketAddr)]) -> Result<Claims> {
    let recorded = of(data_dir)?;
    let mut claims = match recorded {
        Some(claims) => claims,
        None if data_dir.join("store").exists() || data_dir.join("agent").exists() => Claims::default(),
        None => Claims {
            pods: taken.pods(),
            services: taken.services(),
            nodes: taken.nodes(),
            ports: BTreeMap::new(),
        },
    };
    for ((name, default), address) in ports {
        let port = claims.ports.get(*name).copied().filter(|port| *port != 0).unwrap_or(*default);
        let exclusive = *name == KUBELET.0;
        let port = taken.port(SocketAddr::new(address.ip(), port), exclusive);
        claims.ports.insert((*name).to_owned(), port);
    }
    Ok(claims)
}

/// True if a flag is on the command line of this process.
pub fn is_flag_set(name: &str) -> bool {
    std::env::args()
        .any(|word| word.strip_prefix("--").is_some_and(|flag| flag.split('=').next() == Some(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listen(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[test]
    fn new_clusters_take_ranges_and_ports_of_no_other_cluster() {
        let root = tempfile::tempdir().expect("a directory");
        let registry = root.path().join("registry");
        let mut all: Vec<Claims> = Vec::new();
        for name in ["one", "two", "three"] {
            let data_dir = root.path().join(name);
            std::fs::create_dir(&data_dir).expect("a directory");
            let registry = Registry::open_in(&registry, 1, &data_dir).expect("a registry");
            // Ports below 1024 are not tested in parallel by others.
            let ports = [(("metrics", 39_711), listen(0)), (KUBELET, listen(0))];
            let claims = choose(&data_dir, &registry.taken(), &ports).expect("claims");
            registry.record(&claims).expect("recorded");
            assert_eq!(of(&data_dir).expect("read").as_ref(), Some(&claims));
            // The same after a restart.
            assert_eq!(choose(&data_dir, &registry.taken(), &ports).expect("claims").pods, claims.pods);
            for other in &all {
                let pairs = [
                    (&other.pods, &claims.pods),
                    (&other.services, &claims.services),
                    (&other.nodes, &claims.nodes),
                ];
                for (one, two) in pairs {
                    let range = |text: &String| text.parse::<IpNet>().expect("a range");
                    let (one, two) = (range(&one[0]), range(&two[0]));
                    assert!(!one.contains(&two) && !two.contains(&one), "{one} {two}");
                }
                assert!(other.ports.values().all(|port| !claims.ports.values().any(|own| own == port)));
            }
            all.push(claims);
        }
        // A cluster in another network namespace has its own ranges, and one whose directory is gone has none.
        let data_dir = root.path().join("four");
        let elsewhere = Registry::open_in(&registry, 2, &data_dir).expect("a registry");
        assert!(elsewhere.others().is_empty());
        drop(elsewhere);
        std::fs::remove_dir_all(root.path().join("two")).expect("removed");
        let here = Registry::open_in(&registry, 1, &data_dir).expect("a registry");
        assert_eq!(here.others().len(), 2);
        drop(here);
        Registry::open_in(&registry, 1, &root.path().join("one")).expect("a registry").forget();
        let here = Registry::open_in(&registry, 1, &data_dir).expect("a registry");
        assert_eq!(here.others().len(), 1);
    }

    #[test]
    fn clusters_of_earlier_versions_keep_the_default_ranges() {
        let data_dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(data_dir.path().join("store")).expect("a directory");
        let claims = choose(data_dir.path(), &Taken::default(), &[]).expect("claims");
        assert_eq!(claims, Claims::default());
    }

    #[test]
    fn ports_of_other_programs_are_an_error_for_the_kubelet_only() {
        let other = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let port = other.local_addr().expect("an address").port();
        let taken = Taken::default();
        assert_eq!(taken.port(listen(port), true), port);
        assert_ne!(taken.port(listen(port), false), port);
        let by_ferry = Taken { ranges: Vec::new(), ports: BTreeSet::from([port]) };
        assert_ne!(by_ferry.port(listen(port), true), port);
    }
}
