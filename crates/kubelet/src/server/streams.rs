//! Exec, attach and port-forward: proxies the client's connection to the runtime's streaming server.

use base::http::{Client, HttpError, Limits, Origin, Trust};
use cri::v1::{AttachRequest, ExecRequest, PortForwardRequest};
use http::{Request, StatusCode, Uri, header};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;

use super::containers::parameters;
use super::{Reply, text};
use crate::shared::Shared;

/// Maximum size of a forwarded error response.
const MAX_ERROR_BODY: usize = 64 * 1024;

fn is_on(query: &[(String, String)], name: &str) -> bool {
    query.iter().any(|(key, value)| key == name && matches!(value.as_str(), "1" | "true"))
}

pub async fn exec(shared: &Shared, request: Request<Incoming>, container: &str) -> Reply {
    let query = parameters(request.uri().query());
    let command: Vec<String> =
        query.iter().filter(|(name, _)| name == "command").map(|(_, value)| value.clone()).collect();
    let tty = is_on(&query, "tty");
    let call = ExecRequest {
        container_id: container.to_owned(),
        cmd: command,
        tty,
        stdin: is_on(&query, "input"),
        stdout: is_on(&query, "output"),
        // A terminal has a single output stream.
        stderr: is_on(&query, "error") && !tty,
    };
    match shared.engine.exec_url(call).await {
        Ok(url) => join(shared, request, &url).await,
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

pub async fn attach(shared: &Shared, request: Request<Incoming>, container: &str, tty: bool) -> Reply {
    let query = parameters(request.uri().query());
    let call = AttachRequest {
        container_id: container.to_owned(),
        stdin: is_on(&query, "input"),
        tty,
        stdout: is_on(&query, "output"),
        stderr: is_on(&query, "error") && !tty,
    };
    match shared.engine.attach_url(call).await {
        Ok(url) => join(shared, request, &url).await,
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

pub async fn port_forward(shared: &Shared, request: Request<Incoming>, sandbox: &str) -> Reply {
    let port = match ports(&parameters(request.uri().query())) {
        Ok(ports) => ports,
        Err(message) => return text(StatusCode::BAD_REQUEST, message),
    };
    let call = PortForwardRequest { pod_sandbox_id: sandbox.to_owned(), port };
    match shared.engine.port_forward_url(call).await {
        Ok(url) => join(shared, request, &url).await,
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

/// Ports of a request; each parameter may list several.
fn ports(query: &[(String, String)]) -> Result<Vec<i32>, String> {
    let values = query.iter().filter(|(name, _)| name == "port").map(|(_, value)| value.as_str());
    let parse = |value: &str, all: &str| match value.parse::<u16>() {
        Ok(0) => Err(format!("port {all:?} must be > 0")),
        Ok(port) => Ok(i32::from(port)),
        Err(error) => Err(format!("unable to parse {all:?} as a port: {error}")),
    };
    values.flat_map(|all| all.split(',').map(move |value| parse(value, all))).collect()
}

/// Forwards the request to `url`; after both sides switch protocols, bytes are copied unmodified.
async fn join(shared: &Shared, request: Request<Incoming>, url: &str) -> Reply {
    match try_join(shared, request, url).await {
        Ok(reply) => reply,
        Err(error) => {
            tracing::debug!(error, url, "failed to proxy stream to container runtime");
            text(StatusCode::BAD_GATEWAY, format!("{error}\n"))
        }
    }
}

async fn try_join(shared: &Shared, mut request: Request<Incoming>, url: &str) -> Result<Reply, String> {
    let invalid = |error: &dyn std::fmt::Display| format!("invalid runtime streaming URL {url:?}: {error}");
    let uri: Uri = url.parse().map_err(|error| invalid(&error))?;
    let runtime = Origin::of_url(url, &Trust::default()).map_err(|error| invalid(&error))?;
    let path = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    let mut onward = Request::builder().method(request.method()).uri(path);
    for (name, value) in request.headers() {
        if name != header::HOST && name != header::AUTHORIZATION && name != header::CONTENT_LENGTH {
            onward = onward.header(name, value);
        }
    }
    let onward = onward.body(()).map_err(|error| error.to_string())?;
    let client = Client::new(Limits { max_idle: 0, ..Limits::default() });
    let answer = client.send_upgrade(&runtime, onward).await.map_err(|error| match error {
        HttpError::Connect { address, source } => {
            format!("dial tcp {address}: connect: {}", base::errors::system(source))
        }
        error => base::errors::chain(&error),
    })?;
    if answer.status != StatusCode::SWITCHING_PROTOCOLS {
        let code = answer.status;
        return Ok(text(code, answer.bytes(MAX_ERROR_BODY).await.unwrap_or_default()));
    }
    let mut reply = text(StatusCode::SWITCHING_PROTOCOLS, "");
    reply.headers_mut().clone_from(&answer.headers);
    let ours = hyper::upgrade::on(&mut request);
    shared.tasks.spawn(async move {
        let (Ok(mut theirs), Ok(ours)) = tokio::join!(answer.upgraded(), ours) else { return };
        let mut ours = TokioIo::new(ours);
        let _ = tokio::io::copy_bidirectional(&mut ours, &mut theirs).await;
    });
    Ok(reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_parameter_splits_at_commas() {
        let query = |values: &[&str]| -> Vec<(String, String)> {
            values.iter().map(|value| ("port".to_owned(), (*value).to_owned())).collect()
        };
        assert_eq!(ports(&query(&["80,443", "8080"])), Ok(vec![80, 443, 8080]));
        assert_eq!(ports(&query(&[])), Ok(Vec::new()));
        assert_eq!(ports(&query(&["0"])), Err("port \"0\" must be > 0".to_owned()));
        assert!(ports(&query(&["80,"])).is_err_and(|message| message.starts_with("unable to parse \"80,\"")));
        assert!(ports(&query(&["65536"])).is_err());
    }
}
