//! The node's bridge and the veth pairs of its pods.
//!
//! A pod has a /32 or /128 address and reaches everything, including neighbours, through the node: so the node sees
//! every packet, and address translation there sees the replies as well.

use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsFd as _;

use sys::netlink::{Netlink, Rate};
use sys::process::{self, Namespace};

use crate::addresses::PodRange;
use crate::cni::{Bandwidth, Configuration, ErrorContext, PluginError};
use crate::frames::{self, PORT_PREFIX};
use crate::sources;

/// Name of the host end of a pod's veth pair: short, and stable per pod.
pub fn veth_name(container: &str) -> String {
    let short: String = container.chars().filter(char::is_ascii_alphanumeric).take(11).collect();
    format!("{PORT_PREFIX}{short}")
}

/// Sets a network sysctl only if it differs: it is often read-only in containers.
fn set(name: &str, value: &str) -> std::io::Result<()> {
    let file = format!("/proc/sys/net/{name}");
    if std::fs::read_to_string(&file).is_ok_and(|found| found.trim() != value) {
        std::fs::write(file, value)?;
    }
    Ok(())
}

/// Creates the bridge of this node's pods, which is their gateway.
pub fn bridge(
    netlink: &mut Netlink,
    configuration: &Configuration,
    ranges: &[PodRange],
) -> Result<(), PluginError> {
    let name = &configuration.bridge;
    netlink.add_bridge(name, configuration.mtu).doing("create bridge")?;
    for range in ranges {
        netlink.add_address(name, range.gateway(), range.cidr().prefix_len()).doing("add bridge address")?;
        if range.is_ipv4() {
            set("ipv4/ip_forward", "1").doing("enable IP forwarding")?;
            // No ICMP redirects: pods must not use direct routes.
            let _ = set(&format!("ipv4/conf/{name}/send_redirects"), "0");
            // Host ports on the node's loopback address lead to pods too; the rules prevent other uses.
            let _ = set(&format!("ipv4/conf/{name}/route_localnet"), "1");
        } else {
            set("ipv6/conf/all/forwarding", "1").doing("enable IP forwarding")?;
        }
    }
    isolate(netlink, name)?;
    // Router advertisements from pods are ignored.
    let _ = set(&format!("ipv6/conf/{name}/accept_ra"), "0");
    let _ = set(&format!("ipv6/conf/{name}/accept_redirects"), "0");
    let _ = set(&format!("ipv4/conf/{name}/accept_redirects"), "0");
    netlink.set_up(name).doing("bring up bridge")
}

/// Passes bridged frames to the packet rules; false without the kernel module.
fn filter_bridged_frames(netlink: &mut Netlink, bridge: &str) -> bool {
    std::path::Path::new("/proc/sys/net/bridge").exists() && netlink.call_rules_for_bridge(bridge).is_ok()
}

/// Isolates the pods' ports from each other unless bridged frames pass the rules anyway. Where they do, the kernel
/// itself bridges packets whose destination was translated to a pod of the same bridge, and isolation would drop
/// these; then only IP packets pass between ports ([`frames`]). Applied to all ports each time, as the module may
/// have been loaded or unloaded since.
fn isolate(netlink: &mut Netlink, bridge: &str) -> Result<(), PluginError> {
    let Some(bridge) = netlink.link(bridge).doing("get bridge")? else { return Ok(()) };
    let isolated = !filter_bridged_frames(netlink, &bridge.name);
    match frames::apply(&bridge.name) {
        // Isolated ports exchange no frames at all.
        Err(_) if isolated => {}
        outcome => outcome?,
    }
    for port in netlink.links().doing("list links")? {
        if port.master == Some(bridge.index) && port.name.starts_with(PORT_PREFIX) {
            netlink.isolate_port(port.index, isolated).doing("isolate bridge port")?;
        }
    }
    Ok(())
}

/// A pod being connected.
pub struct Pod<'a> {
    pub container: &'a str,
    pub interface: &'a str,
    pub namespace: &'a File,
    pub bandwidth: Bandwidth,
}

/// Creates the veth pair and returns the pod's MAC address.
pub fn connect(
    netlink: &mut Netlink,
    configuration: &Configuration,
    pod: &Pod<'_>,
    addresses: &[(IpAddr, &PodRange)],
) -> Result<String, PluginError> {
    let name = veth_name(pod.container);
    // Remains of an interrupted attempt.
    netlink.remove(&name).doing("remove stale veth pair")?;
    let alone: Vec<IpAddr> = addresses.iter().map(|(address, _)| *address).collect();
    let hardware = sources::hardware(&alone);
    netlink
        .add_pair_with(&name, pod.interface, pod.namespace.as_fd(), configuration.mtu, hardware)
        .doing("create veth pair")?;
    netlink.plug(&name, &configuration.bridge).doing("attach veth interface to bridge")?;
    if let Some(rate) = rate(pod.bandwidth.ingress_rate, pod.bandwidth.ingress_burst) {
        netlink.limit_rate(&name, rate).doing("limit pod ingress bandwidth")?;
    }
    netlink.set_up(&name).doing("bring up veth interface")?;
    let here = File::open("/proc/thread-self/ns/net").doing("open own network namespace")?;
    process::enter(pod.namespace.as_fd(), Namespace::Network).doing("enter network namespace")?;
    let inside = inside(pod, addresses);
    process::enter(here.as_fd(), Namespace::Network).doing("leave network namespace")?;
    let hardware = inside?;
    if let Ok(hardware) = <[u8; 6]>::try_from(hardware.as_slice()) {
        netlink
            .bind_port(&name, &configuration.bridge, hardware, &alone)
            .doing("bind bridge port to pod MAC address")?;
    }
    isolate(netlink, &configuration.bridge)?;
    Ok(hardware.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":"))
}

/// Removes the neighbour entries of a removed pod. A missing bridge has none.
pub fn forget(netlink: &mut Netlink, bridge: &str, addresses: &[IpAddr]) -> Result<(), PluginError> {
    let Some(bridge) = netlink.link(bridge).doing("get bridge")? else { return Ok(()) };
    for address in addresses {
        netlink.remove_neighbour(bridge.index, *address).doing("remove neighbour entry of pod")?;
    }
    Ok(())
}

fn inside(pod: &Pod<'_>, addresses: &[(IpAddr, &PodRange)]) -> Result<Vec<u8>, PluginError> {
    let interface = pod.interface;
    let mut netlink = Netlink::open().doing("open netlink socket")?;
    for scope in ["all", interface] {
        let _ = set(&format!("ipv4/conf/{scope}/accept_redirects"), "0");
        let _ = set(&format!("ipv6/conf/{scope}/accept_redirects"), "0");
        // The node manages a pod's routes.
        let _ = set(&format!("ipv6/conf/{scope}/accept_ra"), "0");
    }
    for (address, _) in addresses {
        let alone = if address.is_ipv4() { 32 } else { 128 };
        netlink.add_address(interface, *address, alone).doing("add pod address")?;
    }
    netlink.set_up("lo").doing("bring up pod loopback")?;
    if let Some(rate) = rate(pod.bandwidth.egress_rate, pod.bandwidth.egress_burst) {
        netlink.limit_rate(interface, rate).doing("limit pod egress bandwidth")?;
    }
    netlink.set_up(interface).doing("bring up pod interface")?;
    for (_, range) in addresses {
        let gateway = range.gateway();
        netlink.add_route(Some(gateway.into()), None, interface).doing("add pod route")?;
        netlink.add_route(None, Some(gateway), interface).doing("add pod route")?;
    }
    let link = netlink.link(interface).doing("get pod interface")?.unwrap_or_default();
    Ok(link.address)
}

/// Converts bits to bytes; a burst smaller than a packet would block all traffic.
fn rate(bits_per_second: u64, burst_bits: u64) -> Option<Rate> {
    const SMALLEST_BURST: u64 = 32 << 10;
    (bits_per_second > 0).then(|| Rate {
        bytes_per_second: (bits_per_second / 8).max(1),
        burst: u32::try_from((burst_bits / 8).max(SMALLEST_BURST)).unwrap_or(u32::MAX),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_name_fits_kernel_limit() {
        let name = veth_name(&"0123456789abcdef".repeat(4));
        assert_eq!(name, "fe-0123456789a");
        assert!(name.len() < 16);
        assert_eq!(veth_name("../x/y"), "fe-xy");
    }

    #[test]
    fn bandwidth_converts_to_rate() {
        assert_eq!(rate(0, 5), None);
        assert_eq!(rate(8_000_000, 0), Some(Rate { bytes_per_second: 1_000_000, burst: 32 << 10 }));
        assert_eq!(rate(u64::MAX, u64::MAX).map(|rate| rate.burst), Some(u32::MAX));
    }
}
