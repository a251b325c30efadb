//! Adds service addresses to this machine, on a separate link, for backends that need local addresses.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use sys::netlink::Netlink;

/// Name of the link with the service addresses.
pub const LINK: &str = "ferry-services";
const MTU: u32 = 1500;

/// The link, and a reference count for each of its addresses.
#[derive(Debug)]
pub struct ServiceLink(Mutex<Links>);

#[derive(Debug)]
struct Links {
    netlink: Netlink,
    held: HashMap<IpAddr, usize>,
}

/// An address on the link, removed when the last clone is dropped.
#[derive(Debug)]
pub struct Held {
    link: Arc<ServiceLink>,
    address: IpAddr,
}

fn alone(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

impl ServiceLink {
    /// Recreates the link, in the network namespace of the caller.
    pub fn open() -> io::Result<Arc<Self>> {
        let mut netlink = Netlink::open()?;
        netlink.remove(LINK)?;
        // A bridge without ports: unlike dummy links, every kernel that runs pods supports bridges.
        netlink.add_bridge(LINK, MTU)?;
        netlink.set_up(LINK)?;
        Ok(Arc::new(Self(Mutex::new(Links { netlink, held: HashMap::new() }))))
    }

    /// Adds an address to the link until the last holder drops it.
    pub fn hold(self: &Arc<Self>, address: IpAddr) -> io::Result<Held> {
        let mut links = self.0.lock();
        if !links.held.contains_key(&address) {
            links.netlink.add_address(LINK, address, alone(address))?;
        }
        *links.held.entry(address).or_default() += 1;
        Ok(Held { link: Arc::clone(self), address })
    }
}

impl Clone for Held {
    fn clone(&self) -> Self {
        *self.link.0.lock().held.entry(self.address).or_default() += 1;
        Self { link: Arc::clone(&self.link), address: self.address }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut links = self.link.0.lock();
        let Some(count) = links.held.get_mut(&self.address) else { return };
        *count -= 1;
        if *count == 0 {
            links.held.remove(&self.address);
            if let Err(error) = links.netlink.remove_address(LINK, self.address, alone(self.address)) {
                tracing::debug!(address = %self.address, %error, "an address stays on the link of services");
            }
        }
    }
}

/// True if the link exists.
pub fn is_there() -> io::Result<bool> {
    Ok(Netlink::open()?.link(LINK)?.is_some())
}

/// Removes the link; a missing one is not an error.
pub fn remove_link() -> io::Result<()> {
    Netlink::open()?.remove(LINK)
}

/// All addresses of the machine, including those of services.
pub fn all_addresses() -> io::Result<BTreeSet<IpAddr>> {
    Ok(Netlink::open()?.all_addresses()?.into_iter().map(|(_, address)| address.addr()).collect())
}

/// The machine's addresses except those of services.
pub fn own_addresses() -> io::Result<BTreeSet<IpAddr>> {
    let mut netlink = Netlink::open()?;
    let services = netlink.link(LINK)?.map(|link| link.index);
    let all = netlink.all_addresses()?;
    Ok(all
        .into_iter()
        .filter(|(index, _)| Some(*index) != services)
        .map(|(_, address)| address.addr())
        .collect())
}
