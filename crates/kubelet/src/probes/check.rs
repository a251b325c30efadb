//! Execution of a single probe.

use std::time::Duration;

use objects::IntOrString;
use objects::core::v1::{Container, ContainerPort, Probe};

use super::{grpc, http};
use crate::engine::Engine;
use crate::node::PodAddress;

/// Maximum length of a failure message.
const MAX_TEXT: usize = 10 * 1024;

/// Probe result, with the message of a failure or a warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeOutcome {
    Success,
    /// A success that is reported by an event.
    Warning(String),
    Failure(String),
}

/// Probe target.
#[derive(Clone)]
pub struct Target {
    pub engine: Engine,
    pub container_id: String,
    pub container: Container,
    pub address: PodAddress,
}

/// Resolves a port given by number or name.
#[must_use]
pub fn port(port: &IntOrString, ports: Option<&Vec<ContainerPort>>) -> Option<u16> {
    let number = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => match name.parse() {
            Ok(number) => number,
            Err(_) => ports?.iter().find(|port| port.name.as_deref() == Some(name.as_str()))?.container_port,
        },
    };
    u16::try_from(number).ok().filter(|number| *number > 0)
}

/// Executes the probe once.
pub async fn check(probe: &Probe, target: &Target) -> ProbeOutcome {
    let limit = Duration::from_secs(u64::try_from(probe.timeout_seconds.unwrap_or(1)).unwrap_or(1).max(1));
    let ports = target.container.ports.as_ref();
    if let Some(action) = &probe.exec {
        let command = action.command.clone().unwrap_or_default();
        return match target.engine.exec(&target.container_id, command, limit).await {
            Ok((0, _)) => ProbeOutcome::Success,
            Ok((_, output)) => ProbeOutcome::Failure(shortened(&output)),
            Err(error) if error.0.code() == tonic::Code::DeadlineExceeded => {
                ProbeOutcome::Failure(format!("command timed out: {error}"))
            }
            Err(error) => ProbeOutcome::Failure(error.to_string()),
        };
    }
    let pod_ip = target.address.ip();
    if let Some(action) = &probe.http_get {
        let Some(number) = port(&action.port, ports) else {
            return ProbeOutcome::Failure(format!("invalid port {:?}", action.port));
        };
        let host = action.host.as_deref().filter(|host| !host.is_empty()).unwrap_or(&pod_ip);
        return http::get(action, host, number, limit).await;
    }
    if let Some(action) = &probe.tcp_socket {
        let Some(number) = port(&action.port, ports) else {
            return ProbeOutcome::Failure(format!("invalid port {:?}", action.port));
        };
        let host = action.host.as_deref().filter(|host| !host.is_empty()).unwrap_or(&pod_ip);
        let connecting = tokio::net::TcpStream::connect((host, number));
        return match tokio::time::timeout(limit, connecting).await {
            Ok(Ok(_)) => ProbeOutcome::Success,
            Ok(Err(error)) => {
                let reason = base::errors::system(error);
                ProbeOutcome::Failure(format!("dial tcp {host}:{number}: connect: {reason}"))
            }
            Err(_) => ProbeOutcome::Failure(format!("dial tcp {host}:{number}: i/o timeout")),
        };
    }
    if let Some(action) = &probe.grpc {
        let Ok(number) = u16::try_from(action.port) else {
            return ProbeOutcome::Failure(format!("invalid port {}", action.port));
        };
        let service = action.service.clone().unwrap_or_default();
        return grpc::check(&pod_ip, number, service, limit).await;
    }
    ProbeOutcome::Failure("missing probe handler".to_owned())
}

fn shortened(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    text.chars().take(MAX_TEXT).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probe_port_resolves_number_and_name() {
        let list = vec![ContainerPort {
            name: Some("web".to_owned()),
            container_port: 8080,
            ..ContainerPort::default()
        }];
        for (input, want) in [
            (IntOrString::Int(80), Some(80)),
            (IntOrString::String("web".to_owned()), Some(8080)),
            (IntOrString::String("81".to_owned()), Some(81)),
            (IntOrString::String("none".to_owned()), None),
            (IntOrString::Int(0), None),
            (IntOrString::Int(70_000), None),
        ] {
            assert_eq!(port(&input, Some(&list)), want);
        }
    }
}
