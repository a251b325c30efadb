//! Adds service addresses to this machine, on a separate link, for backends that need local addresses.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use sys::instance::Instance;
use sys::netlink::Netlink;

/// Name of the link with the service addresses: of the main instance, and prefix for others.
const LINK: &str = "ferry-services";
const SHORT: &str = "fsvcs-";
const MTU: u32 = 1500;

/// The link, and a reference count for each of its addresses.
#[derive(Debug)]
pub struct ServiceLink(Mutex<Links>);

#[derive(Debug)]
struct Links {
    netlink: Netlink,
    name: String,
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
    pub fn open(instance: Instance) -> io::Result<Arc<Self>> {
        let mut netlink = Netlink::open()?;
        let name = link_name(instance);
        netlink.remove(&name)?;
        // A bridge without ports: unlike dummy links, every kernel that runs pods supports bridges.
        netlink.add_bridge(&name, MTU)?;
        netlink.set_up(&name)?;
        Ok(Arc::new(Self(Mutex::new(Links { netlink, name, held: HashMap::new() }))))
    }

    /// Recreates the link with its addresses if another process removed it.
    pub fn restore(&self) -> io::Result<()> {
        let mut links = self.0.lock();
        let Links { netlink, name, held } = &mut *links;
        if netlink.link(name)?.is_some() {
            return Ok(());
        }
        netlink.add_bridge(name, MTU)?;
        netlink.set_up(name)?;
        held.keys().try_for_each(|address| netlink.add_address(name, *address, alone(*address)))
    }

    /// Adds an address to the link until the last holder drops it.
    pub fn hold(self: &Arc<Self>, address: IpAddr) -> io::Result<Held> {
        let mut links = self.0.lock();
        let Links { netlink, name, held } = &mut *links;
        if !held.contains_key(&address) {
            netlink.add_address(name, address, alone(address))?;
        }
        *held.entry(address).or_default() += 1;
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
        let Links { netlink, name, held } = &mut *links;
        let Some(count) = held.get_mut(&self.address) else { return };
        *count -= 1;
        if *count == 0 {
            held.remove(&self.address);
            if let Err(error) = netlink.remove_address(name, self.address, alone(self.address)) {
                tracing::debug!(address = %self.address, %error, "failed to remove a service address from the link");
            }
        }
    }
}

/// Name of an instance's link.
#[must_use]
pub fn link_name(instance: Instance) -> String {
    instance.link(LINK, SHORT)
}

fn is_service_link(name: &str) -> bool {
    name == LINK || name.starts_with(SHORT)
}

/// True if the link exists.
pub fn is_there(instance: Instance) -> io::Result<bool> {
    Ok(Netlink::open()?.link(&link_name(instance))?.is_some())
}

/// Removes the link; a missing one is not an error.
pub fn remove_link(instance: Instance) -> io::Result<()> {
    Netlink::open()?.remove(&link_name(instance))
}

/// All addresses of the machine, including those of services.
pub fn all_addresses() -> io::Result<BTreeSet<IpAddr>> {
    Ok(Netlink::open()?.all_addresses()?.into_iter().map(|(_, address)| address.addr()).collect())
}

/// The machine's addresses except those of services, of any instance.
pub fn own_addresses() -> io::Result<BTreeSet<IpAddr>> {
    let mut netlink = Netlink::open()?;
    let services: Vec<u32> =
        netlink.links()?.iter().filter(|link| is_service_link(&link.name)).map(|link| link.index).collect();
    let all = netlink.all_addresses()?;
    Ok(all
        .into_iter()
        .filter(|(index, _)| !services.contains(index))
        .map(|(_, address)| address.addr())
        .collect())
}
