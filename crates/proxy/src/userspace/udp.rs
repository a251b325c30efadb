//! Flows: packets of a client port to a frontend are sent to one endpoint through a separate socket until both are
//! idle.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::tasks::TaskGroup;
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{SendFlags, send, sendto};
use tokio::net::UdpSocket;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::frontend::OpenFrontend;
use crate::link::Held;

/// Idle timeouts of a flow: with one request and its reply, and with more. The kernel's own values.
const IDLE: Duration = Duration::from_secs(30);
const IDLE_STREAM: Duration = Duration::from_secs(120);
/// Packets forwarded before yielding.
const TURN: usize = 64;
const LARGEST_PACKET: usize = 65_536;

/// State shared by all flows.
#[derive(Clone)]
pub struct Shared {
    buffer: Arc<Mutex<Vec<u8>>>,
    begun: Instant,
    permits: Arc<Semaphore>,
    tasks: TaskGroup,
}

impl Shared {
    #[must_use]
    pub fn new(permits: Arc<Semaphore>, tasks: TaskGroup) -> Self {
        let buffer = Arc::new(Mutex::new(vec![0; LARGEST_PACKET]));
        Self { buffer, begun: Instant::now(), permits, tasks }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// Time of the last use of a flow, and the number of packets of its client.
#[derive(Debug, Default)]
struct Use {
    last: AtomicU64,
    sent: AtomicU64,
}

impl Use {
    /// Current deadline of the flow.
    fn end(&self) -> Duration {
        let idle = if self.sent.load(Ordering::Relaxed) > 1 { IDLE_STREAM } else { IDLE };
        Duration::from_millis(self.last.load(Ordering::Relaxed)) + idle
    }
}

struct Flow {
    endpoint: SocketAddr,
    socket: Arc<UdpSocket>,
    used: Arc<Use>,
    answers: AbortHandle,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.answers.abort();
    }
}

/// Relays packets until the task is dropped.
pub async fn serve(socket: UdpSocket, front: Arc<OpenFrontend>, _held: Option<Held>, shared: Shared) {
    let (ended, endings) = unbounded_channel();
    Relay { socket: Arc::new(socket), front, shared, flows: HashMap::new(), ended }.run(endings).await;
}

struct Relay {
    socket: Arc<UdpSocket>,
    front: Arc<OpenFrontend>,
    shared: Shared,
    flows: HashMap<SocketAddr, Flow>,
    ended: UnboundedSender<SocketAddr>,
}

impl Relay {
    async fn run(mut self, mut endings: UnboundedReceiver<SocketAddr>) {
        let front = Arc::clone(&self.front);
        let socket = Arc::clone(&self.socket);
        loop {
            tokio::select! {
                Some(client) = endings.recv() => {
                    self.flows.remove(&client);
                }
                () = front.changed.notified() => {
                    // An endpoint cannot end a UDP flow.
                    self.flows.retain(|_, flow| front.has(flow.endpoint));
                }
                ready = socket.readable() => {
                    if ready.is_err() {
                        return;
                    }
                    self.receive();
                    tokio::task::yield_now().await;
                }
            }
        }
    }

    fn receive(&mut self) {
        let shared = self.shared.clone();
        let mut buffer = shared.buffer.lock();
        for _ in 0..TURN {
            match self.socket.try_recv_from(&mut buffer) {
                Ok((length, client)) => self.pass_on(client, buffer.get(..length).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // ICMP error for a reply to a vanished client.
                Err(error) => tracing::trace!(%error, "failed to receive"),
            }
        }
    }

    fn pass_on(&mut self, client: SocketAddr, packet: &[u8]) {
        if !self.flows.contains_key(&client) {
            match self.begin(client) {
                Ok(Some(flow)) => {
                    self.flows.insert(client, flow);
                }
                Ok(None) => return,
                Err(error) => {
                    tracing::debug!(%client, %error, "failed to open a UDP flow");
                    return;
                }
            }
        }
        let Some(flow) = self.flows.get(&client) else { return };
        flow.used.last.store(self.shared.now(), Ordering::Relaxed);
        flow.used.sent.fetch_add(1, Ordering::Relaxed);
        // Bypasses the executor, which would first have to wait for the socket to be writable. A packet that does not
        // fit is dropped.
        if send(&flow.socket, packet, SendFlags::DONTWAIT) == Err(Errno::CONNREFUSED) {
            self.flows.remove(&client);
        }
    }

    /// `None` if the client has no endpoint, or there are too many flows.
    fn begin(&self, client: SocketAddr) -> io::Result<Option<Flow>> {
        let Ok(permit) = Arc::clone(&self.shared.permits).try_acquire_owned() else { return Ok(None) };
        let Some(endpoint) = self.front.choose(client.ip().to_canonical(), &[]) else { return Ok(None) };
        let any: SocketAddr = match endpoint {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = std::net::UdpSocket::bind(any)?;
        socket.connect(endpoint)?;
        socket.set_nonblocking(true)?;
        let socket = Arc::new(UdpSocket::from_std(socket)?);
        let used = Arc::new(Use::default());
        used.last.store(self.shared.now(), Ordering::Relaxed);
        let answers = Answers {
            from: Arc::clone(&socket),
            through: Arc::clone(&self.socket),
            client,
            used: Arc::clone(&used),
            shared: self.shared.clone(),
        };
        let ended = self.ended.clone();
        let task = self.shared.tasks.spawn(async move {
            answers.run().await;
            let _ = ended.send(client);
        });
        Ok(Some(Flow { endpoint, socket, used, answers: task.abort_handle(), _permit: permit }))
    }
}

/// Replies to a client.
struct Answers {
    from: Arc<UdpSocket>,
    through: Arc<UdpSocket>,
    client: SocketAddr,
    used: Arc<Use>,
    shared: Shared,
}

impl Answers {
    /// Runs until the flow has been idle for too long, or its endpoint rejects packets.
    async fn run(&self) {
        loop {
            tokio::select! {
                ready = self.from.readable() => {
                    if ready.is_err() || self.receive().is_err() {
                        return;
                    }
                    tokio::task::yield_now().await;
                }
                () = tokio::time::sleep_until(self.shared.begun + self.used.end()) => {
                    if self.shared.begun.elapsed() >= self.used.end() {
                        return;
                    }
                }
            }
        }
    }

    fn receive(&self) -> io::Result<()> {
        let mut buffer = self.shared.buffer.lock();
        for _ in 0..TURN {
            match self.from.try_recv(&mut buffer) {
                Ok(length) => {
                    self.used.last.store(self.shared.now(), Ordering::Relaxed);
                    let packet = buffer.get(..length).unwrap_or_default();
                    let _ = sendto(&self.through, packet, SendFlags::DONTWAIT, &self.client);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
