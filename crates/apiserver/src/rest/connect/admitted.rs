//! Admission of connections: plugins see the options of the connection as the object.

use crate::admission::{Attributes, Operation};
use crate::rest::{Rest, Route};
use crate::wire::query::Query;
use machinery::status::{Result, Status};
use machinery::{Map, Value};

/// Kinds of the options; subresources without one, such as log, are reads.
fn kind(resource: &str, subresource: &str) -> Option<&'static str> {
    Some(match (resource, subresource) {
        ("pods", "exec") => "PodExecOptions",
        ("pods", "attach") => "PodAttachOptions",
        ("pods", "portforward") => "PodPortForwardOptions",
        ("pods", "proxy") => "PodProxyOptions",
        ("services", "proxy") => "ServiceProxyOptions",
        ("nodes", "proxy") => "NodeProxyOptions",
        _ => return None,
    })
}

/// Options of a query; `path` is the path behind a proxy.
fn options(kind: &str, query: &Query, path: &str) -> Value {
    let mut options =
        Map::from_iter([("kind".to_owned(), kind.into()), ("apiVersion".to_owned(), "v1".into())]);
    for name in ["stdin", "stdout", "stderr", "tty"] {
        if query.get(name).is_some_and(|text| !matches!(text, "" | "0" | "false")) {
            options.insert(name.to_owned(), true.into());
        }
    }
    let ports = query.all("ports").flat_map(|ports| ports.split(','));
    let ports: Vec<i32> = ports.filter_map(|port| port.trim().parse().ok()).collect();
    let command: Vec<&str> = query.all("command").collect();
    for (name, value, given) in [
        ("container", query.text("container").into(), query.get("container").is_some()),
        ("command", Value::from(command.as_slice()), !command.is_empty()),
        ("ports", Value::from(ports.as_slice()), !ports.is_empty()),
        ("path", path.into(), !path.is_empty()),
    ] {
        if given {
            options.insert(name.to_owned(), value);
        }
    }
    Value::Object(options)
}

impl Rest {
    /// Runs the admission plugins that handle CONNECT.
    pub(super) async fn admit(&self, route: &Route<'_>, subresource: &str) -> Result<()> {
        let context = route.context;
        let Some(kind) = kind(route.served.kind.resource(), subresource) else { return Ok(()) };
        if context.query.get("dryRun").is_some() {
            return Err(Status::bad_request("dryRun is not supported"));
        }
        let options = match subresource {
            "proxy" => options(kind, &Query::parse(None), super::proxy::split(context).1),
            _ => options(kind, &context.query, ""),
        };
        let write = self.write_context(route, "", false);
        let attributes = Attributes::new(&route.served, &write, Operation::Connect).named(&context.info.name);
        self.registry.admission.connect(&self.registry, &attributes, options).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn connect_options_are_read_from_query() {
        for (query, path, want) in [
            (
                "container=c&stdin=true&tty=0&command=ls&command=-l",
                "",
                json!({"container": "c", "stdin": true, "command": ["ls", "-l"]}),
            ),
            ("ports=80&ports=81,82", "", json!({"ports": [80, 81, 82]})),
            ("", "/a/b", json!({"path": "/a/b"})),
        ] {
            let mut shown = options("K", &Query::parse(Some(query)), path);
            let all = shown.as_object_mut().expect("an object");
            assert_eq!((all.remove("kind"), all.remove("apiVersion")), (Some("K".into()), Some("v1".into())));
            assert_eq!(shown, want, "{query}");
        }
        assert_eq!(kind("pods", "log"), None);
    }
}
