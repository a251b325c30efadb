//! The `WWW-Authenticate` header of 401 responses.

use http::HeaderMap;
use http::header::WWW_AUTHENTICATE;

/// Authentication scheme that a server requires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Challenge {
    Basic,
    /// A token from another server.
    Bearer {
        realm: String,
        service: String,
        scope: String,
    },
}

impl Challenge {
    /// Selects the strongest challenge in the headers.
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let mut found = None;
        for value in headers.get_all(WWW_AUTHENTICATE) {
            let Ok(text) = value.to_str() else { continue };
            match Self::parse(text) {
                Some(bearer @ Self::Bearer { .. }) => return Some(bearer),
                other => found = found.or(other),
            }
        }
        found
    }

    fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let (mut realm, mut service, mut scope) = (String::new(), String::new(), String::new());
        for (name, value) in parameters(rest) {
            match name.to_ascii_lowercase().as_str() {
                "realm" => realm = value,
                "service" => service = value,
                "scope" => scope = value,
                _ => {}
            }
        }
        (!realm.is_empty()).then_some(Self::Bearer { realm, service, scope })
    }
}

/// `name="value"` pairs between commas; commas in quotes belong to the value.
fn parameters(mut text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    while let Some((name, rest)) = text.split_once('=') {
        let (value, after) = match rest.strip_prefix('"') {
            Some(quoted) => {
                let mut value = String::new();
                let mut characters = quoted.char_indices();
                let mut end = quoted.len();
                while let Some((at, character)) = characters.next() {
                    match character {
                        '"' => {
                            end = at + 1;
                            break;
                        }
                        '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
                        other => value.push(other),
                    }
                }
                (value, quoted.get(end..).unwrap_or_default())
            }
            None => {
                let end = rest.find(',').unwrap_or(rest.len());
                (rest[..end].trim().to_owned(), &rest[end..])
            }
        };
        found.push((name.trim_matches([' ', ',']).to_owned(), value));
        text = after.trim_start_matches([' ', ',']);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenge_headers_are_parsed() {
        let bearer = |realm: &str, service: &str, scope: &str| {
            Some(Challenge::Bearer { realm: realm.into(), service: service.into(), scope: scope.into() })
        };
        for (text, wanted) in [
            (r#"Basic realm="x""#, Some(Challenge::Basic)),
            (
                r#"Bearer realm="https://auth/token",service="registry",scope="repository:a/b:pull,push""#,
                bearer("https://auth/token", "registry", "repository:a/b:pull,push"),
            ),
            (r#"bearer realm=https://auth , service="a\"b""#, bearer("https://auth", "a\"b", "")),
            (r#"Bearer realm="unclosed"#, bearer("unclosed", "", "")),
            ("Bearer", None),
            ("Negotiate", None),
            ("", None),
        ] {
            assert_eq!(Challenge::parse(text), wanted, "{text}");
        }
    }

    #[test]
    fn challenge_bearer_is_preferred_to_basic() {
        let mut headers = HeaderMap::new();
        headers.append(WWW_AUTHENTICATE, "Basic realm=\"x\"".parse().unwrap());
        assert_eq!(Challenge::of(&headers), Some(Challenge::Basic));
        headers.append(WWW_AUTHENTICATE, "Bearer realm=\"https://t\"".parse().unwrap());
        assert!(matches!(Challenge::of(&headers), Some(Challenge::Bearer { .. })));
    }
}
