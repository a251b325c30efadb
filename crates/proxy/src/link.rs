//! Services' addresses as addresses of this machine, on a link of their own, for backends that need that.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use sys::netlink::Netlink;

/// The link that has services' addresses.
pub const LINK: &str = "ferry-services";
const MTU: u32 = 1500;

/// The link, and how many hold each of its addresses.
#[derive(Debug)]
pub struct ServiceLink(Mutex<Links>);

#[derive(Debug)]
struct Links {
    netlink: Netlink,
    held: HashMap<IpAddr, usize>,
}

/// An address that the machine has as long as somebody holds this.
#[derive(Debug)]
pub struct Held {
    link: Arc<ServiceLink>,
    address: IpAddr,
}

fn alone(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

impl ServiceLink {
    /// Makes the link anew, in the network namespace of the caller.
    pub fn open() -> io::Result<Arc<Self>> {
        let mut netlink = Netlink::open()?;
        netlink.remove(LINK)?;
        // A bridge without ports: every kernel that runs pods has them, which is not so for links made for this.
        netlink.add_bridge(LINK, MTU)?;
        netlink.set_up(LINK)?;
        Ok(Arc::new(Self(Mutex::new(Links { netlink, held: HashMap::new() }))))
    }

    /// Gives the machine an address, until the last who holds it lets go.
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

/// Whether there is the link.
pub fn is_there() -> io::Result<bool> {
    Ok(Netlink::open()?.link(LINK)?.is_some())
}

/// Removes the link; none there is no error.
pub fn remove_link() -> io::Result<()> {
    Netlink::open()?.remove(LINK)
}

/// All addresses of the machine, services' too.
pub fn all_addresses() -> io::Result<BTreeSet<IpAddr>> {
    Ok(Netlink::open()?.all_addresses()?.into_iter().map(|(_, ip, _)| ip).collect())
}

/// The machine's own addresses: those that are not services'.
pub fn own_addresses() -> io::Result<BTreeSet<IpAddr>> {
    let mut netlink = Netlink::open()?;
    let services = netlink.link(LINK)?.map(|link| link.index);
    let all = netlink.all_addresses()?;
    Ok(all.into_iter().filter(|(index, ..)| Some(*index) != services).map(|(_, ip, _)| ip).collect())
}
