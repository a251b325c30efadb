//! Request attributes from method and path: verb, resource, namespace, name.

use crate::wire::query::Query;
use http::Method;

/// The verb of a request: determined once, from method and path, for authorization, audit and routing. Non-resource
/// requests have their method as verb; other methods on resources have none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Verb {
    #[default]
    None,
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
    /// A path below `proxy/`, which is no longer served.
    Proxy,
    Post,
    Put,
    Head,
    Options,
    Trace,
    Connect,
}

impl Verb {
    const ALL: [Verb; 16] = [
        Self::None,
        Self::Get,
        Self::List,
        Self::Watch,
        Self::Create,
        Self::Update,
        Self::Patch,
        Self::Delete,
        Self::DeleteCollection,
        Self::Proxy,
        Self::Post,
        Self::Put,
        Self::Head,
        Self::Options,
        Self::Trace,
        Self::Connect,
    ];

    /// Name in policies and audit events.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
            Self::Proxy => "proxy",
            Self::Post => "post",
            Self::Put => "put",
            Self::Head => "head",
            Self::Options => "options",
            Self::Trace => "trace",
            Self::Connect => "connect",
        }
    }

    /// Verb of a non-resource request.
    fn of_method(method: &Method) -> Self {
        match *method {
            Method::GET => Self::Get,
            Method::POST => Self::Post,
            Method::PUT => Self::Put,
            Method::PATCH => Self::Patch,
            Method::DELETE => Self::Delete,
            Method::HEAD => Self::Head,
            Method::OPTIONS => Self::Options,
            Method::TRACE => Self::Trace,
            _ => Self::Connect,
        }
    }
}

/// The verbs that a resource allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verbs(u16);

impl Verbs {
    /// Parses names; unknown ones are ignored.
    pub fn of<T: AsRef<str>>(names: &[T]) -> Self {
        let named = |verb: &Verb| names.iter().any(|name| name.as_ref() == verb.as_str());
        Self(Verb::ALL.into_iter().filter(named).fold(0, |bits, verb| bits | 1 << verb as u16))
    }

    pub fn contains(self, verb: Verb) -> bool {
        self.0 & 1 << verb as u16 != 0
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestInfo {
    pub verb: Verb,
    pub is_resource: bool,
    pub group: String,
    pub version: String,
    pub namespace: String,
    pub resource: String,
    pub subresource: String,
    pub name: String,
    /// Path after the subresource: the path behind `proxy`.
    pub rest: String,
    /// True for a resource below `namespaces/<ns>/`.
    pub in_namespace: bool,
    /// True for the deprecated `/watch/` prefix.
    pub watch_prefix: bool,
    /// True for the `/proxy/` prefix, which is no longer served.
    pub proxy_prefix: bool,
}

/// Segments under `namespaces/<name>/` that are subresources of the namespace itself.
const NAMESPACE_SUBRESOURCES: [&str; 2] = ["status", "finalize"];

impl RequestInfo {
    pub fn new(method: &Method, path: &str, query: &Query) -> Self {
        let mut info = Self { verb: Verb::of_method(method), ..Self::default() };
        let trimmed = path.strip_prefix('/').unwrap_or(path);
        let trimmed = trimmed.strip_suffix('/').unwrap_or(trimmed);
        let parts = segments(trimmed);
        let rest: &[&str] = match parts.as_slice() {
            ["api", version, rest @ ..] if !rest.is_empty() => {
                info.version = (*version).to_owned();
                rest
            }
            ["apis", group, version, rest @ ..] if !rest.is_empty() => {
                info.group = (*group).to_owned();
                info.version = (*version).to_owned();
                rest
            }
            _ => return info,
        };
        info.is_resource = true;
        info.read_resource(rest);
        let unnamed = info.name.is_empty();
        info.verb = match *method {
            _ if info.watch_prefix => Verb::Watch,
            _ if info.proxy_prefix => Verb::Proxy,
            Method::GET | Method::HEAD if unnamed => {
                // For authorization, a selector of one object is equivalent to its name.
                if let Some(name) = selected_name(query.text("fieldSelector")) {
                    info.name = name;
                }
                if query.flag("watch") == Some(true) { Verb::Watch } else { Verb::List }
            }
            Method::GET | Method::HEAD => Verb::Get,
            Method::POST => Verb::Create,
            Method::PUT => Verb::Update,
            Method::PATCH => Verb::Patch,
            Method::DELETE if unnamed => Verb::DeleteCollection,
            Method::DELETE => Verb::Delete,
            _ => Verb::None,
        };
        info
    }

    fn read_resource(&mut self, mut rest: &[&str]) {
        if rest.len() > 1 {
            self.watch_prefix = rest[0] == "watch";
            self.proxy_prefix = rest[0] == "proxy";
            rest = &rest[usize::from(self.watch_prefix || self.proxy_prefix)..];
        }
        if let ["namespaces", namespace, resource, below @ ..] = rest
            && !NAMESPACE_SUBRESOURCES.contains(resource)
        {
            self.in_namespace = true;
            self.namespace = decode(namespace);
            self.resource = (*resource).to_owned();
            self.read_name(below);
            return;
        }
        if let [resource, below @ ..] = rest {
            self.resource = (*resource).to_owned();
            self.read_name(below);
            if *resource == "namespaces" {
                self.namespace.clone_from(&self.name);
            }
        }
    }

    fn read_name(&mut self, below: &[&str]) {
        if let [name, below @ ..] = below {
            self.name = decode(name);
            if let [subresource, rest @ ..] = below
                && !self.proxy_prefix
            {
                self.subresource = (*subresource).to_owned();
                self.rest = rest.join("/");
            }
        }
    }
}

/// Segments of a path. Escaped slashes also separate, except behind `proxy`, where the path belongs to the target.
fn segments(path: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    for part in path.split('/') {
        let mut left = part;
        while let Some(at) =
            left.find("%2F").or_else(|| left.find("%2f")).filter(|_| !parts.contains(&"proxy"))
        {
            parts.push(&left[..at]);
            left = &left[at + 3..];
        }
        parts.push(left);
    }
    parts
}

/// The name selected by a field selector, if any.
fn selected_name(selector: &str) -> Option<String> {
    let term = selector.split(',').find_map(|term| term.strip_prefix("metadata.name="))?;
    let name = term.strip_prefix('=').unwrap_or(term);
    machinery::names::path_segment_name(name, false).is_empty().then(|| name.to_owned())
}

fn decode(segment: &str) -> String {
    percent_encoding::percent_decode_str(segment).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(method: &str, uri: &str) -> RequestInfo {
        let (path, query) = uri.split_once('?').map_or((uri, None), |(p, q)| (p, Some(q)));
        RequestInfo::new(&method.parse().unwrap(), path, &Query::parse(query))
    }

    #[test]
    fn request_info_is_parsed_from_method_and_path() {
        for (method, uri, verb, ns, resource, sub, name) in [
            ("GET", "/api/v1/namespaces", "list", "", "namespaces", "", ""),
            ("GET", "/api/v1/namespaces/a", "get", "a", "namespaces", "", "a"),
            ("PUT", "/api/v1/namespaces/a/finalize", "update", "a", "namespaces", "finalize", "a"),
            ("GET", "/api/v1/namespaces/a/pods", "list", "a", "pods", "", ""),
            ("GET", "/api/v1/namespaces/a/pods?watch=1", "watch", "a", "pods", "", ""),
            ("GET", "/api/v1/namespaces/a/pods/p/log", "get", "a", "pods", "log", "p"),
            ("POST", "/apis/apps/v1/namespaces/a/deployments", "create", "a", "deployments", "", ""),
            (
                "DELETE",
                "/apis/apps/v1/namespaces/a/deployments",
                "deletecollection",
                "a",
                "deployments",
                "",
                "",
            ),
            ("GET", "/api/v1/watch/pods", "watch", "", "pods", "", ""),
            ("POST", "/api/v1/watch/pods", "watch", "", "pods", "", ""),
            ("GET", "/api/v1/watch/pods?fieldSelector=metadata.name%3Dp", "watch", "", "pods", "", ""),
            ("GET", "/api/v1/proxy/namespaces/a/pods/p/x", "proxy", "a", "pods", "", "p"),
            ("OPTIONS", "/api/v1/nodes", "", "", "nodes", "", ""),
            ("GET", "/api/v1/nodes?fieldSelector=metadata.name%3Dn1", "list", "", "nodes", "", "n1"),
            ("GET", "/api/v1/nodes?fieldSelector=a%3Db,metadata.name%3D%3Dn1", "list", "", "nodes", "", "n1"),
            ("GET", "/api/v1/nodes?fieldSelector=metadata.name!%3Dn1", "list", "", "nodes", "", ""),
            ("GET", "/api/v1/nodes?fieldSelector=metadata.name%3Da%2Fb", "list", "", "nodes", "", ""),
            (
                "DELETE",
                "/api/v1/nodes?fieldSelector=metadata.name%3Dn1",
                "deletecollection",
                "",
                "nodes",
                "",
                "",
            ),
            ("GET", "/api/v1/namespaces/a/pods/p%2flog", "get", "a", "pods", "log", "p"),
            ("GET", "/api/v1/nodes/n/proxy/a%2Fb", "get", "", "nodes", "proxy", "n"),
        ] {
            let got = info(method, uri);
            assert_eq!(
                (got.verb.as_str(), got.namespace.as_str(), got.resource.as_str()),
                (verb, ns, resource),
                "{method} {uri}"
            );
            assert_eq!((got.subresource.as_str(), got.name.as_str()), (sub, name), "{method} {uri}");
        }
        assert_eq!(info("GET", "/api/v1/nodes/n/proxy/a%2Fb").rest, "a%2Fb");
        assert!(!info("GET", "/api/v1").is_resource);
        assert_eq!(info("GET", "/healthz").verb, Verb::Get);
        assert_eq!(info("POST", "/healthz").verb, Verb::Post);
    }
    #[test]
    fn verbs_are_parsed_from_names() {
        let verbs = Verbs::of(&["get", "deletecollection", "unknown"]);
        for verb in Verb::ALL {
            let want = matches!(verb, Verb::Get | Verb::DeleteCollection);
            assert_eq!(verbs.contains(verb), want, "{verb:?}");
        }
    }
}
