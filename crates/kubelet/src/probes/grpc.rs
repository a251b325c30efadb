//! The gRPC health protocol.

use std::time::Duration;

use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Endpoint;
use tonic_prost::ProstCodec;

use super::ProbeOutcome;

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckResponse {
    /// 0 unknown, 1 serving, 2 not serving, 3 service unknown.
    #[prost(int32, tag = "1")]
    status: i32,
}

const SERVING: i32 = 1;

pub async fn check(host: &str, port: u16, service: String, limit: Duration) -> ProbeOutcome {
    let joined = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let call = async {
        let endpoint =
            Endpoint::from_shared(format!("http://{joined}")).map_err(|error| error.to_string())?;
        let channel = endpoint.connect().await.map_err(|error| {
            format!("timeout: failed to connect service {joined:?} within {}s: {error}", limit.as_secs())
        })?;
        let mut grpc = tonic::client::Grpc::new(channel);
        grpc.ready().await.map_err(|error| error.to_string())?;
        let path = PathAndQuery::from_static("/grpc.health.v1.Health/Check");
        let codec = ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
        let answer = grpc.unary(tonic::Request::new(HealthCheckRequest { service }), path, codec).await;
        match answer {
            Ok(answer) if answer.get_ref().status == SERVING => Ok(()),
            Ok(answer) => {
                let name = match answer.get_ref().status {
                    2 => "NOT_SERVING",
                    3 => "SERVICE_UNKNOWN",
                    _ => "UNKNOWN",
                };
                Err(format!("service unhealthy (responded with {name:?})"))
            }
            Err(status) => Err(format!("error: health rpc failed: {}", status.message())),
        }
    };
    match tokio::time::timeout(limit, call).await {
        Ok(Ok(())) => ProbeOutcome::Success,
        Ok(Err(text)) => ProbeOutcome::Failure(text),
        Err(_) => {
            ProbeOutcome::Failure(format!("timeout: health rpc did not complete within {}s", limit.as_secs()))
        }
    }
}

#[cfg(test)]
mod tests {
    use hyper::service::service_fn;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use tokio::net::TcpListener;
    use tonic::{Request, Response, Status};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    /// A server of the health protocol whose services have these states.
    async fn serve(services: &'static [(&'static str, i32)]) -> u16 {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service = service_fn(move |request: http::Request<hyper::body::Incoming>| async move {
                    let known = request.uri().path() == "/grpc.health.v1.Health/Check";
                    let answer = cri::server::unary(request, move |call: Request<HealthCheckRequest>| {
                        let found = services.iter().find(|(name, _)| *name == call.get_ref().service);
                        let answer = match found {
                            Some((_, status)) if known => {
                                Ok(Response::new(HealthCheckResponse { status: *status }))
                            }
                            _ => Err(Status::not_found("unknown service")),
                        };
                        Box::pin(std::future::ready(answer))
                    });
                    Ok::<_, std::convert::Infallible>(answer.await)
                });
                tokio::spawn(
                    hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(stream), service),
                );
            }
        });
        port
    }

    #[tokio::test]
    async fn grpc_probe_health_status_decides() {
        let port = serve(&[("", 1), ("fine", 1), ("ill", 2), ("odd", 0)]).await;
        for (service, wrong) in [
            ("", None),
            ("fine", None),
            ("ill", Some("service unhealthy (responded with \"NOT_SERVING\")")),
            ("odd", Some("service unhealthy (responded with \"UNKNOWN\")")),
            ("none", Some("error: health rpc failed: unknown service")),
        ] {
            match (check("127.0.0.1", port, service.to_owned(), TIMEOUT).await, wrong) {
                (ProbeOutcome::Success, None) => {}
                (ProbeOutcome::Failure(text), Some(wrong)) => assert_eq!(text, wrong, "{service:?}"),
                (outcome, _) => panic!("{service:?}: {outcome:?}"),
            }
        }
    }

    #[tokio::test]
    async fn grpc_probe_closed_port_fails() {
        let free = TcpListener::bind(("127.0.0.1", 0)).await.unwrap().local_addr().unwrap().port();
        match check("127.0.0.1", free, String::new(), TIMEOUT).await {
            ProbeOutcome::Failure(text) => assert!(text.contains("failed to connect service"), "{text}"),
            outcome => panic!("{outcome:?}"),
        }
    }
}
