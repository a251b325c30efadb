//! Cross-origin resource sharing (CORS).

use crate::wire::reply::Reply;
use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ORIGIN,
};
use http::{HeaderMap, HeaderValue};
use regex::Regex;

const METHODS: HeaderValue = HeaderValue::from_static("POST, GET, OPTIONS, PUT, DELETE, PATCH");
const HEADERS: HeaderValue = HeaderValue::from_static(
    "Content-Type, Content-Length, Accept-Encoding, X-CSRF-Token, Authorization, X-Requested-With, If-Modified-Since",
);

/// Allowed origins.
#[derive(Clone, Debug, Default)]
pub struct Cors {
    patterns: Vec<Regex>,
}

impl Cors {
    /// Compiles regular expressions of allowed origins.
    pub fn new<'a>(patterns: impl IntoIterator<Item = &'a str>) -> Result<Self, regex::Error> {
        Ok(Self { patterns: patterns.into_iter().map(Regex::new).collect::<Result<_, _>>()? })
    }

    /// Origin of a request, if it is allowed.
    pub fn allowed_origin<'a>(&self, headers: &'a HeaderMap) -> Option<&'a HeaderValue> {
        if self.patterns.is_empty() {
            return None;
        }
        let origin = headers.get(ORIGIN)?;
        let text = origin.to_str().ok()?;
        self.patterns.iter().any(|pattern| pattern.is_match(text)).then_some(origin)
    }
}

/// Adds the response headers that allow pages of this origin to read the response.
pub fn allow(reply: &mut Reply, origin: Option<&HeaderValue>) {
    let Some(origin) = origin else { return };
    let headers = reply.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HEADERS);
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("Date"));
    headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cors_allows_matching_origins_only() {
        let cors = Cors::new(["//example\\.com$"]).expect("a pattern");
        let from = |origin: &'static str| HeaderMap::from_iter([(ORIGIN, HeaderValue::from_static(origin))]);
        assert!(cors.allowed_origin(&from("https://example.com")).is_some());
        assert!(cors.allowed_origin(&from("https://example.com.evil.org")).is_none());
        assert!(cors.allowed_origin(&HeaderMap::new()).is_none());
        assert!(Cors::default().allowed_origin(&from("https://example.com")).is_none());
        let mut reply = crate::wire::reply::text(200, "");
        allow(&mut reply, Some(&HeaderValue::from_static("https://example.com")));
        assert_eq!(reply.headers()[ACCESS_CONTROL_ALLOW_ORIGIN], "https://example.com");
        let mut plain = crate::wire::reply::text(200, "");
        allow(&mut plain, None);
        assert!(!plain.headers().contains_key(ACCESS_CONTROL_ALLOW_ORIGIN));
    }
}
