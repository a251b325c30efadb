//! Network namespaces without external routes: a node between an external client and two pods.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use proxy::backend::{self, Backend, Mode};
use proxy::model::Node;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use sys::instance::Instance;

/// Timeout on a slow machine; only dropped packets take all of it.
pub const PATIENCE: Duration = Duration::from_secs(15);
/// Limit for connections that must not succeed: longer than the kernel's first retransmission of a SYN.
const SILENCE: Duration = Duration::from_secs(2);

/// Namespaces that are deleted with the test.
pub struct World {
    id: u32,
}

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split_whitespace()).output().expect("running ip");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

impl World {
    /// A node with two pods (10.1.0.2 and 10.1.1.2) and an external client (192.0.2.2).
    pub fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() || Command::new("ip").arg("-V").output().is_err() {
            eprintln!("skipped: needs root and the ip command");
            return None;
        }
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let next = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let world = Self { id: std::process::id() * 16 + next };
        for name in ["node", "pod0", "pod1", "out"] {
            ip(&format!("netns add {}", world.name(name)));
            world.ip(name, "link set lo up");
        }
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
        world.within("node", || {
            for file in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
                std::fs::write(format!("/proc/sys/net/{file}"), "1").expect("forwarding");
            }
        });
        Some(world)
    }

    pub fn name(&self, name: &str) -> String {
        format!("ferry-proxy-{}-{name}", self.id)
    }

    pub fn ip(&self, name: &str, arguments: &str) {
        ip(&format!("-n {} {arguments}", self.name(name)));
    }

    /// Runs `body` on a thread inside a namespace.
    pub fn within<T: Send + 'static>(&self, name: &str, body: impl FnOnce() -> T + Send + 'static) -> T {
        self.start(name, body).join().expect("the thread")
    }

    pub fn start<T: Send + 'static>(
        &self,
        name: &str,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> std::thread::JoinHandle<T> {
        let path = format!("/run/netns/{}", self.name(name));
        std::thread::spawn(move || {
            let file = std::fs::File::open(path).expect("the namespace");
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).expect("entering it");
            body()
        })
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

impl Drop for World {
    fn drop(&mut self) {
        for name in ["node", "pod0", "pod1", "out"] {
            let _ = Command::new("ip").args(["netns", "del", &self.name(name)]).status();
        }
    }
}
