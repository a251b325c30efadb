//! Trace context on the wire: the `traceparent` and `tracestate` headers of W3C Trace Context.

use http::{HeaderMap, HeaderName, HeaderValue};
use std::fmt::Write;
use std::sync::Arc;

pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
pub const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Length of a version 00 `traceparent`.
const PARENT_LENGTH: usize = 55;
/// Longest `tracestate` that is propagated; members beyond it are removed from the end.
const MAX_STATE: usize = 512;
const MAX_MEMBERS: usize = 32;
/// Longest `tracestate` that is parsed at all.
const MAX_STATE_INPUT: usize = 8 << 10;
/// Longest key and longest value of a member.
const MAX_MEMBER_PART: usize = 256;
/// Ferry's own member of `tracestate`: the number of reconciliations between the first request of a trace and the span.
const OWN_MEMBER: &str = "ferry";

/// Identity of a span, as it travels between processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanContext {
    pub trace_id: [u8; 16],
    pub span_id: [u8; 8],
    pub sampled: bool,
    /// True if it was received from another process.
    pub remote: bool,
    /// Reconciliations between the first request of the trace and this span.
    pub hops: u8,
    /// Members of other vendors in `tracestate`.
    pub state: Option<Arc<str>>,
}

impl SpanContext {
    /// Context in the headers of a request. `None` if there is none or it is malformed; a malformed `tracestate` is
    /// ignored alone.
    #[must_use]
    pub fn extract(headers: &HeaderMap) -> Option<Self> {
        let mut parents = headers.get_all(TRACEPARENT).iter();
        let parent = parents.next()?;
        if parents.next().is_some() {
            return None;
        }
        let mut context = Self::parse(parent.as_bytes())?;
        let mut states = headers.get_all(TRACESTATE).iter().peekable();
        if states.peek().is_some()
            && let Some((state, hops)) = parse_states(states.map(HeaderValue::as_bytes))
        {
            context.hops = hops;
            context.state = Some(state).filter(|state| !state.is_empty()).map(Into::into);
        }
        Some(context)
    }

    /// Parses a `traceparent`. Later versions are read as version 00, as the specification demands.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        if text.len() < PARENT_LENGTH || [2, 35, 52].iter().any(|at| text[*at] != b'-') {
            return None;
        }
        let version = bytes::<1>(&text[..2])?[0];
        match version {
            0xff => return None,
            0 if text.len() != PARENT_LENGTH => return None,
            _ if text.len() > PARENT_LENGTH && text[PARENT_LENGTH] != b'-' => return None,
            _ => {}
        }
        let trace_id = bytes::<16>(&text[3..35])?;
        let span_id = bytes::<8>(&text[36..52])?;
        let flags = bytes::<1>(&text[53..55])?[0];
        if trace_id == [0; 16] || span_id == [0; 8] {
            return None;
        }
        Some(Self { trace_id, span_id, sampled: flags & 1 == 1, remote: true, hops: 0, state: None })
    }

    /// Value of `traceparent`.
    #[must_use]
    pub fn traceparent(&self) -> String {
        let mut text = String::with_capacity(PARENT_LENGTH);
        text.push_str("00-");
        write_hex(&mut text, &self.trace_id);
        text.push('-');
        write_hex(&mut text, &self.span_id);
        text.push_str(if self.sampled { "-01" } else { "-00" });
        text
    }

    /// Value of `tracestate`; `None` if it has no members.
    #[must_use]
    pub fn tracestate(&self) -> Option<String> {
        match (self.hops, &self.state) {
            (0, None) => None,
            (0, Some(state)) => Some(state.to_string()),
            (hops, None) => Some(format!("{OWN_MEMBER}={hops}")),
            (hops, Some(state)) => Some(format!("{OWN_MEMBER}={hops},{state}")),
        }
    }

    /// Sets the headers of an outbound request, replacing those it has.
    pub fn inject(&self, headers: &mut HeaderMap) {
        if let Ok(parent) = HeaderValue::try_from(self.traceparent()) {
            headers.insert(TRACEPARENT, parent);
        }
        match self.tracestate().map(HeaderValue::try_from) {
            Some(Ok(state)) => drop(headers.insert(TRACESTATE, state)),
            _ => drop(headers.remove(TRACESTATE)),
        }
    }
}

/// Decodes exactly `N` bytes of lower-case hexadecimal digits.
fn bytes<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut decoded = [0; N];
    if text.len() != 2 * N {
        return None;
    }
    for (at, pair) in decoded.iter_mut().zip(text.chunks_exact(2)) {
        *at = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(decoded)
}

fn write_hex(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
}

/// Members of other vendors, and the value of Ferry's own; `None` if any member is malformed or repeated.
fn parse_states<'a>(headers: impl Iterator<Item = &'a [u8]>) -> Option<(String, u8)> {
    let mut members: Vec<(&str, &str)> = Vec::new();
    let mut length = 0;
    for header in headers {
        length += header.len();
        if length > MAX_STATE_INPUT {
            return None;
        }
        let text = std::str::from_utf8(header).ok()?;
        for member in text.split(',') {
            let member = member.trim_matches([' ', '\t']);
            if member.is_empty() {
                continue;
            }
            let (key, value) = member.split_once('=')?;
            let repeated = members.iter().any(|(other, _)| *other == key);
            if !is_key(key) || !is_value(value) || repeated || members.len() == MAX_MEMBERS {
                return None;
            }
            members.push((key, value));
        }
    }
    let own = members.iter().find(|(key, _)| *key == OWN_MEMBER);
    let hops = own.and_then(|(_, value)| value.parse().ok()).unwrap_or(0);
    let mut state = String::new();
    for (key, value) in members.into_iter().filter(|(key, _)| *key != OWN_MEMBER) {
        let separator = usize::from(!state.is_empty());
        if state.len() + separator + key.len() + 1 + value.len() > MAX_STATE {
            break;
        }
        state.push_str(&","[..separator]);
        state.push_str(key);
        state.push('=');
        state.push_str(value);
    }
    Some((state, hops))
}

fn is_key(key: &str) -> bool {
    let first = key.bytes().next();
    key.len() <= MAX_MEMBER_PART
        && first.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        && key
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-*/@".contains(&byte))
        && key.matches('@').count() <= 1
}

fn is_value(value: &str) -> bool {
    (1..=MAX_MEMBER_PART).contains(&value.len())
        && value.bytes().all(|byte| (0x20..=0x7e).contains(&byte) && byte != b'=')
        && !value.ends_with(' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn traceparent_valid_is_parsed_and_formatted() {
        let context = SpanContext::parse(VALID.as_bytes()).expect("valid");
        assert_eq!(context.trace_id[..2], [0x0a, 0xf7]);
        assert_eq!(context.span_id[7], 0x31);
        assert!(context.sampled && context.remote);
        assert_eq!(context.traceparent(), VALID);
        let unsampled = SpanContext::parse(VALID.replace("-01", "-fe").as_bytes()).expect("valid");
        assert!(!unsampled.sampled);
        assert!(unsampled.traceparent().ends_with("-00"));
        for later in [VALID.replacen("00", "cc", 1), format!("cc{}-anything", &VALID[2..])] {
            assert_eq!(SpanContext::parse(later.as_bytes()).expect("a later version").trace_id[0], 0x0a);
        }
    }

    #[test]
    fn traceparent_hostile_is_rejected() {
        let long = format!("00-{}", "a".repeat(1 << 20));
        for text in [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333g-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "0g-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01x",
            "00_0af7651916cd43dd8448eb211c80319c_b7ad6b7169203331_01",
            " 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319-cb7ad6b7169203331-01",
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-\u{e9}\u{e9}7651916cd43dd8448eb211c80319-b7ad6b7169203331-01",
            &long,
        ] {
            assert_eq!(SpanContext::parse(text.as_bytes()), None, "{:?}", &text[..text.len().min(60)]);
        }
    }

    fn extracted(states: &[&[u8]]) -> SpanContext {
        let mut headers = HeaderMap::new();
        headers.insert(TRACEPARENT, HeaderValue::from_static(VALID));
        for state in states {
            headers.append(TRACESTATE, HeaderValue::from_bytes(state).expect("a header"));
        }
        SpanContext::extract(&headers).expect("a context")
    }

    #[test]
    fn tracestate_valid_is_propagated() {
        assert_eq!(extracted(&[]).tracestate(), None);
        for (states, want) in [
            (&[b"a=1".as_slice()][..], "a=1"),
            (&[b"a=1, b@c=x y ,,", b"d/e=~"], "a=1,b@c=x y,d/e=~"),
            (&[b"ferry=3,a=1"], "ferry=3,a=1"),
            (&[b"a=1,ferry=300"], "a=1"),
        ] {
            assert_eq!(extracted(states).tracestate().as_deref(), Some(want), "{states:?}");
        }
        assert_eq!(extracted(&[b"a=1,ferry=3"]).hops, 3);
        // Members beyond the limit are removed from the end.
        let long = format!("a={},b={},c={}", "x".repeat(250), "y".repeat(250), "z".repeat(250));
        assert_eq!(extracted(&[long.as_bytes()]).tracestate().expect("two members").len(), 505);
    }

    #[test]
    fn tracestate_hostile_is_ignored() {
        let many = (0..33).map(|at| format!("k{at}=v")).collect::<Vec<_>>().join(",");
        let (key, value) = (format!("{}=1", "k".repeat(257)), format!("k={}", "v".repeat(257)));
        let huge = format!("k={}", ",".repeat(64 << 10));
        for state in [
            b"a".as_slice(),
            b"=1",
            b"a=",
            b"A=1",
            b"-a=1",
            b"a=1,a=2",
            b"a b=1",
            b"a=1=2",
            b"a@b@c=1",
            b"a=\xff",
            b"a=\tx\ty",
            many.as_bytes(),
            key.as_bytes(),
            value.as_bytes(),
            huge.as_bytes(),
        ] {
            assert_eq!(extracted(&[state]).tracestate(), None, "{:?}", String::from_utf8_lossy(state));
        }
    }

    #[test]
    fn extract_repeated_traceparent_is_rejected() {
        let mut headers = HeaderMap::new();
        assert_eq!(SpanContext::extract(&headers), None);
        headers.append(TRACEPARENT, HeaderValue::from_static(VALID));
        assert!(SpanContext::extract(&headers).is_some());
        headers.append(TRACEPARENT, HeaderValue::from_static(VALID));
        assert_eq!(SpanContext::extract(&headers), None);
    }

    #[test]
    fn inject_replaces_headers_of_request() {
        let mut headers = HeaderMap::new();
        headers.insert(TRACESTATE, HeaderValue::from_static("old=1"));
        extracted(&[]).inject(&mut headers);
        assert_eq!(headers.get(TRACEPARENT).expect("set"), VALID);
        assert_eq!(headers.get(TRACESTATE), None);
        extracted(&[b"a=1"]).inject(&mut headers);
        assert_eq!(headers.get(TRACESTATE).expect("set"), "a=1");
    }
}
