//! Commands, attachments and ports: the caller's connection is joined with the runtime's streaming server.

use cri::v1::{AttachRequest, ExecRequest, PortForwardRequest};
use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::containers::parameters;
use super::{Reply, text};
use crate::shared::Shared;

/// How much of a refusal is passed on.
const MAX_REFUSAL: usize = 64 * 1024;

fn is_on(query: &[(String, String)], name: &str) -> bool {
    query.iter().any(|(key, value)| key == name && matches!(value.as_str(), "1" | "true"))
}

pub async fn exec(shared: &Shared, request: Request<Incoming>, container: &str) -> Reply {
    let query = parameters(request.uri().query());
    let command: Vec<String> =
        query.iter().filter(|(name, _)| name == "command").map(|(_, value)| value.clone()).collect();
    let tty = is_on(&query, "tty");
    let asked = ExecRequest {
        container_id: container.to_owned(),
        cmd: command,
        tty,
        stdin: is_on(&query, "input"),
        stdout: is_on(&query, "output"),
        // A terminal has one output.
        stderr: is_on(&query, "error") && !tty,
    };
    match shared.engine.exec_url(asked).await {
        Ok(url) => join(shared, request, &url).await,
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

pub async fn attach(shared: &Shared, request: Request<Incoming>, container: &str, tty: bool) -> Reply {
    let query = parameters(request.uri().query());
    let asked = AttachRequest {
        container_id: container.to_owned(),
        stdin: is_on(&query, "input"),
        tty,
        stdout: is_on(&query, "output"),
        stderr: is_on(&query, "error") && !tty,
    };
    match shared.engine.attach_url(asked).await {
        Ok(url) => join(shared, request, &url).await,
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

pub async fn port_forward(shared: &Shared, request: Request<Incoming>, sandbox: &str) -> Reply {
    let port = match ports(&parameters(request.uri().query())) {
        Ok(ports) => ports,
        Err(message) => return text(StatusCode::BAD_REQUEST, message),
    };
    let asked = PortForwardRequest { pod_sandbox_id: sandbox.to_owned(), port };
    match shared.engine.port_forward_url(asked).await {
        Ok(url) => join(shared, request, &url).await,
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

/// The ports that a request names; each parameter may have several.
fn ports(query: &[(String, String)]) -> Result<Vec<i32>, String> {
    let values = query.iter().filter(|(name, _)| name == "port").map(|(_, value)| value.as_str());
    let parse = |value: &str, all: &str| match value.parse::<u16>() {
        Ok(0) => Err(format!("port {all:?} must be > 0")),
        Ok(port) => Ok(i32::from(port)),
        Err(error) => Err(format!("unable to parse {all:?} as a port: {error}")),
    };
    values.flat_map(|all| all.split(',').map(move |value| parse(value, all))).collect()
}

/// Passes the request on to `url`; once both sides have switched protocols, bytes flow both ways untouched.
async fn join(shared: &Shared, request: Request<Incoming>, url: &str) -> Reply {
    match try_join(shared, request, url).await {
        Ok(reply) => reply,
        Err(error) => {
            tracing::debug!(error, url, "a stream could not be joined with the runtime");
            text(StatusCode::BAD_GATEWAY, format!("{error}\n"))
        }
    }
}

async fn try_join(shared: &Shared, mut request: Request<Incoming>, url: &str) -> Result<Reply, String> {
    let uri: Uri = url.parse().map_err(|error| format!("the runtime's address {url:?}: {error}"))?;
    let authority = uri.authority().ok_or_else(|| format!("the runtime's address {url:?}"))?.clone();
    let stream = TcpStream::connect(authority.as_str())
        .await
        .map_err(|error| format!("dial tcp {authority}: {error}"))?;
    let _ = stream.set_nodelay(true);
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    shared.tasks.spawn(async move {
        let _ = connection.with_upgrades().await;
    });
    let path = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    let mut onward = Request::builder().method(request.method()).uri(path);
    for (name, value) in request.headers() {
        if name != header::HOST && name != header::AUTHORIZATION && name != header::CONTENT_LENGTH {
            onward = onward.header(name, value);
        }
    }
    let onward = onward
        .header(header::HOST, authority.as_str())
        .body(Empty::<bytes::Bytes>::new())
        .map_err(|error| error.to_string())?;
    let mut answer = sender.send_request(onward).await.map_err(|error| error.to_string())?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        let code = answer.status();
        let body = Limited::new(answer.into_body(), MAX_REFUSAL).collect().await;
        return Ok(text(code, body.map(http_body_util::Collected::to_bytes).unwrap_or_default()));
    }
    let theirs = hyper::upgrade::on(&mut answer);
    let ours = hyper::upgrade::on(&mut request);
    shared.tasks.spawn(async move {
        let (Ok(theirs), Ok(ours)) = tokio::join!(theirs, ours) else { return };
        let (mut theirs, mut ours) = (TokioIo::new(theirs), TokioIo::new(ours));
        let _ = tokio::io::copy_bidirectional(&mut ours, &mut theirs).await;
    });
    let mut reply = text(StatusCode::SWITCHING_PROTOCOLS, "");
    reply.headers_mut().clear();
    for (name, value) in answer.headers() {
        reply.headers_mut().append(name, value.clone());
    }
    Ok(reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_separated_by_commas() {
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
