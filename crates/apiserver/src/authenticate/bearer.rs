//! Bearer tokens: in the `Authorization` header or, for browsers' WebSockets, in the list of subprotocols.

use super::Refusal;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use http::{HeaderMap, HeaderValue};
use std::borrow::Cow;

/// Prefix of a token in the list of subprotocols.
const PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

/// The request's token, if any.
pub fn token(headers: &HeaderMap) -> Result<Option<Cow<'_, str>>, Refusal> {
    match bearer(headers) {
        Some(token) => Ok(Some(Cow::Borrowed(token))),
        None => websocket(headers).map(|token| token.map(Cow::Owned)),
    }
}

/// Token of an `Authorization: Bearer` header.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let header = headers.get(AUTHORIZATION)?.to_str().ok()?.trim();
    let (scheme, rest) = header.split_once(' ')?;
    let token = rest.split(' ').next().unwrap_or("");
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// Subprotocols offered by the client.
pub fn protocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let lists = headers.get_all(SEC_WEBSOCKET_PROTOCOL).into_iter().filter_map(|list| list.to_str().ok());
    lists.flat_map(|list| list.split(',')).map(str::trim)
}

/// Removes the subprotocols that contain a token, so that no handler sees or forwards it, as Kubernetes'
/// authenticator does.
pub fn remove_protocols(headers: &mut HeaderMap) {
    if !protocols(headers).any(|protocol| protocol.starts_with(PROTOCOL)) {
        return;
    }
    let retained: Vec<&str> = protocols(headers).filter(|protocol| !protocol.starts_with(PROTOCOL)).collect();
    let retained = HeaderValue::from_str(&retained.join(", ")).ok().filter(|retained| !retained.is_empty());
    match retained {
        Some(retained) => drop(headers.insert(SEC_WEBSOCKET_PROTOCOL, retained)),
        None => drop(headers.remove(SEC_WEBSOCKET_PROTOCOL)),
    }
}

fn websocket(headers: &HeaderMap) -> Result<Option<String>, Refusal> {
    let upgrade = headers.get(UPGRADE).and_then(|value| value.to_str().ok()).unwrap_or("");
    if !upgrade.eq_ignore_ascii_case("websocket") {
        return Ok(None);
    }
    let refuse = |why: &str| Err(Refusal(why.to_owned()));
    let mut tokens = protocols(headers).filter_map(|protocol| protocol.strip_prefix(PROTOCOL));
    let Some(encoded) = tokens.next() else { return Ok(None) };
    if tokens.next().is_some() {
        return refuse("multiple base64.bearer.authorization tokens specified");
    }
    let Ok(decoded) = URL_SAFE_NO_PAD.decode(encoded) else {
        return refuse("invalid base64.bearer.authorization token encoding");
    };
    let Ok(token) = String::from_utf8(decoded) else {
        return refuse("invalid base64.bearer.authorization token");
    };
    if token.is_empty() {
        return Ok(None);
    }
    // One subprotocol must remain for the response.
    if protocols(headers).all(|protocol| protocol.starts_with(PROTOCOL)) {
        return refuse("missing additional subprotocol");
    }
    Ok(Some(token))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bearer_header_is_parsed() {
        for (header, want) in [
            ("Bearer abc", Some("abc")),
            ("bearer abc", Some("abc")),
            (" BEARER abc def", Some("abc")),
            ("Bearer  abc", None),
            ("Bearer", None),
            ("Basic abc", None),
            ("", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, header.parse().unwrap());
            assert_eq!(bearer(&headers), want, "{header:?}");
        }
    }

    #[test]
    fn remove_protocols_drops_only_tokens() {
        let one = format!("{PROTOCOL}{}", URL_SAFE_NO_PAD.encode("abc"));
        for (input, want) in [
            (
                vec![format!("{one}, v5.channel.k8s.io,v4.channel.k8s.io")],
                Some("v5.channel.k8s.io, v4.channel.k8s.io"),
            ),
            (vec!["v5.channel.k8s.io".to_owned(), format!(" {one}")], Some("v5.channel.k8s.io")),
            (vec!["a,b".to_owned()], Some("a,b")),
            (vec![one.clone(), one.clone()], None),
            (vec![], None),
        ] {
            let mut headers = HeaderMap::new();
            for protocol in &input {
                headers.append(SEC_WEBSOCKET_PROTOCOL, protocol.parse().unwrap());
            }
            remove_protocols(&mut headers);
            let left: Vec<_> = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().collect();
            assert_eq!(left, want.into_iter().collect::<Vec<_>>(), "{input:?}");
        }
    }

    #[test]
    fn websocket_protocol_token_is_decoded() {
        let one = format!("{PROTOCOL}{}", URL_SAFE_NO_PAD.encode("abc"));
        for (upgrade, protocols, want) in [
            ("websocket", vec![format!("{one}, v5.channel.k8s.io")], Ok(Some("abc"))),
            ("WebSocket", vec!["v5.channel.k8s.io".to_owned(), one.clone()], Ok(Some("abc"))),
            ("", vec![format!("{one}, v5.channel.k8s.io")], Ok(None)),
            ("websocket", vec!["v5.channel.k8s.io".to_owned()], Ok(None)),
            ("websocket", vec![one.clone()], Err("missing additional subprotocol")),
            (
                "websocket",
                vec![format!("{one},{one},x")],
                Err("multiple base64.bearer.authorization tokens specified"),
            ),
            (
                "websocket",
                vec![format!("{PROTOCOL}%,x")],
                Err("invalid base64.bearer.authorization token encoding"),
            ),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(UPGRADE, upgrade.parse().unwrap());
            for protocol in &protocols {
                headers.append(SEC_WEBSOCKET_PROTOCOL, protocol.parse().unwrap());
            }
            let got = token(&headers).map(|token| token.map(Cow::into_owned));
            let want = want.map(|token| token.map(str::to_owned)).map_err(|why| Refusal(why.to_owned()));
            assert_eq!(got, want, "{protocols:?}");
        }
    }
}
