//! Routes between the pods of different nodes: plain routes to nodes on the same link, a VXLAN tunnel to others.
//!
//! Watches nodes; writes routes of this machine. Packets between pods keep their addresses.

mod plan;

use futures_util::future::BoxFuture;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use base::tasks::TaskGroup;
use ipnet::IpNet;
use objects::core::v1::Node;
use objects::networking::v1::ServiceCIDR;
use runtime::{Batching, Cache, Disturbances, ExternalState, Informers, reconcile};
use sys::instance::{Instance, fingerprint};
use sys::netlink::{Changes, Netlink, Peer, Route, RouteOwner, Way, notifications};
use tokio::sync::Notify;

pub use plan::{Machine, RoutePlan, View, hardware, peer, plan};

/// Routing protocol number that marks Ferry's routes; the metric marks those of an instance.
const PROTOCOL: u8 = 176;
/// Name of the tunnel of the main instance, and prefix for others.
const TUNNEL: &str = "ferry-vxlan";
const SHORT: &str = "fvxlan-";
/// Name of the object with the service ranges of the cluster. Its UID identifies the cluster on every node.
const DEFAULT_RANGES: &str = "kubernetes";
const TUNNEL_PORT: u16 = 4789;
/// Overhead of the tunnel headers per packet.
const TUNNEL_HEADERS: u32 = 50;

/// Failure to set routes.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    #[error("failed to open netlink socket")]
    Open(#[source] io::Error),
    #[error("failed to list routes")]
    List(#[source] io::Error),
    #[error("failed to set route to {0}")]
    Set(IpNet, #[source] io::Error),
    #[error("failed to remove route to {0}")]
    Remove(IpNet, #[source] io::Error),
    #[error("failed to create tunnel")]
    Tunnel(#[source] io::Error),
    #[error("failed to add tunnel peer {0}")]
    Peer(IpAddr, #[source] io::Error),
}

/// Names of an instance's routes and links.
#[derive(Clone, Copy, Debug)]
struct Names {
    instance: Instance,
    /// VXLAN network identifier, the same on all nodes of a cluster.
    network: u32,
}

impl Names {
    fn owner(self) -> RouteOwner {
        RouteOwner { protocol: PROTOCOL, metric: self.instance.route_metric() }
    }

    fn tunnel(self) -> String {
        self.instance.link(TUNNEL, SHORT)
    }
}

/// VXLAN network identifier of the cluster whose default service ranges have this UID: 24 bits, not 0.
fn tunnel_network(uid: &str) -> u32 {
    (fingerprint(uid.as_bytes()) & 0xff_ffff).max(1)
}

/// Maintains the routes of the node `name` until `tasks` stop.
pub fn run(
    name: String,
    instance: Instance,
    informers: Informers,
    tasks: TaskGroup,
) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let (nodes, ranges) = (informers.of::<Node>(), informers.of::<ServiceCIDR>());
        let changed = Arc::new(Notify::new());
        let notify = Arc::clone(&changed);
        nodes.on_event(move |change| {
            // Heartbeats are irrelevant here.
            if change.old().is_none_or(|old| View::of(old) != View::of(change.object())) {
                notify.notify_one();
            }
        });
        let notify = Arc::clone(&changed);
        ranges.on_event(move |_| notify.notify_one());
        let disturbances = Disturbances::new(notifications(Changes::Routes));
        let peers = BTreeSet::new();
        reconcile(Routes { name, instance, nodes, ranges, changed, disturbances, peers }, &tasks).await;
    })
}

/// Routes of a node.
struct Routes {
    name: String,
    instance: Instance,
    nodes: Cache<Node>,
    ranges: Cache<ServiceCIDR>,
    changed: Arc<Notify>,
    disturbances: Disturbances,
    /// Peers of the tunnel.
    peers: BTreeSet<Peer>,
}

impl ExternalState for Routes {
    type Error = RouteError;

    fn name(&self) -> &'static str {
        "routes to other nodes"
    }

    async fn ready(&mut self) {
        self.nodes.synced().await;
        self.ranges.synced().await;
    }

    fn apply(&mut self, _: bool) -> Result<(), RouteError> {
        self.set().map(drop)
    }

    /// The routes are compared with the kernel's whenever they are applied, so that repairs them at once.
    fn is_intact(&mut self) -> Result<bool, RouteError> {
        let repaired = self.set()?;
        if repaired > 0 {
            tracing::warn!(routes = repaired, "another process changed routes to other nodes, repaired");
        }
        Ok(true)
    }

    async fn changed(&mut self) -> Batching {
        tokio::select! {
            () = self.changed.notified() => Batching::None,
            () = self.disturbances.next() => Batching::Disturbed,
        }
    }
}

impl Routes {
    /// Sets the routes and returns the number of those that were missing or different.
    fn set(&mut self) -> Result<usize, RouteError> {
        let views: Vec<View> = self.nodes.all().iter().map(|node| View::of(node)).collect();
        let ranges = self.ranges.all();
        let texts =
            ranges.iter().flat_map(|one| one.spec.iter().flat_map(|spec| spec.cidrs.iter().flatten()));
        let services: Vec<IpNet> = texts.filter_map(|text| text.trim().parse().ok()).collect();
        let own = views.iter().find(|view| view.name == self.name);
        let default = self.ranges.get("", DEFAULT_RANGES).and_then(|one| one.metadata.uid.clone());
        let network = tunnel_network(&default.unwrap_or_default());
        let names = Names { instance: self.instance, network };
        own.map_or(Ok(0), |own| apply(own, &views, &services, names, &mut self.peers))
    }
}

/// Removes the routes and the tunnel of an instance.
pub fn remove(instance: Instance) -> Result<(), RouteError> {
    let names = Names { instance, network: 0 };
    let mut netlink = Netlink::open().map_err(RouteError::Open)?;
    for route in netlink.routes(Some(names.owner())).map_err(RouteError::List)? {
        netlink
            .remove_route(&route, names.owner())
            .map_err(|error| RouteError::Remove(route.destination, error))?;
    }
    netlink.remove(&names.tunnel()).map_err(RouteError::Tunnel)
}

struct Kernel {
    netlink: Netlink,
    default_routes: [bool; 2],
    loopback: u32,
}

impl Machine for Kernel {
    fn way_to(&mut self, address: IpAddr) -> Option<Way> {
        self.netlink.way_to(address).ok().flatten()
    }

    fn has_default_route(&self, ipv4: bool) -> bool {
        self.default_routes[usize::from(!ipv4)]
    }

    fn loopback(&self) -> u32 {
        self.loopback
    }
}

fn apply(
    own: &View,
    all: &[View],
    services: &[IpNet],
    names: Names,
    peers: &mut BTreeSet<Peer>,
) -> Result<usize, RouteError> {
    let owner = names.owner();
    let mut netlink = Netlink::open().map_err(RouteError::Open)?;
    let present = netlink.routes(None).map_err(RouteError::List)?;
    let default = |ipv4| {
        let mut destinations = present.iter().map(|route| route.destination);
        destinations.any(|to| to.prefix_len() == 0 && to.addr().is_ipv4() == ipv4)
    };
    let default_routes = [default(true), default(false)];
    let loopback = netlink.link("lo").map_err(RouteError::List)?.map_or(1, |link| link.index);
    let mut kernel = Kernel { netlink, default_routes, loopback };
    let plan = plan(own, all, services, &mut kernel);
    let mut netlink = kernel.netlink;
    let mut wanted: BTreeMap<IpNet, Route> =
        plan.routes.iter().map(|route| (route.destination, route.clone())).collect();
    tunnels(&mut netlink, &plan, names, peers, &mut wanted)?;
    for route in netlink.routes(Some(owner)).map_err(RouteError::List)? {
        match wanted.get(&route.destination) {
            Some(same) if *same == route => {
                wanted.remove(&route.destination);
            }
            // Replaced below.
            Some(_) => {}
            None => netlink
                .remove_route(&route, owner)
                .map_err(|error| RouteError::Remove(route.destination, error))?,
        }
    }
    let changed = wanted.len();
    for (destination, route) in wanted {
        netlink.set_route(&route, owner).map_err(|error| RouteError::Set(destination, error))?;
    }
    Ok(changed)
}

/// Creates the tunnel with its peers, if there are any; routes to their pods use it.
fn tunnels(
    netlink: &mut Netlink,
    plan: &RoutePlan,
    names: Names,
    peers: &mut BTreeSet<Peer>,
    wanted: &mut BTreeMap<IpNet, Route>,
) -> Result<(), RouteError> {
    let tunnel = names.tunnel();
    let Some((local, inside)) = &plan.tunnel_from else {
        if !peers.is_empty() {
            netlink.remove(&tunnel).map_err(RouteError::Tunnel)?;
            peers.clear();
        }
        return Ok(());
    };
    let outer = netlink
        .way_to(plan.tunnels.first().map_or(*local, |(_, peer)| peer.machine))
        .map_err(RouteError::Tunnel)?;
    let links = netlink.links().map_err(RouteError::Tunnel)?;
    let link = links.iter().find(|link| outer.is_some_and(|way| way.interface == link.index));
    let mtu = link.map_or(1500, |link| link.mtu).saturating_sub(TUNNEL_HEADERS);
    netlink
        .add_vxlan(&tunnel, names.network, *local, TUNNEL_PORT, mtu, hardware(*local))
        .map_err(RouteError::Tunnel)?;
    for address in inside {
        let prefix = if address.is_ipv4() { 32 } else { 128 };
        netlink.add_address(&tunnel, *address, prefix).map_err(RouteError::Tunnel)?;
    }
    netlink.set_up(&tunnel).map_err(RouteError::Tunnel)?;
    let interface = netlink.link(&tunnel).map_err(RouteError::Tunnel)?.map_or(0, |link| link.index);
    let now: BTreeSet<Peer> = plan.tunnels.iter().map(|(_, peer)| *peer).collect();
    for gone in peers.difference(&now) {
        netlink.remove_peer(interface, gone).map_err(|error| RouteError::Peer(gone.machine, error))?;
    }
    for peer in &now {
        netlink.set_peer(interface, peer).map_err(|error| RouteError::Peer(peer.machine, error))?;
    }
    *peers = now;
    for (destination, peer) in &plan.tunnels {
        let gateway = Some(peer.inside);
        let route =
            Route { destination: *destination, gateway, interface, source: None, gateway_on_link: true };
        wanted.insert(*destination, route);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
