//! What a request is about: verb, resource, namespace, name, read from method and path alone.

use crate::query::Query;
use http::Method;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestInfo {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`; the lower-case
    /// method for requests that are not about a resource.
    pub verb: &'static str,
    pub is_resource: bool,
    pub group: String,
    pub version: String,
    pub namespace: String,
    pub resource: String,
    pub subresource: String,
    pub name: String,
    /// What follows the subresource: the path behind `proxy`.
    pub rest: String,
    /// A resource was named below `namespaces/<ns>/`.
    pub in_namespace: bool,
    /// The old `/watch/` prefix was used.
    pub watch_prefix: bool,
}

/// Segments under `namespaces/<name>/` that are subresources of the namespace itself.
const NAMESPACE_SUBRESOURCES: [&str; 2] = ["status", "finalize"];

impl RequestInfo {
    pub fn new(method: &Method, path: &str, query: &Query) -> Self {
        let mut info = Self { verb: method_verb(method), ..Self::default() };
        let trimmed = path.strip_prefix('/').unwrap_or(path);
        let trimmed = trimmed.strip_suffix('/').unwrap_or(trimmed);
        let parts: Vec<&str> = trimmed.split('/').collect();
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
        info.verb = match *method {
            Method::GET | Method::HEAD if info.watch_prefix => "watch",
            Method::GET | Method::HEAD => "get",
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE => "delete",
            _ => info.verb,
        };
        if info.name.is_empty() {
            info.verb = match info.verb {
                "get" if query.flag("watch") == Some(true) => "watch",
                "get" => "list",
                "delete" => "deletecollection",
                verb => verb,
            };
            // A selector that names one object is as good as the name, for authorization.
            if matches!(info.verb, "list" | "watch" | "deletecollection")
                && info.subresource.is_empty()
                && let Some(name) = query.text("fieldSelector").strip_prefix("metadata.name=")
                && !name.contains([',', '=', '!'])
            {
                info.name = name.trim_start_matches('=').to_owned();
            }
        }
        info
    }

    fn read_resource(&mut self, mut rest: &[&str]) {
        if rest.first() == Some(&"watch") && rest.len() > 1 {
            self.watch_prefix = true;
            rest = &rest[1..];
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
            if let [subresource, rest @ ..] = below {
                self.subresource = (*subresource).to_owned();
                self.rest = rest.join("/");
            }
        }
    }
}

fn decode(segment: &str) -> String {
    percent_encoding::percent_decode_str(segment).decode_utf8_lossy().into_owned()
}

fn method_verb(method: &Method) -> &'static str {
    match *method {
        Method::GET => "get",
        Method::POST => "post",
        Method::PUT => "put",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        Method::HEAD => "head",
        Method::OPTIONS => "options",
        Method::TRACE => "trace",
        _ => "connect",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(method: &str, uri: &str) -> RequestInfo {
        let (path, query) = uri.split_once('?').map_or((uri, None), |(p, q)| (p, Some(q)));
        RequestInfo::new(&method.parse().unwrap(), path, &Query::parse(query))
    }

    #[test]
    fn verbs_and_names() {
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
            ("GET", "/api/v1/nodes?fieldSelector=metadata.name%3Dn1", "list", "", "nodes", "", "n1"),
        ] {
            let got = info(method, uri);
            assert_eq!(
                (got.verb, got.namespace.as_str(), got.resource.as_str()),
                (verb, ns, resource),
                "{method} {uri}"
            );
            assert_eq!((got.subresource.as_str(), got.name.as_str()), (sub, name), "{method} {uri}");
        }
        assert!(!info("GET", "/api/v1").is_resource);
        assert_eq!(info("GET", "/healthz").verb, "get");
        assert_eq!(info("POST", "/healthz").verb, "post");
    }
}
