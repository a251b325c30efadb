//! Machine facts: host name, addresses, system info.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

use base::machine_network::{Family, MachineNetwork};
use objects::core::v1::NodeSystemInfo;

fn read(path: &str) -> String {
    fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default()
}

/// Host name in lower case.
#[must_use]
pub fn hostname() -> String {
    read("/proc/sys/kernel/hostname").to_ascii_lowercase()
}

/// Addresses of this machine: of each family, IPv4 first, the source address of the default route (nothing is sent),
/// else the first one of a link that leads to other machines. Loopback if there are none.
#[must_use]
pub fn node_ips() -> Vec<IpAddr> {
    let preferred = machine_network().preferred;
    if preferred.is_empty() { vec![IpAddr::V4(Ipv4Addr::LOCALHOST)] } else { preferred }
}

/// Current addresses and host name of this machine.
#[must_use]
pub fn machine_network() -> MachineNetwork {
    let outward = |bind: &str, to: &str| -> Option<IpAddr> {
        let socket = UdpSocket::bind(bind).ok()?;
        socket.connect(to.parse::<SocketAddr>().ok()?).ok()?;
        socket.local_addr().ok().map(|address| address.ip()).filter(|ip| is_global(*ip))
    };
    let links = interfaces();
    let external: Vec<IpAddr> = links
        .iter()
        .filter(|link| link.up && !is_for_pods(&link.name))
        .flat_map(|link| link.addresses.iter().copied())
        .filter(|ip| is_global(*ip))
        .collect();
    let preferred = [("0.0.0.0:0", "192.0.2.1:9", Family::V4), ("[::]:0", "[2001:db8::1]:9", Family::V6)];
    let preferred = preferred.into_iter().filter_map(|(bind, to, family)| {
        // The source address may also be that of a link for pods, whose routes are wider than the default one.
        let source = outward(bind, to).filter(|ip| external.contains(ip));
        source.or_else(|| external.iter().copied().find(|ip| Family::of(*ip) == family))
    });
    MachineNetwork {
        preferred: preferred.collect(),
        addresses: links
            .iter()
            .flat_map(|link| &link.addresses)
            .copied()
            .filter(|ip| !is_link_local(*ip))
            .collect(),
        external: external.into_iter().collect(),
        hostname: base::addresses::hostname(),
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

fn is_global(ip: IpAddr) -> bool {
    !is_link_local(ip) && !ip.is_unspecified() && !ip.is_loopback() && !ip.is_multicast()
}

/// A link with its addresses.
struct Interface {
    name: String,
    up: bool,
    addresses: Vec<IpAddr>,
}

fn interfaces() -> Vec<Interface> {
    let Ok(mut netlink) = sys::netlink::Netlink::open() else { return Vec::new() };
    let addresses = netlink.all_addresses().unwrap_or_default();
    let links = netlink.links().unwrap_or_default().into_iter();
    links
        .map(|link| Interface {
            addresses: addresses
                .iter()
                .filter(|(index, _)| *index == link.index)
                .map(|(_, address)| address.addr())
                .collect(),
            name: link.name,
            up: link.up,
        })
        .collect()
}

/// Links that lead to pods of this machine, to its additional nodes (`ferry up --nodes`), or to services. The address of a
/// bridge of nodes belongs to the cluster that created it, and is removed with that cluster.
fn is_for_pods(name: &str) -> bool {
    ["ferry", "fe-", "fnodes", "fsvcs-", "fvxlan-", "cni", "veth", "docker"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
}

/// Version of a runtime as Kubernetes reports it: a semantic version as it is, of others the numbers in front, such as those
/// of Debian's `1.6.20~ds1`.
fn runtime_version(version: &str) -> &str {
    let version = version.trim();
    let version = version.strip_prefix('v').unwrap_or(version);
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let numbers = version.find(|c| !is_number(c)).map_or(version, |end| &version[..end]);
    let numbers = numbers.trim_end_matches('.');
    let rest = &version[numbers.len()..];
    let is_extra = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '+');
    let is_semantic =
        numbers.split('.').count() == 3 && rest.starts_with(['-', '+']) && rest.chars().all(is_extra);
    if is_semantic || !numbers.contains('.') { version } else { numbers }
}

/// Collects the node's system info.
#[must_use]
pub fn system_info(runtime: &str, version: &str) -> NodeSystemInfo {
    let release = read("/etc/os-release");
    let field = |name: &str| {
        release
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
            .map(|value| value.trim_matches('"').to_owned())
    };
    let machine = read("/etc/machine-id");
    let uuid = read("/sys/class/dmi/id/product_uuid").to_ascii_lowercase();
    NodeSystemInfo {
        architecture: match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        }
        .to_owned(),
        boot_id: read("/proc/sys/kernel/random/boot_id"),
        container_runtime_version: format!("{runtime}://{}", runtime_version(version)),
        kernel_version: read("/proc/sys/kernel/osrelease"),
        kube_proxy_version: String::new(),
        kubelet_version: base::version::git_version().to_owned(),
        system_uuid: if uuid.is_empty() { machine.clone() } else { uuid },
        machine_id: machine,
        operating_system: "linux".to_owned(),
        os_image: field("PRETTY_NAME").unwrap_or_else(|| "Linux".to_owned()),
        swap: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtime_version_has_no_suffix_of_a_distribution() {
        for (version, want) in [
            ("1.6.20~ds1", "1.6.20"),
            ("v2.1.0", "2.1.0"),
            ("1.7.1-rc.1+abc", "1.7.1-rc.1+abc"),
            ("0.1.0", "0.1.0"),
            ("1.36.0.m", "1.36.0"),
            ("unknown", "unknown"),
            ("", ""),
        ] {
            assert_eq!(runtime_version(version), want, "{version}");
        }
    }

    #[test]
    fn links_of_pods_and_services_are_not_external() {
        for (name, want) in
            [("eth0", false), ("wlan0", false), ("ferry0", true), ("fsvcs-1", true), ("fnodes1", true)]
        {
            assert_eq!(is_for_pods(name), want, "{name}");
        }
        let network = machine_network();
        assert!(network.addresses.is_superset(&network.external));
        assert!(network.preferred.iter().all(|ip| network.external.contains(ip)), "{network:?}");
        assert!(!node_ips().is_empty());
    }
}
