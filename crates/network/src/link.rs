//! The bridge of a node and the cables of its pods.
//!
//! A pod has its address for itself alone and reaches everybody, its neighbours too, through the node: so the node sees
//! every packet, and whoever translates addresses there sees the answers as well.

use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsFd as _;

use sys::netlink::{Netlink, Rate};
use sys::process::{self, Namespace};

use crate::addresses::Range;
use crate::cni::{Bandwidth, Configuration, Doing, PluginError};
use crate::frames::{self, PORT_PREFIX};
use crate::sources;

/// The name of the node's end of a pod's cable: short, and the same for the same pod.
pub fn cable(container: &str) -> String {
    let short: String = container.chars().filter(char::is_ascii_alphanumeric).take(11).collect();
    format!("{PORT_PREFIX}{short}")
}

/// Sets a kernel parameter of networks, only where it is not so: many systems have them read-only for such as us.
fn set(name: &str, value: &str) -> std::io::Result<()> {
    let file = format!("/proc/sys/net/{name}");
    if std::fs::read_to_string(&file).is_ok_and(|found| found.trim() != value) {
        std::fs::write(file, value)?;
    }
    Ok(())
}

/// The bridge that the pods of this node hang on; it is their gateway.
pub fn bridge(
    netlink: &mut Netlink,
    configuration: &Configuration,
    ranges: &[Range],
) -> Result<(), PluginError> {
    let name = &configuration.bridge;
    netlink.add_bridge(name, configuration.mtu).doing("make the bridge")?;
    for range in ranges {
        netlink.add_address(name, range.gateway(), range.prefix).doing("give the bridge an address")?;
        if range.base.is_ipv4() {
            set("ipv4/ip_forward", "1").doing("let packets be forwarded")?;
            // Pods need not be told of shorter ways, which they must not go.
            let _ = set(&format!("ipv4/conf/{name}/send_redirects"), "0");
            // Ports of the node on its loopback address lead to pods too; the rules keep others from using this.
            let _ = set(&format!("ipv4/conf/{name}/route_localnet"), "1");
        } else {
            set("ipv6/conf/all/forwarding", "1").doing("let packets be forwarded")?;
        }
    }
    isolate(netlink, name)?;
    // Router advertisements from pods are ignored.
    let _ = set(&format!("ipv6/conf/{name}/accept_ra"), "0");
    let _ = set(&format!("ipv6/conf/{name}/accept_redirects"), "0");
    let _ = set(&format!("ipv4/conf/{name}/accept_redirects"), "0");
    netlink.set_up(name).doing("bring up the bridge")
}

/// Makes bridged frames pass the packet rules; false if the kernel's module for that is not there.
fn call_rules(netlink: &mut Netlink, bridge: &str) -> bool {
    std::path::Path::new("/proc/sys/net/bridge").exists() && netlink.call_rules_for_bridge(bridge).is_ok()
}

/// Isolates the pods' ports from each other unless bridged frames pass the rules anyway. Where they do, the kernel itself
/// bridges packets whose destination was translated to a pod of the same bridge, and isolation would drop these; then only
/// IP packets go from port to port ([`frames`]). Done for all ports each time, as the module may have come or gone since.
fn isolate(netlink: &mut Netlink, bridge: &str) -> Result<(), PluginError> {
    let Some(bridge) = netlink.link(bridge).doing("look at the bridge")? else { return Ok(()) };
    let isolated = !call_rules(netlink, &bridge.name);
    match frames::apply(&bridge.name) {
        // Isolated ports exchange no frames at all.
        Err(_) if isolated => {}
        outcome => outcome?,
    }
    for port in netlink.links().doing("list links")? {
        if port.master == Some(bridge.index) && port.name.starts_with(PORT_PREFIX) {
            netlink.isolate_port(port.index, isolated).doing("isolate a port of the bridge")?;
        }
    }
    Ok(())
}

/// A pod that is being connected.
pub struct Pod<'a> {
    pub container: &'a str,
    pub interface: &'a str,
    pub namespace: &'a File,
    pub bandwidth: Bandwidth,
}

/// Lays the cable. The answer is the pod's hardware address.
pub fn connect(
    netlink: &mut Netlink,
    configuration: &Configuration,
    pod: &Pod<'_>,
    addresses: &[(IpAddr, &Range)],
) -> Result<String, PluginError> {
    let name = cable(pod.container);
    // What an interrupted attempt left.
    netlink.remove(&name).doing("remove an old cable")?;
    let alone: Vec<IpAddr> = addresses.iter().map(|(address, _)| *address).collect();
    let hardware = sources::hardware(&alone);
    netlink
        .add_pair_with(&name, pod.interface, pod.namespace.as_fd(), configuration.mtu, hardware)
        .doing("make the cable")?;
    netlink.plug(&name, &configuration.bridge).doing("plug in the cable")?;
    if let Some(rate) = rate(pod.bandwidth.ingress_rate, pod.bandwidth.ingress_burst) {
        netlink.limit_rate(&name, rate).doing("limit what the pod receives")?;
    }
    netlink.set_up(&name).doing("bring up the cable")?;
    let here = File::open("/proc/thread-self/ns/net").doing("find the own network namespace")?;
    process::enter(pod.namespace.as_fd(), Namespace::Network).doing("enter the network namespace")?;
    let inside = inside(pod, addresses);
    process::enter(here.as_fd(), Namespace::Network).doing("leave the network namespace")?;
    let hardware = inside?;
    if let Ok(hardware) = <[u8; 6]>::try_from(hardware.as_slice()) {
        netlink
            .bind_port(&name, &configuration.bridge, hardware, &alone)
            .doing("bind the port of the bridge to the pod's hardware address")?;
    }
    isolate(netlink, &configuration.bridge)?;
    Ok(hardware.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":"))
}

/// Forgets the addresses of a pod that is gone. A bridge that is gone knows none.
pub fn forget(netlink: &mut Netlink, bridge: &str, addresses: &[IpAddr]) -> Result<(), PluginError> {
    let Some(bridge) = netlink.link(bridge).doing("look at the bridge")? else { return Ok(()) };
    for address in addresses {
        netlink.remove_neighbour(bridge.index, *address).doing("forget the pod's address")?;
    }
    Ok(())
}

fn inside(pod: &Pod<'_>, addresses: &[(IpAddr, &Range)]) -> Result<Vec<u8>, PluginError> {
    let interface = pod.interface;
    let mut netlink = Netlink::open().doing("talk to the kernel")?;
    for place in ["all", interface] {
        let _ = set(&format!("ipv4/conf/{place}/accept_redirects"), "0");
        let _ = set(&format!("ipv6/conf/{place}/accept_redirects"), "0");
        // Routes of a pod are the node's matter.
        let _ = set(&format!("ipv6/conf/{place}/accept_ra"), "0");
    }
    for (address, _) in addresses {
        let alone = if address.is_ipv4() { 32 } else { 128 };
        netlink.add_address(interface, *address, alone).doing("give the pod its address")?;
    }
    netlink.set_up("lo").doing("bring up the pod's loopback")?;
    if let Some(rate) = rate(pod.bandwidth.egress_rate, pod.bandwidth.egress_burst) {
        netlink.limit_rate(interface, rate).doing("limit what the pod sends")?;
    }
    netlink.set_up(interface).doing("bring up the pod's interface")?;
    for (address, range) in addresses {
        let alone = if address.is_ipv4() { 32 } else { 128 };
        let gateway = range.gateway();
        netlink.add_route(Some((gateway, alone)), None, interface).doing("give the pod a route")?;
        netlink.add_route(None, Some(gateway), interface).doing("give the pod a route")?;
    }
    let link = netlink.link(interface).doing("look at the pod's interface")?.unwrap_or_default();
    Ok(link.address)
}

/// Bits become bytes; a burst that holds no whole packet would let none through.
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
    fn names_fit_the_kernel() {
        let name = cable(&"0123456789abcdef".repeat(4));
        assert_eq!(name, "fe-0123456789a");
        assert!(name.len() < 16);
        assert_eq!(cable("../x/y"), "fe-xy");
    }

    #[test]
    fn rates() {
        assert_eq!(rate(0, 5), None);
        assert_eq!(rate(8_000_000, 0), Some(Rate { bytes_per_second: 1_000_000, burst: 32 << 10 }));
        assert_eq!(rate(u64::MAX, u64::MAX).map(|rate| rate.burst), Some(u32::MAX));
    }
}
