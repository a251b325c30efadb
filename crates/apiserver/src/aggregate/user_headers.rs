//! Headers that identify the user of a request to an extension server.

use crate::user::UserInfo;
use http::{HeaderMap, HeaderName, HeaderValue};
use std::fmt::Write as _;

const USER: HeaderName = HeaderName::from_static("x-remote-user");
const UID: HeaderName = HeaderName::from_static("x-remote-uid");
const GROUP: HeaderName = HeaderName::from_static("x-remote-group");
const EXTRA: &str = "x-remote-extra-";

/// Replaces the headers with those of `user`. Headers sent by the client are dropped, so it cannot choose its user.
pub fn set(headers: &mut HeaderMap, user: &UserInfo) {
    let forged: Vec<HeaderName> = headers.keys().filter(|name| is_user_header(name)).cloned().collect();
    for name in forged {
        headers.remove(name);
    }
    let mut add = |name: HeaderName, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.append(name, value);
        }
    };
    add(USER, &user.name);
    if !user.uid.is_empty() {
        add(UID, &user.uid);
    }
    user.groups.iter().for_each(|group| add(GROUP, group));
    for (key, values) in &user.extra {
        let Ok(name) = HeaderName::from_bytes(format!("{EXTRA}{}", escape(key)).as_bytes()) else { continue };
        values.iter().for_each(|value| add(name.clone(), value));
    }
}

pub fn is_user_header(name: &HeaderName) -> bool {
    *name == USER || *name == UID || *name == GROUP || name.as_str().starts_with(EXTRA)
}

/// Escapes a key for a header name: characters outside of tokens, `%` and upper-case letters, since header names are
/// case-insensitive.
fn escape(key: &str) -> String {
    let mut text = String::with_capacity(key.len());
    for byte in key.bytes() {
        let plain = byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"!#$&'*+-.^_`|~".contains(&byte);
        if plain {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_headers_from_client_are_replaced() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("x-remote-user", "admin"),
            ("x-remote-group", "system:masters"),
            ("x-remote-uid", "0"),
            ("x-remote-extra-scopes", "all"),
            ("accept", "application/json"),
        ] {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let user = UserInfo {
            name: "jane".to_owned(),
            groups: vec!["a".to_owned(), "b".to_owned()],
            extra: [("Example.org/K".to_owned(), vec!["v".to_owned()])].into(),
            ..UserInfo::default()
        };
        set(&mut headers, &user);
        let text = |name: &str| {
            headers
                .get_all(name)
                .iter()
                .map(|value| value.to_str().unwrap_or(""))
                .collect::<Vec<_>>()
                .join(",")
        };
        assert_eq!(text("x-remote-user"), "jane");
        assert_eq!(text("x-remote-group"), "a,b");
        assert_eq!(text("x-remote-uid"), "");
        assert_eq!(text("x-remote-extra-scopes"), "");
        assert_eq!(text("x-remote-extra-%45xample.org%2F%4B"), "v");
        assert_eq!(text("accept"), "application/json");
    }

    #[test]
    fn user_headers_invalid_value_is_omitted() {
        let mut headers = HeaderMap::new();
        set(
            &mut headers,
            &UserInfo { name: "a\nx-remote-group: system:masters".to_owned(), ..UserInfo::default() },
        );
        assert!(headers.is_empty(), "{headers:?}");
    }
}
