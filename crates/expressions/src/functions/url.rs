//! URLs and their parts.

use super::Row;
use crate::value::{EvaluationResult, Fault, Key, Value};
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    text: String,
    scheme: String,
    /// Includes the port.
    host: String,
    path: String,
    query: String,
}

pub const ROWS: &[Row] = &[
    ("url", &["(string) -> Url"], |values| match values {
        [Value::String(text)] => parse(text).map(|url| Value::Url(Arc::new(url))).map_err(|why| {
            Fault::new(format!("URL parse error during conversion from string: parse {text:?}: {why}"))
        }),
        _ => Err(Fault::no_such_overload()),
    }),
    ("isURL", &["(string) -> bool"], |values| match values {
        [Value::String(text)] => Ok(Value::Bool(parse(text).is_ok())),
        _ => Err(Fault::no_such_overload()),
    }),
    ("getScheme", &["Url.() -> string"], |values| part(values, |url| url.scheme.clone())),
    ("getHost", &["Url.() -> string"], |values| part(values, |url| url.host.clone())),
    ("getHostname", &["Url.() -> string"], |values| part(values, |url| hostname_and_port(&url.host).0)),
    ("getPort", &["Url.() -> string"], |values| part(values, |url| hostname_and_port(&url.host).1)),
    ("getEscapedPath", &["Url.() -> string"], |values| part(values, |url| url.path.clone())),
    ("getQuery", &["Url.() -> map(string, list(string))"], |values| match values {
        [Value::Url(url)] => Ok(query(&url.query)),
        _ => Err(Fault::no_such_overload()),
    }),
];

fn part<'a>(values: &[Value<'a>], of: impl Fn(&Url) -> String) -> EvaluationResult<'a> {
    match values {
        [Value::Url(url)] => Ok(of(url).into()),
        _ => Err(Fault::no_such_overload()),
    }
}

/// An absolute URL, or an absolute path.
pub fn parse(text: &str) -> Result<Url, &'static str> {
    if text.is_empty() {
        return Err("empty url");
    }
    if text.chars().any(|c| c.is_ascii_control()) {
        return Err("net/url: invalid control character in URL");
    }
    let (scheme, rest) = split_scheme(text)?;
    let (rest, _fragment) = rest.split_once('#').unwrap_or((rest, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    if !rest.starts_with('/') {
        if scheme.is_empty() {
            return Err("invalid URI for request");
        }
        // Opaque, as in mailto:someone.
        return Ok(Url {
            text: text.to_owned(),
            scheme,
            host: String::new(),
            path: String::new(),
            query: query.to_owned(),
        });
    }
    let (host, path) = match rest.strip_prefix("//") {
        Some(after) if !scheme.is_empty() => {
            let end = after.find('/').unwrap_or(after.len());
            let (authority, path) = after.split_at(end);
            (authority.rsplit_once('@').map_or(authority, |(_, host)| host), path)
        }
        _ => ("", rest),
    };
    check_host(host)?;
    if !percent_is_valid(path) || !percent_is_valid(host) {
        return Err("invalid URL escape");
    }
    Ok(Url {
        text: text.to_owned(),
        scheme,
        host: host.to_owned(),
        path: escape_path(path),
        query: query.to_owned(),
    })
}

fn split_scheme(text: &str) -> Result<(String, &str), &'static str> {
    for (at, c) in text.char_indices() {
        match c {
            'a'..='z' | 'A'..='Z' => {}
            '0'..='9' | '+' | '-' | '.' if at > 0 => {}
            ':' if at == 0 => return Err("missing protocol scheme"),
            ':' => {
                let (scheme, rest) = text.split_at(at);
                return Ok((scheme.to_ascii_lowercase(), rest.strip_prefix(':').unwrap_or("")));
            }
            _ => break,
        }
    }
    Ok((String::new(), text))
}

fn check_host(host: &str) -> Result<(), &'static str> {
    let port = match host.strip_prefix('[') {
        Some(inner) => match inner.split_once(']') {
            Some((_, after)) => after,
            None => return Err("missing ']' in host"),
        },
        None => host.find(':').and_then(|at| host.get(at..)).unwrap_or(""),
    };
    let is_port = port.is_empty()
        || port.strip_prefix(':').is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    if !is_port {
        return Err("invalid port after host");
    }
    let strange = |c: char| {
        c.is_ascii_whitespace() || matches!(c, '<' | '>' | '"' | '\\' | '^' | '`' | '{' | '}' | '|')
    };
    if host.chars().any(strange) { Err("invalid character in host name") } else { Ok(()) }
}

fn percent_is_valid(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.iter().enumerate().filter(|(_, byte)| **byte == b'%').all(|(at, _)| {
        bytes.get(at + 1..at + 3).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    })
}

/// Escapes characters that are not allowed in a path.
fn escape_path(path: &str) -> String {
    let mut escaped = String::new();
    for byte in path.bytes() {
        let plain = byte.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@!'()*[]%".contains(&byte);
        if plain { escaped.push(char::from(byte)) } else { escaped.push_str(&format!("%{byte:02X}")) }
    }
    escaped
}

fn hostname_and_port(host: &str) -> (String, String) {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.ends_with(':') => {
            (name, port)
        }
        _ => (host, ""),
    };
    let name = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    (name.to_owned(), port.to_owned())
}

fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'+' => bytes.push(b' '),
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                let digits = std::str::from_utf8(&digits).ok()?;
                bytes.push(u8::from_str_radix(digits, 16).ok()?);
            }
            byte => bytes.push(byte),
        }
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn query<'a>(text: &str) -> Value<'a> {
    let mut found: BTreeMap<String, Vec<Value<'a>>> = BTreeMap::new();
    for pair in text.split('&').filter(|pair| !pair.is_empty() && !pair.contains(';')) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if let (Some(name), Some(value)) = (unescape(name), unescape(value)) {
            found.entry(name).or_default().push(value.into());
        }
    }
    let entries = found.into_iter().map(|(name, values)| (Key::String(Arc::from(name)), Value::list(values)));
    Value::map(entries.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_split_into_parts() {
        let url = parse("https://user@[::1]:8443/a b/%20?x=1&x=2&y=a+b#f").expect("a URL");
        assert_eq!(url.scheme, "https");
        assert_eq!(hostname_and_port(&url.host), ("::1".to_owned(), "8443".to_owned()));
        assert_eq!(url.path, "/a%20b/%20");
        assert_eq!(
            query(&url.query).to_json().map(|json| json.to_string()).as_deref(),
            Ok(r#"{"x":["1","2"],"y":["a b"]}"#)
        );
        assert!(parse("/just/a/path").is_ok());
        for wrong in ["", "relative/path", "../up", ":nothing", "https://a:b/", "https://x/%zz"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
