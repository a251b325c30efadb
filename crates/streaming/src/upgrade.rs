//! Negotiates the protocol of an upgrade request and builds the response.

use http::header::{CONNECTION, UPGRADE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use crate::websocket;

/// Protocol after the upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Channels over a WebSocket.
    Channels(Dialect),
    /// SPDY/3.1 streams.
    Spdy,
    /// SPDY/3.1 streams in WebSocket messages.
    TunnelledSpdy,
}

/// Variant of the channel protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dialect {
    /// Clients can close their input: version 5.
    pub close_signal: bool,
    /// The result is sent as a Status, since version 4. Before, only failures are sent, as text.
    pub status: bool,
    /// Base64 text instead of bytes.
    pub base64: bool,
}

/// Channel dialects by subprotocol name, best first.
const DIALECTS: [(&str, Dialect); 5] = [
    ("v5.channel.k8s.io", Dialect { close_signal: true, status: true, base64: false }),
    ("v4.channel.k8s.io", Dialect { close_signal: false, status: true, base64: false }),
    ("v4.base64.channel.k8s.io", Dialect { close_signal: false, status: true, base64: true }),
    ("channel.k8s.io", Dialect { close_signal: false, status: false, base64: false }),
    ("base64.channel.k8s.io", Dialect { close_signal: false, status: false, base64: true }),
];

/// Purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Command,
    PortForward,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("upgrade to WebSocket or SPDY/3.1 required")]
    NoUpgrade,
    #[error("none of the offered subprotocols is supported: {0}")]
    Subprotocol(String),
}

const STREAM_PROTOCOL: &str = "x-stream-protocol-version";
const FORWARD: &str = "portforward.k8s.io";
const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";
/// Channel dialects for port-forward.
const FORWARD_DIALECTS: [&str; 2] = ["v4.channel.k8s.io", "v4.base64.channel.k8s.io"];

fn offered(headers: &HeaderMap, name: &str) -> Vec<String> {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(|value| value.trim().to_owned()).collect()
}

fn switching() -> Response<()> {
    let mut answer = Response::new(());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    answer
}

fn to_websocket(headers: &HeaderMap, answer: &mut Response<()>, subprotocol: &str) -> Result<(), Refused> {
    let key = headers.get("sec-websocket-key").and_then(|key| key.to_str().ok()).ok_or(Refused::NoUpgrade)?;
    let accept = HeaderValue::from_str(&websocket::accept(key)).map_err(|_| Refused::NoUpgrade)?;
    answer.headers_mut().insert(UPGRADE, HeaderValue::from_static("websocket"));
    answer.headers_mut().insert("sec-websocket-accept", accept);
    if !subprotocol.is_empty() {
        let name = HeaderValue::from_str(subprotocol).map_err(|_| Refused::NoUpgrade)?;
        answer.headers_mut().insert("sec-websocket-protocol", name);
    }
    Ok(())
}

/// Encoding of a single stream in WebSocket messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Binary,
    Base64,
    /// Content is already text.
    Text,
}

/// Returns true for a WebSocket upgrade request.
#[must_use]
pub fn is_websocket_upgrade(headers: &HeaderMap) -> bool {
    offered(headers, "upgrade").iter().any(|offered| offered.eq_ignore_ascii_case("websocket"))
}

/// Accepts a request to read a single stream, such as a log, over a WebSocket.
pub fn choose_reader(headers: &HeaderMap) -> Result<(Encoding, Response<()>), Refused> {
    let offers = offered(headers, "sec-websocket-protocol");
    let known = [("binary.k8s.io", Encoding::Binary), ("base64.binary.k8s.io", Encoding::Base64)];
    let chosen = known.into_iter().find(|(name, _)| offers.iter().any(|offer| offer == name));
    let (name, encoding) = match chosen {
        Some(chosen) => chosen,
        None if offers.is_empty() => ("", Encoding::Binary),
        None => return Err(Refused::Subprotocol(offers.join(", "))),
    };
    let mut answer = switching();
    to_websocket(headers, &mut answer, name)?;
    Ok((encoding, answer))
}

/// Prefix of bearer tokens from clients that cannot set headers; not a subprotocol.
const BEARER: &str = "base64url.bearer.authorization.k8s.io.";

/// Accepts a watch over a WebSocket, with any subprotocol.
pub fn choose_watcher(headers: &HeaderMap) -> Result<Response<()>, Refused> {
    let offers = offered(headers, "sec-websocket-protocol");
    let name = offers.iter().find(|offer| !offer.starts_with(BEARER)).map_or("", String::as_str);
    let mut answer = switching();
    to_websocket(headers, &mut answer, name)?;
    Ok(answer)
}

/// Selects a protocol and builds the 101 response.
///
/// ```
/// use streaming::upgrade::{Protocol, Purpose, choose};
///
/// let mut headers = http::HeaderMap::new();
/// headers.insert("connection", "Upgrade".parse()?);
/// headers.insert("upgrade", "websocket".parse()?);
/// headers.insert("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==".parse()?);
/// headers.insert("sec-websocket-protocol", "v5.channel.k8s.io".parse()?);
/// let (protocol, response) = choose(&headers, Purpose::Command)?;
/// assert!(matches!(protocol, Protocol::Channels(dialect) if dialect.close_signal));
/// assert_eq!(response.headers()["sec-websocket-protocol"], "v5.channel.k8s.io");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn choose(headers: &HeaderMap, purpose: Purpose) -> Result<(Protocol, Response<()>), Refused> {
    let upgrade = offered(headers, "upgrade");
    let has = |name: &str| upgrade.iter().any(|offered| offered.eq_ignore_ascii_case(name));
    let mut answer = switching();
    let unknown = |offers: Vec<String>| Refused::Subprotocol(offers.join(", "));
    if has("websocket") {
        let offers = offered(headers, "sec-websocket-protocol");
        let has = |name: &str| offers.iter().any(|offer| offer == name);
        let chosen = match purpose {
            Purpose::Command if offers.is_empty() => Some(("", Protocol::Channels(Dialect::default()))),
            Purpose::Command => DIALECTS
                .into_iter()
                .find(|(name, _)| has(name))
                .map(|(name, dialect)| (name, Protocol::Channels(dialect))),
            Purpose::PortForward if has(TUNNEL) => Some((TUNNEL, Protocol::TunnelledSpdy)),
            Purpose::PortForward if offers.is_empty() => Some(("", Protocol::Channels(Dialect::default()))),
            Purpose::PortForward => DIALECTS
                .into_iter()
                .find(|(name, _)| FORWARD_DIALECTS.contains(name) && has(name))
                .map(|(name, dialect)| (name, Protocol::Channels(dialect))),
        };
        let (name, protocol) = chosen.ok_or_else(|| unknown(offers))?;
        to_websocket(headers, &mut answer, name)?;
        return Ok((protocol, answer));
    }
    if has("SPDY/3.1") {
        let offers = offered(headers, STREAM_PROTOCOL);
        let known: &[&'static str] = match purpose {
            Purpose::Command => &["v5.channel.k8s.io", "v4.channel.k8s.io"],
            Purpose::PortForward => &[FORWARD],
        };
        let chosen = known.iter().find(|name| offers.iter().any(|offer| offer == *name));
        // Port-forward clients may omit the version: there is only one.
        let chosen = match (chosen, purpose) {
            (Some(name), _) => *name,
            (None, Purpose::PortForward) if offers.is_empty() => FORWARD,
            (None, _) => return Err(unknown(offers)),
        };
        answer.headers_mut().insert(UPGRADE, HeaderValue::from_static("SPDY/3.1"));
        answer.headers_mut().insert(STREAM_PROTOCOL, HeaderValue::from_static(chosen));
        return Ok((Protocol::Spdy, answer));
    }
    Err(Refused::NoUpgrade)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upgrade_selects_protocol() {
        let choose = |pairs: &[(&'static str, &str)], purpose| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(*name, HeaderValue::from_str(value).unwrap());
            }
            choose(&headers, purpose).map(|(protocol, _)| protocol)
        };
        let socket = [("upgrade", "websocket"), ("sec-websocket-key", "x")];
        let with = |protocols| [socket[0], socket[1], ("sec-websocket-protocol", protocols)];
        assert_eq!(
            choose(&with("v4.channel.k8s.io, v5.channel.k8s.io"), Purpose::Command),
            Ok(Protocol::Channels(Dialect { close_signal: true, status: true, base64: false }))
        );
        assert_eq!(
            choose(&with("base64.channel.k8s.io"), Purpose::Command),
            Ok(Protocol::Channels(Dialect { base64: true, ..Dialect::default() }))
        );
        assert_eq!(choose(&socket, Purpose::Command), Ok(Protocol::Channels(Dialect::default())));
        assert_eq!(choose(&with(TUNNEL), Purpose::PortForward), Ok(Protocol::TunnelledSpdy));
        for (name, base64) in [("v4.channel.k8s.io", false), ("v4.base64.channel.k8s.io", true)] {
            let dialect = Dialect { close_signal: false, status: true, base64 };
            assert_eq!(choose(&with(name), Purpose::PortForward), Ok(Protocol::Channels(dialect)));
        }
        assert!(choose(&with("v5.channel.k8s.io"), Purpose::PortForward).is_err());
        assert!(choose(&with("v9"), Purpose::Command).is_err());
        let spdy = [
            ("upgrade", "SPDY/3.1"),
            (STREAM_PROTOCOL, "v4.channel.k8s.io"),
            (STREAM_PROTOCOL, "channel.k8s.io"),
        ];
        assert_eq!(choose(&spdy, Purpose::Command), Ok(Protocol::Spdy));
        assert_eq!(choose(&spdy[..1], Purpose::PortForward), Ok(Protocol::Spdy));
        assert_eq!(choose(&[], Purpose::Command), Err(Refused::NoUpgrade));
    }

    #[test]
    fn reader_upgrade_selects_encoding() {
        for (offers, want) in [
            (None, Some((Encoding::Binary, None))),
            (Some("x, binary.k8s.io"), Some((Encoding::Binary, Some("binary.k8s.io")))),
            (Some("base64.binary.k8s.io"), Some((Encoding::Base64, Some("base64.binary.k8s.io")))),
            (Some("x"), None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("upgrade", HeaderValue::from_static("websocket"));
            headers.insert("sec-websocket-key", HeaderValue::from_static("x"));
            if let Some(offers) = offers {
                headers.insert("sec-websocket-protocol", HeaderValue::from_static(offers));
            }
            assert!(is_websocket_upgrade(&headers));
            let chosen = choose_reader(&headers).ok();
            let chosen = chosen.as_ref().map(|(encoding, answer)| {
                let name = answer.headers().get("sec-websocket-protocol").and_then(|name| name.to_str().ok());
                (*encoding, name)
            });
            assert_eq!(chosen, want, "{offers:?}");
        }
    }
}
