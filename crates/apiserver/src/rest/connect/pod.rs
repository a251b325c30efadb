//! Pod connections: logs, exec, attach, port-forward, proxied ports.

use super::socket::over_websocket;
use super::upstream::{BackendRequest, Trust, Upstream};
use super::{items, name_of, split_name, text};
use crate::authorize::Attributes;
use crate::context::Context;
use crate::request_info::Verb;
use crate::rest::Rest;
use crate::serve::RequestBody;
use crate::wire::reply::{self, Reply};
use machinery::Value;
use machinery::status::{Result, Status};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// Name of the requested container, or of the only one.
fn container(pod: &Value, requested: &str) -> Result<String> {
    let lists = ["initContainers", "containers", "ephemeralContainers"];
    let names: Vec<&str> =
        lists.iter().flat_map(|list| items(pod, &["spec", list])).map(|one| text(one, &["name"])).collect();
    let pod_name = name_of(pod);
    if !requested.is_empty() {
        return match names.contains(&requested) {
            true => Ok(requested.to_owned()),
            false => {
                Err(Status::bad_request(format!("container {requested} is not valid for pod {pod_name}")))
            }
        };
    }
    match items(pod, &["spec", "containers"]) {
        [only] => Ok(text(only, &["name"]).to_owned()),
        [] => Err(Status::bad_request(format!("a container name must be specified for pod {pod_name}"))),
        _ => Err(Status::bad_request(format!(
            "a container name must be specified for pod {pod_name}, choose one of: [{}]",
            names.join(" ")
        ))),
    }
}

/// Query for the kubelet: its parameters have other names than the API's.
fn stream_query(context: &Context, kind: &str) -> String {
    let query = &context.query;
    let mut out = Vec::new();
    if kind == "portForward" {
        let ports: Vec<&str> = query.all("ports").collect();
        out.extend((!ports.is_empty()).then(|| format!("port={}", encoded(&ports.join(",")))));
        return out.join("&");
    }
    // For attach and exec, stdout and stderr are on by default.
    let on = |name: &str| query.flag(name) == Some(true);
    for (own, theirs) in [("stdin", "input"), ("stdout", "output"), ("stderr", "error"), ("tty", "tty")] {
        if on(own) {
            out.push(format!("{theirs}=1"));
        }
    }
    if kind == "exec" {
        out.extend(query.all("command").map(|word| format!("command={}", encoded(word))));
    }
    out.join("&")
}

fn log_query(context: &Context) -> Result<String> {
    let query = &context.query;
    let mut out = Vec::new();
    for name in ["follow", "previous", "timestamps"] {
        if query.flag(name) == Some(true) {
            out.push(format!("{name}=true"));
        }
    }
    for name in ["sinceSeconds", "tailLines", "limitBytes"] {
        if let Some(number) = query.integer(name)? {
            out.push(format!("{name}={number}"));
        }
    }
    for name in ["sinceTime", "stream"] {
        if let Some(value) = query.get(name).filter(|value| !value.is_empty()) {
            out.push(format!("{name}={}", encoded(value)));
        }
    }
    Ok(out.join("&"))
}

impl Rest {
    pub(super) async fn pod_log(&self, context: &Context) -> Result<Reply> {
        let info = &context.info;
        let query = log_query(context)?;
        let pod = self.object("pods", &info.namespace, &info.name).await?;
        let container = container(&pod, context.query.text("container"))?;
        let node = text(&pod, &["spec", "nodeName"]);
        if node.is_empty() {
            // An unscheduled pod has an empty log.
            return Ok(reply::finish_typed(200, "text/plain", bytes::Bytes::new(), context));
        }
        let kubelet = self.kubelet(node).await?;
        let target = format!("/containerLogs/{}/{}/{container}?{query}", info.namespace, info.name);
        let passage = BackendRequest { target, links: None };
        let answer = self.pass(context, &kubelet, passage, RequestBody::default()).await?;
        let answer = error_as_status(answer).await?;
        match streaming::upgrade::is_websocket_upgrade(&context.headers) {
            true => over_websocket(context, answer, &self.connections.streams),
            false => Ok(answer),
        }
    }

    /// `exec`, `attach` and `portForward`, whose connections are upgraded.
    pub(super) async fn pod_stream(&self, context: &Context, kind: &str, body: RequestBody) -> Result<Reply> {
        let info = &context.info;
        if info.verb == Verb::Get {
            // A WebSocket handshake is a GET, but has the effect of a POST, so it needs the verb `create`.
            let attributes = Attributes { verb: "create", ..Attributes::of(context) };
            self.registry.authorization.check(&context.user, &attributes).await?;
        }
        let pod = self.object("pods", &info.namespace, &info.name).await?;
        let place = if kind == "portForward" {
            String::new()
        } else {
            format!("/{}", container(&pod, context.query.text("container"))?)
        };
        let node = text(&pod, &["spec", "nodeName"]);
        if node.is_empty() {
            return Err(Status::bad_request(format!("pod {} does not have a host assigned", info.name)));
        }
        if kind == "exec" && context.query.all("command").next().is_none() {
            return Err(Status::bad_request("you must specify at least 1 command for the container"));
        }
        let kubelet = self.kubelet(node).await?;
        let query = stream_query(context, kind);
        let target = format!("/{kind}/{}/{}{place}?{query}", info.namespace, info.name);
        let answer = self.pass(context, &kubelet, BackendRequest { target, links: None }, body).await?;
        error_as_status(answer).await
    }

    /// Address of a pod's port: the requested one, or the first declared.
    pub(super) async fn pod_address(&self, context: &Context) -> Result<Upstream> {
        let info = &context.info;
        let Some((scheme, name, port)) = split_name(&info.name) else {
            return Err(Status::bad_request(format!("invalid pod request {:?}", info.name)));
        };
        let pod = self.object("pods", &info.namespace, name).await?;
        let first = || {
            let ports = items(&pod, &["spec", "containers"]).iter().flat_map(|one| items(one, &["ports"]));
            ports
                .filter_map(|port| port.get("containerPort")?.as_u64())
                .find_map(|port| u16::try_from(port).ok())
        };
        let tls = scheme == "https";
        let port = match port.parse::<u16>() {
            _ if port.is_empty() => first().unwrap_or(if tls { 443 } else { 80 }),
            Ok(port) => port,
            Err(_) => return Err(Status::bad_request(format!("invalid pod request {:?}", info.name))),
        };
        let ip = text(&pod, &["status", "podIP"]);
        allowed(ip)?;
        Ok(Upstream { host: ip.to_owned(), port, tls, trust: Trust::Unverified, node: String::new() })
    }
}

/// Rejects unspecified, loopback, multicast and link-local addresses: callers must not reach them through this
/// server.
pub(super) fn allowed(ip: &str) -> Result<()> {
    match ip.parse() {
        Ok(ip) if base::addresses::is_proxyable(ip) => Ok(()),
        _ => Err(Status::bad_request("address not allowed")),
    }
}

/// Converts an error response of a kubelet to a Status.
async fn error_as_status(answer: Reply) -> Result<Reply> {
    use http_body_util::BodyExt;
    let code = answer.status();
    if code.is_success() || code.is_informational() {
        return Ok(answer);
    }
    let body =
        answer.into_body().collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let message = String::from_utf8_lossy(&body).trim().chars().take(2048).collect::<String>();
    Err(match code.as_u16() {
        400 => Status::bad_request(message),
        404 => Status::new(
            404,
            "NotFound",
            format!("the server could not find the requested resource ({message})"),
        ),
        code @ (401 | 403) => Status::internal(format!("kubelet returned {code}: {message}")),
        _ => Status::internal(message),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(names: &[&str]) -> Value {
        let containers: Vec<_> = names.iter().map(|name| serde_json::json!({"name": name})).collect();
        serde_json::from_value(
            serde_json::json!({"metadata": {"name": "p"}, "spec": {"containers": containers}}),
        )
        .expect("a value")
    }

    #[test]
    fn container_name_defaults_to_the_only_one() {
        assert_eq!(container(&pod(&["a"]), "").ok().as_deref(), Some("a"));
        assert_eq!(container(&pod(&["a", "b"]), "b").ok().as_deref(), Some("b"));
        for (pod, requested, want) in [
            (pod(&["a", "b"]), "", "a container name must be specified for pod p, choose one of: [a b]"),
            (pod(&["a"]), "x", "container x is not valid for pod p"),
        ] {
            assert_eq!(container(&pod, requested).expect_err("refused").message, want);
        }
    }

    #[test]
    fn local_addresses_are_rejected() {
        for (ip, fine) in [
            ("10.1.2.3", true),
            ("127.0.0.1", false),
            ("169.254.1.1", false),
            ("", false),
            ("::1", false),
            ("fd00::2", true),
        ] {
            assert_eq!(allowed(ip).is_ok(), fine, "{ip}");
        }
    }
}
