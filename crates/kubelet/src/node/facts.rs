//! Machine facts: host name, addresses, system info.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

use objects::core::v1::NodeSystemInfo;

fn read(path: &str) -> String {
    fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default()
}

/// Host name in lower case.
#[must_use]
pub fn hostname() -> String {
    read("/proc/sys/kernel/hostname").to_ascii_lowercase()
}

/// Address of this machine: the source address of its default route (nothing is sent), else the first one not limited
/// to the machine itself, else loopback. IPv4 is preferred to IPv6.
#[must_use]
pub fn node_ips() -> Vec<IpAddr> {
    let outward = |bind: &str, to: &str| -> Option<IpAddr> {
        let socket = UdpSocket::bind(bind).ok()?;
        socket.connect(to.parse::<SocketAddr>().ok()?).ok()?;
        socket.local_addr().ok().map(|address| address.ip()).filter(|ip| is_global(*ip))
    };
    let links = interfaces();
    let found = [("0.0.0.0:0", "192.0.2.1:9"), ("[::]:0", "[2001:db8::1]:9")]
        .into_iter()
        .find_map(|(bind, to)| outward(bind, to).or_else(|| first_global(&links, bind.starts_with('['))));
    vec![found.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))]
}

fn is_global(ip: IpAddr) -> bool {
    let local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !local && !ip.is_unspecified() && !ip.is_loopback() && !ip.is_multicast()
}

/// Interfaces that are up, with their addresses.
fn interfaces() -> Vec<(String, Vec<IpAddr>)> {
    let Ok(mut netlink) = sys::netlink::Netlink::open() else { return Vec::new() };
    let links = netlink.links().unwrap_or_default();
    let up = links.into_iter().filter(|link| link.up);
    up.map(|link| {
        let addresses = netlink.addresses(&link.name).unwrap_or_default();
        (link.name, addresses.iter().map(|address| address.addr()).collect())
    })
    .collect()
}

/// First address reachable by other machines, excluding pod bridges and the like.
fn first_global(links: &[(String, Vec<IpAddr>)], v6: bool) -> Option<IpAddr> {
    let for_pods = |name: &str| ["ferry", "fe-", "cni", "veth", "docker"].iter().any(|p| name.starts_with(p));
    let others = links.iter().filter(|(name, _)| !for_pods(name));
    others.flat_map(|(_, ips)| ips).copied().find(|ip| ip.is_ipv6() == v6 && is_global(*ip))
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
        container_runtime_version: format!("{runtime}://{version}"),
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
    fn node_address_is_first_global_non_pod_address() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        let links = [
            ("lo".to_owned(), vec![ip("127.0.0.1"), ip("::1")]),
            ("ferry0".to_owned(), vec![ip("10.42.0.1")]),
            ("eth0".to_owned(), vec![ip("169.254.1.1"), ip("fe80::1"), ip("192.0.2.7")]),
        ];
        assert_eq!(first_global(&links, false), Some(ip("192.0.2.7")));
        assert_eq!(first_global(&links, true), None);
        assert!(!node_ips().is_empty());
    }
}
