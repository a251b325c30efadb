//! Transport protocols of services, policies and host ports.

/// A transport protocol; its value is the number in IP headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    Tcp = 6,
    Udp = 17,
    Sctp = 132,
}

impl Protocol {
    const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Sctp];

    /// From the name in the API.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|protocol| protocol.name() == name)
    }

    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|protocol| *protocol as u8 == number)
    }

    /// Name in the API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        }
    }

    /// Name in firewall rules and CNI.
    #[must_use]
    pub fn lower_name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocol_is_found_by_name_and_number() {
        for (protocol, name, number) in
            [(Protocol::Tcp, "TCP", 6), (Protocol::Udp, "UDP", 17), (Protocol::Sctp, "SCTP", 132)]
        {
            assert_eq!((protocol.name(), protocol as u8), (name, number));
            assert_eq!(protocol.lower_name(), name.to_lowercase());
            assert_eq!(Protocol::from_name(name), Some(protocol));
            assert_eq!(Protocol::from_number(number), Some(protocol));
        }
        assert_eq!((Protocol::from_name("tcp"), Protocol::from_number(1)), (None, None));
    }
}
