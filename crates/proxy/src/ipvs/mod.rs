//! The IPVS backend: the kernel's load balancer forwards connections to endpoints, nftables rules implement source
//! ranges and masquerading. Services' addresses are on a separate link, so that packets to them are local and
//! balanced.
//!
//! In-cluster clients are restricted to endpoints of the node, too, where `externalTrafficPolicy` is `Local`: a
//! virtual service has one list of destinations.

mod marks;
mod virtuals;

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::time::Instant;

use parking_lot::Mutex;
use sys::instance::Instance;
use sys::netlink::{Ipvs, Step};
use sys::nftables::NftError;

use self::marks::Marks;
use self::virtuals::{Virtuals, wanted};
use crate::backend::{Backend, BackendError, Mode};
use crate::frontends::{ChangedFrontends, Table};
use crate::link::{Held, ServiceLink, own_addresses, remove_link};
use crate::model::Node;
use crate::state::{Difference, State};

/// Error of IPVS.
#[derive(Debug, thiserror::Error)]
pub enum IpvsError {
    #[error("failed to open the IPVS netlink family")]
    Open(#[source] io::Error),
    #[error("failed to create the link of services")]
    Link(#[source] io::Error),
    #[error("failed to enable IPVS connection tracking ({path})")]
    Setting { path: &'static str, source: io::Error },
    #[error("failed to list the node's addresses")]
    Addresses(#[source] io::Error),
    #[error("failed to {step}")]
    Refused { step: Step, source: io::Error },
    #[error("failed to apply nftables rules for IPVS")]
    Rules(#[from] NftError),
}

/// Required for masquerading of balanced connections.
const CONNTRACK: &str = "/proc/sys/net/ipv4/vs/conntrack";

/// Applies plans to the kernel's load balancer.
pub struct IpvsBackend {
    instance: Instance,
    marks: Marks,
    link: std::sync::Arc<ServiceLink>,
    serving: Mutex<Serving>,
}

struct Serving {
    ipvs: Ipvs,
    table: Table,
    held: HashMap<IpAddr, Held>,
    virtuals: Virtuals,
}

impl IpvsBackend {
    /// A backend in the network namespace of the caller.
    pub fn open(node: Node) -> Result<Self, IpvsError> {
        let ipvs = Ipvs::open().map_err(IpvsError::Open)?;
        let instance = node.instance;
        let marks = Marks::open(node)?;
        std::fs::write(CONNTRACK, "1").map_err(|source| IpvsError::Setting { path: CONNTRACK, source })?;
        let link = ServiceLink::open(instance).map_err(IpvsError::Link)?;
        let (table, held, virtuals) = (Table::default(), HashMap::new(), Virtuals::default());
        Ok(Self { instance, marks, link, serving: Mutex::new(Serving { ipvs, table, held, virtuals }) })
    }

    fn sync(&self, serving: &mut Serving, changed: &ChangedFrontends) -> Result<(), IpvsError> {
        let own = own_addresses().map_err(IpvsError::Addresses)?;
        let Serving { ipvs, table, held, virtuals } = serving;
        for address in &changed.addresses {
            if table.has_address(*address) && !own.contains(address) && !held.contains_key(address) {
                held.insert(*address, self.link.hold(*address).map_err(IpvsError::Link)?);
            }
        }
        let mut steps = Vec::new();
        for front in &changed.frontends {
            let wanted = wanted(front, table.get(front), own.iter().copied());
            steps.extend(virtuals.set(front, wanted, Instant::now()));
        }
        steps.extend(virtuals.expired(Instant::now()));
        for step in steps {
            make(ipvs, step)?;
        }
        for address in changed.addresses.iter().filter(|address| !table.has_address(**address)) {
            held.remove(address);
        }
        Ok(())
    }
}

/// Removes all virtual services, if the instance's link exists.
pub fn clean_up(instance: Instance) -> Result<(), IpvsError> {
    let there = crate::link::is_there(instance).map_err(IpvsError::Link)?;
    match Ipvs::open() {
        Ok(mut ipvs) if there => make(&mut ipvs, Step::Flush),
        _ => Ok(()),
    }
}

/// Already existing, or already removed, is not an error.
fn make(ipvs: &mut Ipvs, step: Step) -> Result<(), IpvsError> {
    match ipvs.make(&step) {
        Err(error) if matches!(error.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound) => {
            Ok(())
        }
        Err(error) if is_no_such_service(&step, &error) => Ok(()),
        other => other.map_err(|source| IpvsError::Refused { step, source }),
    }
}

/// The kernel's error codes for a missing service.
fn is_no_such_service(step: &Step, error: &io::Error) -> bool {
    const ESRCH: i32 = 3;
    let removal = matches!(step, Step::RemoveService(_) | Step::RemoveDestination(..));
    removal && error.raw_os_error() == Some(ESRCH)
}

impl Backend for IpvsBackend {
    fn mode(&self) -> Mode {
        Mode::Ipvs
    }

    /// The load balancer itself was reached when this was opened.
    fn probe(&self) -> Result<(), BackendError> {
        Ok(self.marks.probe().map_err(IpvsError::Rules)?)
    }

    fn replace(&self, state: &State) -> Result<(), BackendError> {
        self.link.restore().map_err(IpvsError::Link)?;
        let mut serving = self.serving.lock();
        make(&mut serving.ipvs, Step::Flush)?;
        (serving.table, serving.virtuals) = (Table::default(), Virtuals::default());
        serving.held.clear();
        let whole = state.whole();
        self.marks.replace(&whole).map_err(IpvsError::Rules)?;
        let changed = serving.table.apply(&whole);
        Ok(self.sync(&mut serving, &changed)?)
    }

    fn apply(&self, difference: &Difference, _: &State) -> Result<(), BackendError> {
        let mut serving = self.serving.lock();
        self.marks.apply(difference).map_err(IpvsError::Rules)?;
        let changed = serving.table.apply(difference);
        Ok(self.sync(&mut serving, &changed)?)
    }

    fn is_intact(&self) -> Result<bool, BackendError> {
        let has_link = crate::link::is_there(self.instance).map_err(IpvsError::Link)?;
        Ok(has_link && self.marks.is_intact().map_err(IpvsError::Rules)?)
    }

    fn remove(&self) -> Result<(), BackendError> {
        let mut serving = self.serving.lock();
        make(&mut serving.ipvs, Step::Flush)?;
        serving.held.clear();
        self.marks.remove().map_err(IpvsError::Rules)?;
        remove_link(self.instance).map_err(IpvsError::Link)?;
        Ok(())
    }
}
