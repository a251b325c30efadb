//! Lifecycle hooks: postStart and preStop.

use std::time::Duration;

use objects::core::v1::{Container, LifecycleHandler, Pod, Probe};

use crate::engine::Engine;
use crate::node::PodAddress;
use crate::probes::{ProbeOutcome, Target, check};

/// Timeout of hooks without another limit.
const TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

/// Runs a hook to completion.
pub async fn run(
    engine: &Engine,
    handler: &LifecycleHandler,
    container_id: &str,
    container: &Container,
    pod: &Pod,
    pod_ip: &str,
) -> Result<(), String> {
    if let Some(sleep) = &handler.sleep {
        tokio::time::sleep(Duration::from_secs(u64::try_from(sleep.seconds).unwrap_or(0))).await;
        return Ok(());
    }
    if let Some(exec) = &handler.exec {
        let command = exec.command.clone().unwrap_or_default();
        return match engine.exec(container_id, command, TIMEOUT).await {
            Ok((0, _)) => Ok(()),
            Ok((code, output)) => Err(format!(
                "command exited with {code}: {}",
                String::from_utf8_lossy(&output).chars().take(1024).collect::<String>()
            )),
            Err(error) => Err(error.to_string()),
        };
    }
    if handler.http_get.is_none() {
        return Err("invalid handler".to_owned());
    }
    let host_network = pod.spec.as_ref().and_then(|spec| spec.host_network) == Some(true);
    let probe = Probe { http_get: handler.http_get.clone(), timeout_seconds: Some(3600), ..Probe::default() };
    let target = Target {
        engine: engine.clone(),
        container_id: container_id.to_owned(),
        container: container.clone(),
        address: PodAddress::Own(if host_network { "127.0.0.1".to_owned() } else { pod_ip.to_owned() }),
    };
    match check(&probe, &target).await {
        ProbeOutcome::Success | ProbeOutcome::Warning(_) => Ok(()),
        ProbeOutcome::Failure(text) => Err(text),
    }
}
