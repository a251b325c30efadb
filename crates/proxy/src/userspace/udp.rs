//! Flows: what a client sends to a front from one port goes to one endpoint, through a socket of its own, until both are
//! silent for a while.

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

use super::front::OpenFront;
use crate::link::Held;

/// How long a flow may be silent: one question with its answer, and more than that. The kernel's own values.
const IDLE: Duration = Duration::from_secs(30);
const IDLE_STREAM: Duration = Duration::from_secs(120);
/// Packets that are passed on before others have their turn.
const TURN: usize = 64;
const LARGEST_PACKET: usize = 65_536;

/// What all flows share.
#[derive(Clone)]
pub struct Shared {
    buffer: Arc<Mutex<Vec<u8>>>,
    begun: Instant,
    places: Arc<Semaphore>,
    tasks: TaskGroup,
}

impl Shared {
    #[must_use]
    pub fn new(places: Arc<Semaphore>, tasks: TaskGroup) -> Self {
        let buffer = Arc::new(Mutex::new(vec![0; LARGEST_PACKET]));
        Self { buffer, begun: Instant::now(), places, tasks }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// When a flow was last used, and how much its client sent.
#[derive(Debug, Default)]
struct Use {
    last: AtomicU64,
    sent: AtomicU64,
}

impl Use {
    /// When the flow ends, as of now.
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
    _place: OwnedSemaphorePermit,
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.answers.abort();
    }
}

/// Relays packets for ever.
pub async fn serve(socket: UdpSocket, front: Arc<OpenFront>, _held: Option<Held>, shared: Shared) {
    let (ended, endings) = unbounded_channel();
    Relay { socket: Arc::new(socket), front, shared, flows: HashMap::new(), ended }.run(endings).await;
}

struct Relay {
    socket: Arc<UdpSocket>,
    front: Arc<OpenFront>,
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
                    // There is no end of a flow that would come from the endpoint.
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
                // What a client that is gone had said about an answer.
                Err(error) => tracing::trace!(%error, "receiving for a service"),
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
                    tracing::debug!(%client, %error, "a flow to a service cannot begin");
                    return;
                }
            }
        }
        let Some(flow) = self.flows.get(&client) else { return };
        flow.used.last.store(self.shared.now(), Ordering::Relaxed);
        flow.used.sent.fetch_add(1, Ordering::Relaxed);
        // Not through the executor, which would first have to learn that there is room. What does not fit is lost, as
        // packets are.
        if send(&flow.socket, packet, SendFlags::DONTWAIT) == Err(Errno::CONNREFUSED) {
            self.flows.remove(&client);
        }
    }

    /// None if nobody serves the client, or there are too many.
    fn begin(&self, client: SocketAddr) -> io::Result<Option<Flow>> {
        let Ok(place) = Arc::clone(&self.shared.places).try_acquire_owned() else { return Ok(None) };
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
        Ok(Some(Flow { endpoint, socket, used, answers: task.abort_handle(), _place: place }))
    }
}

/// What comes back to a client.
struct Answers {
    from: Arc<UdpSocket>,
    through: Arc<UdpSocket>,
    client: SocketAddr,
    used: Arc<Use>,
    shared: Shared,
}

impl Answers {
    /// Until the flow is silent for too long, or its endpoint refuses.
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
