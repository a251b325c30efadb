//! The gRPC health protocol.

use std::time::Duration;

use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Endpoint;
use tonic_prost::ProstCodec;

use super::Outcome;

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

pub async fn check(host: &str, port: u16, service: String, limit: Duration) -> Outcome {
    let joined = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let asking = async {
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
    match tokio::time::timeout(limit, asking).await {
        Ok(Ok(())) => Outcome::Success,
        Ok(Err(text)) => Outcome::Failure(text),
        Err(_) => {
            Outcome::Failure(format!("timeout: health rpc did not complete within {}s", limit.as_secs()))
        }
    }
}
