//! SCTP, with packets built by the test.

use std::net::SocketAddr;
use std::time::Duration;

use proxy::backend::Mode;
use proxy::model::Protocol;

use crate::{PODS, World, begin, eventually, service};

/// The checksum of SCTP.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _: usize| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

/// The first packet of an association, to a port.
fn first_packet(from: u16, to: u16) -> Vec<u8> {
    let mut packet = [from.to_be_bytes(), to.to_be_bytes()].concat();
    packet.extend([0; 8]);
    packet.extend([1, 0, 0, 20]);
    packet.extend(0x1234_5678_u32.to_be_bytes());
    packet.extend(65_536_u32.to_be_bytes());
    packet.extend([0, 1, 0, 1, 0, 0, 0, 1]);
    let sum = crc32c(&packet);
    packet[8..12].copy_from_slice(&sum.to_le_bytes());
    packet
}

/// SCTP is forwarded to an endpoint; the packets are built here, since not every kernel implements SCTP.
fn assert_sctp_is_forwarded(mode: Mode) {
    let Some(world) = World::new() else { return };
    let Some(mut serving) = begin(&world, mode) else { return };
    let mut association = service(&PODS[..1]);
    association.ports[0].protocol = Protocol::Sctp;
    serving.set(&association);
    let raw = || {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};
        socket_with(AddressFamily::INET, SocketType::RAW, SocketFlags::CLOEXEC, Some(ipproto::SCTP))
            .expect("a raw socket")
    };
    let listening = world.within("pod0", raw);
    rustix::net::sockopt::set_socket_timeout(
        &listening,
        rustix::net::sockopt::Timeout::Recv,
        Some(Duration::from_millis(500)),
    )
    .expect("a timeout");
    let sending = world.within("out", raw);
    let mut port = 4000;
    let mut arrives = |to: &str, number: u16| {
        port += 1;
        let to: SocketAddr = format!("{to}:0").parse().expect("an address");
        rustix::net::sendto(&sending, &first_packet(port, number), rustix::net::SendFlags::empty(), &to)
            .expect("sent");
        let mut buffer = [0; 256];
        let (_, length) =
            rustix::net::recv(&listening, &mut buffer[..], rustix::net::RecvFlags::empty()).ok()?;
        // After the IP header.
        let ports = buffer.get(20..length.min(24))?;
        Some(u16::from_be_bytes([*ports.get(2)?, *ports.get(3)?]))
    };
    for (to, number) in [("10.96.0.9", 80), ("192.0.2.1", 30_080)] {
        eventually(|| match arrives(to, number) {
            Some(8080) => Ok(()),
            other => Err(format!("{other:?} came of a packet to {to}")),
        });
    }
}

#[test]
fn nftables_forwards_sctp() {
    assert_sctp_is_forwarded(Mode::Nftables);
}

#[test]
fn iptables_forwards_sctp() {
    assert_sctp_is_forwarded(Mode::Iptables);
}
