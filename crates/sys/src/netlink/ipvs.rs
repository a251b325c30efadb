//! The kernel's load balancer, IPVS: virtual services and the destinations behind them.

use std::fmt;
use std::io;
use std::net::IpAddr;

use super::{Message, Netlink, attributes, family, octets};

const GENERIC: i32 = 16;
/// Generic netlink controller, which resolves other families.
const CONTROL: u16 = 16;

const NEW_SERVICE: u8 = 1;
const SET_SERVICE: u8 = 2;
const REMOVE_SERVICE: u8 = 3;
const NEW_DESTINATION: u8 = 5;
const SET_DESTINATION: u8 = 6;
const REMOVE_DESTINATION: u8 = 7;
const FLUSH: u8 = 17;

/// A virtual service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VirtualService {
    pub address: IpAddr,
    pub protocol: u8,
    pub port: u16,
}

/// A real server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Destination {
    pub address: IpAddr,
    pub port: u16,
}

/// One change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Creates a service, or changes its session affinity timeout in seconds.
    Service {
        service: VirtualService,
        new: bool,
        persistent: Option<u32>,
    },
    RemoveService(VirtualService),
    /// Adds a destination, or changes its weight; weight 0 receives no new connections.
    Destination {
        service: VirtualService,
        destination: Destination,
        new: bool,
        weight: u32,
    },
    RemoveDestination(VirtualService, Destination),
    /// Removes everything.
    Flush,
}

impl fmt::Display for VirtualService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, protocol, port } = self;
        write!(f, "virtual service {address} port {port} (IP protocol {protocol})")
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = |new: bool| if new { "add" } else { "update" };
        match self {
            Self::Service { service, new, .. } => write!(f, "{} {service}", verb(*new)),
            Self::RemoveService(service) => write!(f, "remove {service}"),
            Self::Destination { service, destination, new, .. } => {
                write!(f, "{} destination {} of {service}", verb(*new), destination.address)
            }
            Self::RemoveDestination(service, destination) => {
                write!(f, "remove destination {} of {service}", destination.address)
            }
            Self::Flush => f.write_str("remove all virtual services"),
        }
    }
}

/// An IPVS generic netlink socket.
#[derive(Debug)]
pub struct Ipvs {
    netlink: Netlink,
    family: u16,
}

impl Ipvs {
    /// Opens a socket in the network namespace of the caller; fails with `Unsupported` if the kernel has no IPVS.
    pub fn open() -> io::Result<Self> {
        const GET_FAMILY: u8 = 3;
        const FAMILY_ID: u16 = 1;
        const FAMILY_NAME: u16 = 2;
        let mut netlink = Netlink::open_family(GENERIC)?;
        let message = Message::new(CONTROL, 0).raw(&head(GET_FAMILY)).text(FAMILY_NAME, "IPVS");
        let answers = match netlink.request(message) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let text = "kernel has no IPVS support (module ip_vs)";
                return Err(io::Error::new(io::ErrorKind::Unsupported, text));
            }
            other => other?,
        };
        let family = answers.iter().find_map(|(_, body)| {
            let found = attributes(body.get(4..)?).find(|(kind, _)| *kind == FAMILY_ID)?;
            found.1.first_chunk::<2>().map(|bytes| u16::from_ne_bytes(*bytes))
        });
        let family = family.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
        Ok(Self { netlink, family })
    }

    pub fn make(&mut self, step: &Step) -> io::Result<()> {
        self.netlink.request(encode(self.family, step)).map(drop)
    }
}

fn head(command: u8) -> [u8; 4] {
    [command, 1, 0, 0]
}

fn encode(family: u16, step: &Step) -> Message {
    const SERVICE: u16 = 1;
    const DESTINATION: u16 = 2;
    let message = |command: u8| Message::new(family, 0).raw(&head(command));
    match step {
        Step::Service { service, new, persistent } => message(if *new { NEW_SERVICE } else { SET_SERVICE })
            .nested(SERVICE, |inside| settings(identity(inside, service), service, *persistent)),
        Step::RemoveService(service) => {
            message(REMOVE_SERVICE).nested(SERVICE, |inside| identity(inside, service))
        }
        Step::Destination { service, destination, new, weight } => {
            message(if *new { NEW_DESTINATION } else { SET_DESTINATION })
                .nested(SERVICE, |inside| identity(inside, service))
                .nested(DESTINATION, |inside| {
                    const METHOD: u16 = 3;
                    const WEIGHT: u16 = 4;
                    const UPPER: u16 = 5;
                    const LOWER: u16 = 6;
                    const TRANSLATE: u32 = 0;
                    socket_address(inside, destination)
                        .number(METHOD, TRANSLATE)
                        .number(WEIGHT, *weight)
                        .number(UPPER, 0)
                        .number(LOWER, 0)
                })
        }
        Step::RemoveDestination(service, destination) => message(REMOVE_DESTINATION)
            .nested(SERVICE, |inside| identity(inside, service))
            .nested(DESTINATION, |inside| socket_address(inside, destination)),
        Step::Flush => message(FLUSH),
    }
}

/// Address field, sized for both families.
fn wide(address: IpAddr) -> Vec<u8> {
    let mut bytes = octets(address);
    bytes.resize(16, 0);
    bytes
}

fn identity(message: Message, service: &VirtualService) -> Message {
    message
        .attribute(1, &u16::from(family(service.address)).to_ne_bytes())
        .attribute(2, &u16::from(service.protocol).to_ne_bytes())
        .attribute(3, &wide(service.address))
        .attribute(4, &service.port.to_be_bytes())
}

fn settings(message: Message, service: &VirtualService, persistent: Option<u32>) -> Message {
    const SCHEDULER: u16 = 6;
    const FLAGS: u16 = 7;
    const TIMEOUT: u16 = 8;
    const NETMASK: u16 = 9;
    const PERSISTENT: u32 = 1;
    let flags = if persistent.is_some() { PERSISTENT } else { 0 };
    // Persistence per client address.
    let netmask: u32 = if service.address.is_ipv4() { u32::MAX } else { 128 };
    message
        .text(SCHEDULER, "rr")
        .attribute(FLAGS, &[flags.to_ne_bytes(), u32::MAX.to_ne_bytes()].concat())
        .number(TIMEOUT, persistent.unwrap_or(0))
        .number(NETMASK, netmask)
}

fn socket_address(message: Message, destination: &Destination) -> Message {
    const ADDRESS: u16 = 1;
    const PORT: u16 = 2;
    const FAMILY: u16 = 11;
    message
        .attribute(ADDRESS, &wide(destination.address))
        .attribute(PORT, &destination.port.to_be_bytes())
        .attribute(FAMILY, &u16::from(family(destination.address)).to_ne_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEB: VirtualService =
        VirtualService { address: IpAddr::V4(std::net::Ipv4Addr::new(10, 96, 0, 9)), protocol: 6, port: 80 };
    const POD: Destination =
        Destination { address: IpAddr::V4(std::net::Ipv4Addr::new(10, 1, 0, 2)), port: 8080 };

    /// A message without the netlink header, as hexadecimal words.
    fn fields(step: &Step) -> Vec<String> {
        let bytes = encode(0x1c, step).0;
        assert_eq!(bytes[4..8], [0x1c, 0, 1, 0], "kind and flags");
        bytes[super::super::HEADER..]
            .chunks(4)
            .map(|field| field.iter().map(|byte| format!("{byte:02x}")).collect())
            .collect()
    }

    /// IPv4, TCP, 10.96.0.9, port 80.
    #[rustfmt::skip]
    const IDENTITY: [&str; 11] = [
        "06000100", "02000000",
        "06000200", "06000000",
        "14000300", "0a600009", "00000000", "00000000", "00000000",
        "06000400", "00500000",
    ];

    #[cfg(target_endian = "little")]
    #[test]
    fn ipvs_messages_encode() {
        // Command and version; the nested attribute with its length.
        let mut wanted = vec!["01010000", "54000180"];
        wanted.extend(IDENTITY);
        wanted.extend([
            "07000600", "72720000", // rr
            "0c000700", "01000000", "ffffffff", // persistent, all flags
            "08000800", "302a0000", // 10800 seconds
            "08000900", "ffffffff", // each client for itself
        ]);
        let step = Step::Service { service: WEB, new: true, persistent: Some(10_800) };
        assert_eq!(fields(&step), wanted);

        let mut wanted = vec!["06010000", "30000180"];
        wanted.extend(IDENTITY);
        wanted.extend([
            "48000280", // the destination
            "14000100", "0a010002", "00000000", "00000000", "00000000", // 10.1.0.2
            "06000200", "1f900000", // port 8080
            "06000b00", "02000000", // IPv4
            "08000300", "00000000", // translated
            "08000400", "00000000", // no weight
            "08000500", "00000000", "08000600", "00000000", // no limits
        ]);
        let step = Step::Destination { service: WEB, destination: POD, new: false, weight: 0 };
        assert_eq!(fields(&step), wanted);

        let mut wanted = vec!["03010000", "30000180"];
        wanted.extend(IDENTITY);
        assert_eq!(fields(&Step::RemoveService(WEB)), wanted);
        assert_eq!(fields(&Step::Flush), ["11010000"]);
        let removal = fields(&Step::RemoveDestination(WEB, POD));
        assert_eq!((removal[0].as_str(), removal.len()), ("07010000", 2 + 11 + 1 + 5 + 2 + 2));
    }

    #[test]
    fn kernel_without_ipvs_is_unsupported() {
        match Ipvs::open() {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}"),
        }
    }
}
