//! The userspace backend: this process listens for services and relays. It needs no kernel support, and no privileges
//! for unprivileged ports.
//!
//! With `CAP_NET_ADMIN` every service is served at its own address, which is added to this machine. Without it, node
//! ports are served, and other ports at loopback addresses. Endpoints see the node's address instead of the client's.
//! Connections continue when their endpoint or service is removed; UDP flows move to another endpoint.

mod frontend;
mod loopback;
mod tcp;
mod udp;

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use base::tasks::TaskGroup;
use parking_lot::{Mutex, RwLock};
use rustix::process::{Resource, getrlimit};
use tokio::net::{TcpListener, UdpSocket};
use tokio::runtime::{Builder, Handle};
use tokio::sync::Semaphore;

use self::frontend::{OpenFrontend, Sockets, Unserved};
use self::loopback::on_loopback;
use crate::backend::{Backend, BackendError, Mode};
use crate::frontends::{ChangedFrontends, Table};
use crate::link::{Held, ServiceLink, own_addresses, remove_link};
use crate::model::Node;
use crate::plan::Frontend;
use crate::state::{Difference, State};

/// Limit of connections, and of flows, if the limit of open files permits.
const MOST: u64 = 16_384;
/// Time limit for closing a socket.
const PATIENCE: Duration = Duration::from_secs(5);

/// Error of the userspace proxy.
#[derive(Debug, thiserror::Error)]
pub enum UserspaceError {
    #[error("failed to start the userspace proxy")]
    Start(#[source] io::Error),
    #[error("failed to list the node's addresses")]
    Addresses(#[source] io::Error),
    #[error("failed to create the link of services")]
    Link(#[source] io::Error),
    #[error("failed to delete the link of services")]
    Remove(#[source] io::Error),
}

/// Relays for services, on a separate thread in the network namespace of its creation.
pub struct Userspace {
    node: Arc<Node>,
    link: Option<Arc<ServiceLink>>,
    tcp: tcp::Shared,
    udp: udp::Shared,
    virtuals: Arc<RwLock<BTreeSet<IpAddr>>>,
    serving: Mutex<Serving>,
    /// Dropped last: all tasks run on it.
    relay: Relay,
}

#[derive(Default)]
struct Serving {
    table: Table,
    open: HashMap<Frontend, Open>,
    held: HashMap<IpAddr, Held>,
    /// Frontends that are not served, with the reason.
    unserved: HashMap<Frontend, String>,
}

/// A served frontend.
struct Open {
    front: Arc<OpenFrontend>,
    listening: TaskGroup,
    closed: Receiver<()>,
}

/// A thread with an executor.
struct Relay {
    handle: Handle,
    tasks: TaskGroup,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    #[expect(clippy::disallowed_methods, reason = "a named thread in the network namespace of the caller")]
    fn start() -> io::Result<Self> {
        let executor = Builder::new_current_thread().enable_all().build()?;
        let (handle, tasks) = (executor.handle().clone(), TaskGroup::new());
        let stopping = tasks.stopping();
        let thread = std::thread::Builder::new()
            .name("service-relay".to_owned())
            .spawn(move || executor.block_on(stopping))?;
        Ok(Self { handle, tasks, thread: Some(thread) })
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.tasks.abort();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Userspace {
    /// A backend in the network namespace of the caller.
    pub fn open(node: Node) -> Result<Self, UserspaceError> {
        let relay = Relay::start().map_err(UserspaceError::Start)?;
        let link = match ServiceLink::open(node.instance) {
            Ok(link) => Some(link),
            Err(error) => {
                tracing::warn!(
                    %error,
                    "CAP_NET_ADMIN is missing, services are served on node ports and on the loopback network only"
                );
                None
            }
        };
        // A connection uses two descriptors, a flow one.
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let most = usize::try_from(MOST.min(files / 4)).unwrap_or(usize::MAX);
        let virtuals: Arc<RwLock<BTreeSet<IpAddr>>> = Arc::default();
        let known = Arc::clone(&virtuals);
        let tcp = tcp::Shared {
            is_virtual: Arc::new(move |address| known.read().contains(&address)),
            permits: Arc::new(Semaphore::new(most)),
            tasks: relay.tasks.clone(),
        };
        let udp = udp::Shared::new(Arc::new(Semaphore::new(most)), relay.tasks.clone());
        Ok(Self { node: Arc::new(node), link, tcp, udp, virtuals, serving: Mutex::default(), relay })
    }

    /// Frontends that are not served, with the reason.
    #[must_use]
    pub fn unserved(&self) -> Vec<(Frontend, String)> {
        let mut all: Vec<_> = self.serving.lock().unserved.clone().into_iter().collect();
        all.sort_unstable();
        all
    }

    /// Syncs the changed frontends with the table.
    fn sync(&self, serving: &mut Serving, changed: &ChangedFrontends) -> Result<(), UserspaceError> {
        let own = own_addresses().map_err(UserspaceError::Addresses)?;
        let Serving { table, open, held, unserved } = serving;
        let wanted = |front: &Frontend| table.get(front).filter(|served| served.is_open());
        let closing: Vec<Open> = changed
            .frontends
            .iter()
            .filter(|front| wanted(front).is_none())
            .filter_map(|front| open.remove(front))
            .collect();
        close(closing);
        for address in &changed.addresses {
            if !table.has_address(*address) {
                held.remove(address);
                self.virtuals.write().remove(address);
            } else if let Some(link) = self.link.as_ref().filter(|_| !own.contains(address))
                && !held.contains_key(address)
            {
                match link.hold(*address) {
                    Ok(one) => {
                        held.insert(*address, one);
                        self.virtuals.write().insert(*address);
                    }
                    Err(error) => {
                        tracing::warn!(%address, %error, "failed to add a service address")
                    }
                }
            }
        }
        // Frontends that could not be served before may succeed now.
        let again: Vec<Frontend> =
            unserved.keys().copied().filter(|front| !changed.frontends.contains(front)).collect();
        for front in changed.frontends.iter().chain(&again) {
            let Some(served) = wanted(front) else {
                unserved.remove(front);
                continue;
            };
            if let Some(open) = open.get(front) {
                open.front.set(served.clone());
                continue;
            }
            let held = held.get(&front.address);
            match self.sockets(front, held, &own) {
                Ok(sockets) => {
                    unserved.remove(front);
                    let served = OpenFrontend::new(Arc::clone(&self.node), served.clone());
                    open.insert(*front, self.serve(served, sockets, held));
                }
                Err(error) => {
                    let reason = error.to_string();
                    if unserved.get(front) != Some(&reason) {
                        tracing::warn!(front = %front, reason, "service port is not served on this node");
                        unserved.insert(*front, reason);
                    }
                }
            }
        }
        Ok(())
    }

    fn sockets(
        &self,
        front: &Frontend,
        held: Option<&Held>,
        own: &BTreeSet<IpAddr>,
    ) -> Result<Sockets, Unserved> {
        if front.is_node_port() {
            return Sockets::open_node_port(front, own.iter().copied());
        }
        let itself = SocketAddr::new(front.address, front.port);
        if held.is_some() || own.contains(&front.address) {
            return Ok(Sockets::open(front.protocol, &[itself])?.0);
        }
        let (sockets, served_at) = Sockets::open(front.protocol, &on_loopback(front.address, front.port))?;
        tracing::info!(front = %front, at = %served_at, "service port is served on the loopback network");
        Ok(sockets)
    }

    fn serve(&self, front: OpenFrontend, sockets: Sockets, held: Option<&Held>) -> Open {
        let (front, listening) = (Arc::new(front), self.relay.tasks.child());
        let (open, closed) = channel::<()>();
        let _within = self.relay.handle.enter();
        match sockets {
            Sockets::Tcp(listeners) => {
                for listener in listeners.into_iter().filter_map(|one| usable(TcpListener::from_std(one))) {
                    let serving = tcp::serve(listener, Arc::clone(&front), held.cloned(), self.tcp.clone());
                    let open = open.clone();
                    listening.spawn(async move {
                        // Dropped with the socket, however the task ends.
                        let _open = open;
                        serving.await;
                    });
                }
            }
            Sockets::Udp(sockets) => {
                for socket in sockets.into_iter().filter_map(|one| usable(UdpSocket::from_std(one))) {
                    let serving = udp::serve(socket, Arc::clone(&front), held.cloned(), self.udp.clone());
                    let open = open.clone();
                    listening.spawn(async move {
                        let _open = open;
                        serving.await;
                    });
                }
            }
        }
        Open { front, listening, closed }
    }
}

fn usable<T>(socket: io::Result<T>) -> Option<T> {
    socket.inspect_err(|error| tracing::warn!(%error, "failed to use a service socket")).ok()
}

/// Closes frontends, and waits until their sockets are closed, so that the kernel rejects new clients.
fn close(frontends: Vec<Open>) {
    for open in &frontends {
        open.listening.abort();
    }
    for open in frontends {
        if open.closed.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("timed out closing a service socket");
        }
    }
}

impl Backend for Userspace {
    fn mode(&self) -> Mode {
        Mode::Userspace
    }

    /// Relays are in this process.
    fn probe(&self) -> Result<(), BackendError> {
        Ok(())
    }

    fn replace(&self, state: &State) -> Result<(), BackendError> {
        if let Some(link) = &self.link {
            link.restore().map_err(UserspaceError::Link)?;
        }
        let mut serving = self.serving.lock();
        let mut changed = serving.table.all();
        serving.table = Table::default();
        let new = serving.table.apply(&state.whole());
        changed.frontends.extend(new.frontends);
        changed.addresses.extend(new.addresses);
        Ok(self.sync(&mut serving, &changed)?)
    }

    fn apply(&self, difference: &Difference, _: &State) -> Result<(), BackendError> {
        let mut serving = self.serving.lock();
        let changed = serving.table.apply(difference);
        Ok(self.sync(&mut serving, &changed)?)
    }

    fn is_intact(&self) -> Result<bool, BackendError> {
        let link = self.link.as_ref().map_or(Ok(true), |_| crate::link::is_there(self.node.instance));
        Ok(link.map_err(UserspaceError::Addresses)?)
    }

    fn remove(&self) -> Result<(), BackendError> {
        self.replace(&State::default())?;
        if self.link.is_some() {
            remove_link(self.node.instance).map_err(UserspaceError::Remove)?;
        }
        Ok(())
    }
}
