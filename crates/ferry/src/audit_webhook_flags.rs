//! Flags of the audit webhook, with Kubernetes' names.

use crate::audit_flags::{AuditMode, EventVersion};
use crate::flags::parse_duration;
use anyhow::{Result, ensure};
use clap::{ArgAction, Args};
use cluster::audit::{Throttle, WebhookConfig};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Args, Debug)]
pub struct AuditWebhookFlags {
    /// Path to a kubeconfig formatted file that defines the audit webhook configuration.
    #[arg(long, value_name = "FILE", help_heading = "Audit")]
    pub audit_webhook_config_file: Option<PathBuf>,

    /// Strategy for sending audit events. Blocking indicates sending events should block server responses. Batch
    /// causes the backend to buffer and write events asynchronously.
    #[arg(long, value_name = "MODE", default_value = "batch", help_heading = "Audit")]
    pub audit_webhook_mode: AuditMode,

    /// The size of the buffer to store events before batching and writing; further events are dropped. Only used in
    /// batch mode.
    #[arg(long, value_name = "N", default_value_t = 10_000, help_heading = "Audit")]
    pub audit_webhook_batch_buffer_size: usize,

    /// The maximum size of a batch. Only used in batch mode.
    #[arg(long, value_name = "N", default_value_t = 400, help_heading = "Audit")]
    pub audit_webhook_batch_max_size: usize,

    /// The amount of time to wait before force writing the batch that hadn't reached the max size. Only used in batch
    /// mode.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_duration, help_heading = "Audit")]
    pub audit_webhook_batch_max_wait: Duration,

    /// If true, batching is throttled. Only used in batch mode.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set, num_args = 0..=1,
          default_missing_value = "true", require_equals = true, help_heading = "Audit")]
    pub audit_webhook_batch_throttle_enable: bool,

    /// Maximum average number of batches per second. Only used in batch mode.
    #[arg(long, value_name = "N", default_value_t = 10.0, help_heading = "Audit")]
    pub audit_webhook_batch_throttle_qps: f64,

    /// Maximum number of requests sent at the same moment if ThrottleQPS was not utilized before. Only used in batch
    /// mode.
    #[arg(long, value_name = "N", default_value_t = 15, help_heading = "Audit")]
    pub audit_webhook_batch_throttle_burst: u32,

    /// The amount of time to wait before retrying the first failed request.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration, help_heading = "Audit")]
    pub audit_webhook_initial_backoff: Duration,

    /// If true, request and response objects are removed from events larger than the maximum size.
    #[arg(long, value_name = "BOOL", default_value_t = false, action = ArgAction::Set, num_args = 0..=1,
          default_missing_value = "true", require_equals = true, help_heading = "Audit")]
    pub audit_webhook_truncate_enabled: bool,

    /// Maximum size of the audit event in bytes before it is truncated.
    #[arg(long, value_name = "BYTES", default_value_t = 102_400, help_heading = "Audit")]
    pub audit_webhook_truncate_max_event_size: usize,

    /// Maximum size of the batch in bytes sent to the webhook. If a batch exceeds the limit, it is split into several
    /// batches of smaller size.
    #[arg(long, value_name = "BYTES", default_value_t = 10 << 20, help_heading = "Audit")]
    pub audit_webhook_truncate_max_batch_size: usize,

    /// API group and version used for serializing audit events written to webhook.
    #[arg(long, value_name = "VERSION", default_value = "audit.k8s.io/v1", help_heading = "Audit")]
    pub audit_webhook_version: EventVersion,
}

impl AuditWebhookFlags {
    /// `None` without a webhook.
    pub fn config(self) -> Result<Option<WebhookConfig>> {
        let Some(kubeconfig) = self.audit_webhook_config_file else { return Ok(None) };
        let throttle = Throttle {
            per_second: self.audit_webhook_batch_throttle_qps,
            burst: self.audit_webhook_batch_throttle_burst,
        };
        let throttle = self.audit_webhook_batch_throttle_enable.then_some(throttle);
        if matches!(self.audit_webhook_mode, AuditMode::Batch) {
            let positive = |flag: &str, is: bool| {
                ensure!(is, "--audit-webhook-batch-{flag} must be a positive number");
                Ok(())
            };
            positive("buffer-size", self.audit_webhook_batch_buffer_size > 0)?;
            positive("max-size", self.audit_webhook_batch_max_size > 0)?;
            positive("throttle-qps", throttle.is_none_or(|throttle| throttle.per_second > 0.0))?;
            positive("throttle-burst", throttle.is_none_or(|throttle| throttle.burst > 0))?;
        }
        Ok(Some(WebhookConfig {
            kubeconfig,
            mode: self.audit_webhook_mode.into(),
            buffer: self.audit_webhook_batch_buffer_size,
            max_batch: self.audit_webhook_batch_max_size,
            max_wait: self.audit_webhook_batch_max_wait,
            throttle,
            initial_back_off: self.audit_webhook_initial_backoff,
            max_event_bytes: self
                .audit_webhook_truncate_enabled
                .then_some(self.audit_webhook_truncate_max_event_size),
            max_batch_bytes: self.audit_webhook_truncate_max_batch_size,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        webhook: AuditWebhookFlags,
    }

    fn config(flags: &[&str]) -> Result<Option<WebhookConfig>> {
        let arguments = ["ferry"].iter().chain(flags);
        Flags::try_parse_from(arguments)?.webhook.config()
    }

    #[test]
    fn audit_webhook_flags_set_webhook_config() -> Result<()> {
        assert!(config(&["--audit-webhook-batch-max-size=3"])?.is_none());
        let file = "--audit-webhook-config-file=hook";
        let usual = config(&[file])?.expect("a webhook");
        assert_eq!((usual.buffer, usual.max_batch, usual.max_event_bytes), (10_000, 400, None));
        assert_eq!(usual.throttle, Some(Throttle { per_second: 10.0, burst: 15 }));
        let other = config(&[
            file,
            "--audit-webhook-batch-throttle-enable=false",
            "--audit-webhook-batch-max-wait=5s",
            "--audit-webhook-truncate-enabled",
        ])?
        .expect("a webhook");
        assert_eq!((other.throttle, other.max_wait), (None, Duration::from_secs(5)));
        assert_eq!(other.max_event_bytes, Some(102_400));
        assert!(config(&[file, "--audit-webhook-batch-max-size=0"]).is_err());
        assert!(config(&[file, "--audit-webhook-batch-max-size=0", "--audit-webhook-mode=blocking"]).is_ok());
        Ok(())
    }
}
