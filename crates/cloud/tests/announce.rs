//! Failover of an announced address: clients on the link use the new machine immediately. Real packets in isolated
//! network namespaces of the test.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use sys::netlink::Netlink;

const PATIENCE: Duration = Duration::from_secs(60);
const NAMES: [&str; 4] = ["switch", "one", "two", "client"];

struct World;

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split_whitespace()).output().expect("running ip");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

fn name(name: &str) -> String {
    format!("ferry-announce-{}-{name}", std::process::id())
}

impl World {
    /// Two nodes and a client on one link.
    fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() || Command::new("ip").arg("-V").output().is_err() {
            eprintln!("skipped: needs root and the ip command");
            return None;
        }
        let world = Self;
        for namespace in NAMES {
            ip(&format!("netns add {}", name(namespace)));
            ip(&format!("-n {} link set lo up", name(namespace)));
        }
        let switch = name("switch");
        ip(&format!("-n {switch} link add br0 type bridge"));
        ip(&format!("-n {switch} link set br0 up"));
        for (last, end) in NAMES[1..].iter().enumerate() {
            let inner = name(end);
            ip(&format!("link add v-{end} netns {switch} type veth peer name eth0 netns {inner}"));
            ip(&format!("-n {switch} link set v-{end} master br0"));
            ip(&format!("-n {switch} link set v-{end} up"));
            ip(&format!("-n {inner} addr add 192.0.2.{}/24 dev eth0", last + 1));
            ip(&format!("-n {inner} addr add fd02::{}/64 dev eth0 nodad", last + 1));
            ip(&format!("-n {inner} link set eth0 up"));
        }
        for end in ["one", "two"] {
            let listener = world.within(end, || TcpListener::bind("[::]:8080").expect("listening"));
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let _ = (&stream).write_all(end.as_bytes());
                }
            });
        }
        Some(world)
    }

    fn within<T: Send + 'static>(&self, namespace: &str, body: impl FnOnce() -> T + Send + 'static) -> T {
        let path = format!("/run/netns/{}", name(namespace));
        let thread = std::thread::spawn(move || {
            let file = std::fs::File::open(path).expect("the namespace");
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).expect("entering it");
            body()
        });
        thread.join().expect("the thread")
    }

    fn query(&self, address: IpAddr) -> String {
        self.within("client", move || {
            let to = SocketAddr::new(address, 8080);
            let mut text = String::new();
            match TcpStream::connect_timeout(&to, Duration::from_millis(500)) {
                Ok(mut stream) => drop(stream.read_to_string(&mut text)),
                Err(error) => text = error.to_string(),
            }
            text
        })
    }

    fn give(&self, namespace: &str, address: IpAddr, prefix: u8) {
        self.within(namespace, move || {
            let mut netlink = Netlink::open().expect("netlink");
            netlink.add_address("eth0", address, prefix).expect("an address");
            let link = netlink.link("eth0").expect("links").expect("a link");
            sys::neighbours::announce(&link, address).expect("announced");
        });
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for namespace in NAMES {
            let _ = Command::new("ip").args(["netns", "del", &name(namespace)]).status();
        }
    }
}

#[test]
fn announced_address_moves_to_new_node() {
    let Some(world) = World::new() else { return };
    for (text, prefix) in [("192.0.2.100", 32), ("fd02::100", 128)] {
        let address: IpAddr = text.parse().expect("an address");
        world.give("one", address, prefix);
        let wait = |expected: &str| {
            let begun = Instant::now();
            loop {
                let seen = world.query(address);
                if seen == expected {
                    return;
                }
                assert!(begun.elapsed() < PATIENCE, "{text}: {seen:?} instead of {expected:?}");
            }
        };
        wait("one");
        // The first machine keeps it, as after a failure: only the announcement updates the client.
        world.give("two", address, prefix);
        wait("two");
        world.within("two", move || {
            let mut netlink = Netlink::open().expect("netlink");
            netlink.remove_address("eth0", address, prefix).expect("removed");
            netlink.remove_address("eth0", address, prefix).expect("removing nothing");
            assert!(
                !netlink.addresses("eth0").expect("addresses").iter().any(|known| known.addr() == address)
            );
        });
    }
}
