//! Network namespaces without external routes: a node between an external client and two pods.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use proxy::backend::{self, Backend, Mode};
use proxy::model::Node;
use sys::instance::Instance;
use testbase::{NetworkNamespaces, ip};

/// Timeout on a slow machine; only dropped packets take all of it.
pub const PATIENCE: Duration = Duration::from_secs(15);
/// Limit for connections that must not succeed: longer than the kernel's first retransmission of a SYN.
const SILENCE: Duration = Duration::from_secs(2);

/// The namespaces `node`, `pod0`, `pod1` and `out`.
pub struct World {
    namespaces: NetworkNamespaces,
}

impl Deref for World {
    type Target = NetworkNamespaces;

    fn deref(&self) -> &NetworkNamespaces {
        &self.namespaces
    }
}

impl World {
    /// A node with two pods (10.1.0.2 and 10.1.1.2) and an external client (192.0.2.2).
    pub fn new() -> Option<Self> {
        let namespaces = NetworkNamespaces::new("proxy", ["node", "pod0", "pod1", "out"])?;
        let world = Self { namespaces };
        for (at, (name, v4, v6)) in
            [("pod0", "10.1.0", "fd01::"), ("pod1", "10.1.1", "fd01:1::"), ("out", "192.0.2", "fd02::")]
                .iter()
                .enumerate()
        {
            let (inner, node) = (world.name(name), world.name("node"));
            ip(&format!("link add v{at} netns {node} type veth peer name eth0 netns {inner}"));
            for (side, link, last) in [("node", format!("v{at}"), 1), (*name, "eth0".to_owned(), 2)] {
                world.ip(side, &format!("addr add {v4}.{last}/24 dev {link}"));
                world.ip(side, &format!("addr add {v6}{last}/64 dev {link} nodad"));
                world.ip(side, &format!("link set {link} up"));
            }
            world.ip(name, &format!("route add default via {v4}.1"));
            world.ip(name, &format!("-6 route add default via {v6}1"));
        }
        // A node drops packets to addresses without a route; the external client serves as default gateway.
        world.ip("node", "route add default via 192.0.2.2");
        world.enable("node", &["ipv4/ip_forward", "ipv6/conf/all/forwarding"]);
        Some(world)
    }

    /// A server in a pod that returns its name and the client's address, over TCP and UDP, both families.
    pub fn serve(&self, name: &'static str) {
        let (tcp, udp) = self.within(name, || {
            (
                TcpListener::bind("[::]:8080").expect("listening"),
                UdpSocket::bind("[::]:8080").expect("listening"),
            )
        });
        std::thread::spawn(move || {
            for stream in tcp.incoming() {
                let Ok(mut stream) = stream else { continue };
                let peer =
                    stream.peer_addr().map(|peer| peer.ip().to_canonical().to_string()).unwrap_or_default();
                let _ = stream.write_all(format!("{name} {peer}").as_bytes());
            }
        });
        std::thread::spawn(move || {
            let mut buffer = [0; 64];
            while let Ok((_, peer)) = udp.recv_from(&mut buffer) {
                let _ = udp.send_to(format!("{name} {}", peer.ip().to_canonical()).as_bytes(), peer);
            }
        });
    }

    /// Response of a server to a connection from a namespace, or the error.
    pub fn request(&self, from: &str, to: &str) -> Result<String, std::io::ErrorKind> {
        self.request_within(from, to, PATIENCE)
    }

    /// As `request`, where packets may be dropped silently.
    pub fn request_briefly(&self, from: &str, to: &str) -> Result<String, std::io::ErrorKind> {
        self.request_within(from, to, SILENCE)
    }

    fn request_within(&self, from: &str, to: &str, limit: Duration) -> Result<String, std::io::ErrorKind> {
        let to: SocketAddr = to.parse().expect("an address");
        self.within(from, move || {
            let mut stream = TcpStream::connect_timeout(&to, limit).map_err(|error| error.kind())?;
            stream.set_read_timeout(Some(limit)).map_err(|error| error.kind())?;
            let mut text = String::new();
            stream.read_to_string(&mut text).map_err(|error| error.kind())?;
            Ok(text)
        })
    }

    pub fn request_udp(&self, from: &str, to: &str) -> String {
        let to: SocketAddr = to.parse().expect("an address");
        self.within(from, move || {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a socket");
            socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            socket.send_to(b"who", to).expect("sent");
            let mut buffer = [0; 64];
            let length = socket.recv(&mut buffer).expect("an answer");
            String::from_utf8_lossy(&buffer[..length]).into_owned()
        })
    }

    /// A backend in the node; `None` if this machine cannot run it.
    pub fn backend(&self, mode: Mode) -> Option<Arc<dyn Backend>> {
        self.backend_of(mode, Instance::MAIN)
    }

    pub fn backend_of(&self, mode: Mode, instance: Instance) -> Option<Arc<dyn Backend>> {
        let pods = ["10.1.0.0/16", "fd01::/16"];
        let pod_cidrs = pods.iter().filter_map(|text| text.parse().ok()).collect();
        let node = Node { name: "node".into(), pod_cidrs, instance, ..Node::default() };
        let backend = self.within("node", move || backend::open(Some(mode), &node)).expect("a backend");
        if backend.mode() == mode {
            return Some(backend.into());
        }
        eprintln!("skipped: {} is not available on this machine", mode.name());
        assert!(!matches!(mode, Mode::Nftables | Mode::Userspace), "these have to work");
        None
    }
}
