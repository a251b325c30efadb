//! Egress rate limit of an interface: a token bucket filter.

use std::io;

use super::{CREATE, Message, Netlink, REPLACE};

/// Rate limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    pub bytes_per_second: u64,
    /// Burst size.
    pub burst: u32,
}

const NEW_QDISC: u16 = 36;
const ROOT: u32 = u32::MAX;
const HANDLE: u32 = 1 << 16;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TBF_PARAMETERS: u16 = 1;
const TBF_RATE64: u16 = 4;
const TBF_BURST: u16 = 6;
const ETHERNET: u8 = 1;
/// Maximum queueing delay, as a fraction of a second.
const LATENCY: u64 = 40;

impl Netlink {
    /// Limits the egress rate of the interface, replacing an existing limit.
    pub fn limit_rate(&mut self, name: &str, rate: Rate) -> io::Result<()> {
        let index = self.need(name)?.index;
        // Larger rates have a separate 64-bit attribute.
        let short = u32::try_from(rate.bytes_per_second).unwrap_or(u32::MAX);
        let waiting = (rate.bytes_per_second / LATENCY).saturating_add(u64::from(rate.burst));
        let mut parameters = Vec::new();
        // Rate, and the unused peak rate: cell size, link layer, overhead, alignment, minimum unit.
        parameters.extend([0, ETHERNET, 0, 0, 0, 0, 0, 0]);
        parameters.extend(short.to_ne_bytes());
        parameters.extend([0; 12]);
        let limit = u32::try_from(waiting).unwrap_or(u32::MAX);
        for field in [limit, rate.burst, 0] {
            parameters.extend(field.to_ne_bytes());
        }
        let mut message = Message::new(NEW_QDISC, CREATE | REPLACE).raw(&[0; 4]);
        for field in [index, HANDLE, ROOT, 0] {
            message = message.raw(&field.to_ne_bytes());
        }
        let message = message.text(TCA_KIND, "tbf").nested(TCA_OPTIONS, |message| {
            message
                .attribute(TBF_PARAMETERS, &parameters)
                .attribute(TBF_RATE64, &rate.bytes_per_second.to_ne_bytes())
                .attribute(TBF_BURST, &rate.burst.to_ne_bytes())
        });
        self.request(message).map(drop)
    }
}
