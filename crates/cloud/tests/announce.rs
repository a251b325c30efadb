//! Failover of an announced address: clients on the link use the new machine immediately. Real packets in isolated
//! network namespaces of the test.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::ops::Deref;
use std::time::{Duration, Instant};

use sys::netlink::Netlink;
use testbase::{NetworkNamespaces, ip};

const PATIENCE: Duration = Duration::from_secs(60);
const NAMES: [&str; 4] = ["switch", "one", "two", "client"];

struct World {
    namespaces: NetworkNamespaces,
}

impl Deref for World {
    type Target = NetworkNamespaces;

    fn deref(&self) -> &NetworkNamespaces {
        &self.namespaces
    }
}

impl World {
    /// Two nodes and a client on one link.
    fn new() -> Option<Self> {
        let world = Self { namespaces: NetworkNamespaces::new("announce", NAMES)? };
        world.ip("switch", "link add br0 type bridge");
        world.ip("switch", "link set br0 up");
        for (last, end) in NAMES[1..].iter().enumerate() {
            let (switch, inner) = (world.name("switch"), world.name(end));
            ip(&format!("link add v-{end} netns {switch} type veth peer name eth0 netns {inner}"));
            world.ip("switch", &format!("link set v-{end} master br0"));
            world.ip("switch", &format!("link set v-{end} up"));
            world.ip(end, &format!("addr add 192.0.2.{}/24 dev eth0", last + 1));
            world.ip(end, &format!("addr add fd02::{}/64 dev eth0 nodad", last + 1));
            world.ip(end, "link set eth0 up");
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
