//! Rewrites links in proxied responses: absolute links to the backend's root go through the proxy instead.

/// Addresses of one proxied request.
#[derive(Clone, Debug)]
pub struct Links {
    /// Path of the proxy, without a trailing slash.
    pub prefix: String,
    /// Host and port of the backend.
    pub address: String,
    /// This server's host in the caller's request.
    pub host: String,
}

/// Scheme with its colon, host with its port, and the rest.
type Parts<'a> = (&'a str, &'a str, &'a str);

/// Splits a link; `None` if its scheme has no host (`mailto:`, `data:`).
fn parts(link: &str) -> Option<Parts<'_>> {
    let colon = link.find([':', '/', '?', '#']).filter(|at| link.as_bytes()[*at] == b':');
    let scheme = colon.filter(|at| {
        let name = &link.as_bytes()[..*at];
        name.first().is_some_and(u8::is_ascii_alphabetic)
            && name.iter().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(byte))
    });
    let (scheme, rest) = link.split_at(scheme.map_or(0, |at| at + 1));
    match rest.strip_prefix("//") {
        Some(rest) => {
            let (authority, rest) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
            Some((scheme, authority, rest))
        }
        None if scheme.is_empty() => Some(("", "", rest)),
        None => None,
    }
}

impl Links {
    /// Rewritten link, if it has to change.
    pub fn through(&self, link: &str) -> Option<String> {
        let (scheme, authority, path) = parts(link)?;
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let ours = !host.is_empty() && host == self.host;
        if !path.starts_with('/') || !(host.is_empty() || ours || host == self.address) {
            return None;
        }
        let origin = if ours { format!("{scheme}//{authority}") } else { String::new() };
        let prefix = if path.starts_with(&self.prefix) { "" } else { &self.prefix };
        Some(format!("{origin}{prefix}{path}")).filter(|new| new != link)
    }

    /// Value of `X-Forwarded-Uri`: the requested path without query.
    pub fn forwarded(&self, target: &str) -> String {
        let path = target.split('?').next().unwrap_or_default();
        format!("{}{path}", self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_links_are_rewritten_to_the_proxy() {
        let links = Links {
            prefix: "/api/v1/namespaces/a/pods/b:80/proxy".to_owned(),
            address: "10.0.0.1:80".to_owned(),
            host: "api.test:6443".to_owned(),
        };
        for (link, want) in [
            ("/x", Some("/api/v1/namespaces/a/pods/b:80/proxy/x")),
            ("/x/?q=1#f", Some("/api/v1/namespaces/a/pods/b:80/proxy/x/?q=1#f")),
            ("x", None),
            ("../x", None),
            ("", None),
            ("#top", None),
            ("?a=/b", None),
            ("mailto:/x", None),
            ("data:text/plain,x", None),
            ("http://elsewhere.test/x", None),
            ("//elsewhere.test/x", None),
            ("http://10.0.0.1:80/x", Some("/api/v1/namespaces/a/pods/b:80/proxy/x")),
            ("http://10.0.0.1:80", None),
            ("//10.0.0.1:80/x", Some("/api/v1/namespaces/a/pods/b:80/proxy/x")),
            ("https://api.test:6443/x", Some("https://api.test:6443/api/v1/namespaces/a/pods/b:80/proxy/x")),
            ("https://api.test:6443/api/v1/namespaces/a/pods/b:80/proxy/x", None),
            ("/api/v1/namespaces/a/pods/b:80/proxy/x", None),
        ] {
            assert_eq!(links.through(link).as_deref(), want, "{link}");
        }
        assert_eq!(links.forwarded("/x/?q=/y"), "/api/v1/namespaces/a/pods/b:80/proxy/x/");
    }
}
