//! Flags about what is recorded of requests, under Kubernetes' names.

use crate::audit_webhook_flags::AuditWebhookFlags;
use anyhow::Result;
use clap::{ArgAction, Args, ValueEnum};
use cluster::audit::{AuditConfig, Format, LogConfig, Mode, Rotation};
use std::path::PathBuf;

/// Whether requests wait until they are recorded.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum AuditMode {
    Batch,
    Blocking,
    BlockingStrict,
}

impl From<AuditMode> for Mode {
    fn from(mode: AuditMode) -> Self {
        match mode {
            AuditMode::Batch => Self::Batch,
            AuditMode::Blocking => Self::Blocking,
            AuditMode::BlockingStrict => Self::BlockingStrict,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum LogFormat {
    Json,
    Legacy,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum EventVersion {
    #[value(name = "audit.k8s.io/v1")]
    V1,
}

#[derive(Args, Debug)]
pub struct AuditFlags {
    /// Whether every write is noted, without its objects, in logs/audit.log of the data directory; `ferry audit` reads it.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set, num_args = 0..=1,
          default_missing_value = "true", require_equals = true, help_heading = "Audit")]
    pub audit_trail: bool,

    /// What is recorded, and how much of it: a Policy of audit.k8s.io/v1.
    #[arg(long, value_name = "FILE", help_heading = "Audit")]
    pub audit_policy_file: Option<PathBuf>,

    /// Where events are logged; - for the standard output.
    #[arg(long, value_name = "FILE", help_heading = "Audit")]
    pub audit_log_path: Option<PathBuf>,

    /// Days that full log files are kept; 0 for ever.
    #[arg(
        long,
        value_name = "DAYS",
        default_value_t = 366,
        requires = "audit_log_path",
        help_heading = "Audit"
    )]
    pub audit_log_maxage: u32,

    /// Full log files that are kept; 0 for all.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 100,
        requires = "audit_log_path",
        help_heading = "Audit"
    )]
    pub audit_log_maxbackup: usize,

    /// Megabytes after which a log file is full; 0 for never.
    #[arg(
        long,
        value_name = "MB",
        default_value_t = 100,
        requires = "audit_log_path",
        help_heading = "Audit"
    )]
    pub audit_log_maxsize: u64,

    /// Whether full log files are compressed.
    #[arg(long, value_name = "BOOL", default_value_t = false, action = ArgAction::Set, num_args = 0..=1,
          default_missing_value = "true", require_equals = true, requires = "audit_log_path", help_heading = "Audit")]
    pub audit_log_compress: bool,

    /// How events are written.
    #[arg(
        long,
        value_name = "FORMAT",
        default_value = "json",
        requires = "audit_log_path",
        help_heading = "Audit"
    )]
    pub audit_log_format: LogFormat,

    /// Whether requests wait for the log.
    #[arg(
        long,
        value_name = "MODE",
        default_value = "blocking",
        requires = "audit_log_path",
        help_heading = "Audit"
    )]
    pub audit_log_mode: AuditMode,

    /// Events that wait for the log in batch mode; more are lost.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 10_000,
        requires = "audit_log_path",
        help_heading = "Audit"
    )]
    pub audit_log_batch_buffer_size: usize,

    /// Whether events that are too large go without their objects.
    #[arg(long, value_name = "BOOL", default_value_t = false, action = ArgAction::Set, num_args = 0..=1,
          default_missing_value = "true", require_equals = true, requires = "audit_log_path", help_heading = "Audit")]
    pub audit_log_truncate_enabled: bool,

    /// Bytes above which an event is too large.
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 102_400,
        requires = "audit_log_path",
        help_heading = "Audit"
    )]
    pub audit_log_truncate_max_event_size: usize,

    /// Version of the events.
    #[arg(
        long,
        value_name = "VERSION",
        default_value = "audit.k8s.io/v1",
        requires = "audit_log_path",
        help_heading = "Audit"
    )]
    pub audit_log_version: EventVersion,

    #[command(flatten)]
    pub webhook: AuditWebhookFlags,
}

impl AuditFlags {
    pub fn apply(self, config: &mut AuditConfig) -> Result<()> {
        if !self.audit_trail {
            config.trail = None;
        }
        config.policy_file = self.audit_policy_file;
        config.webhook = self.webhook.config()?;
        config.log = self.audit_log_path.map(|path| LogConfig {
            path,
            rotation: Rotation {
                max_bytes: self.audit_log_maxsize.saturating_mul(1 << 20),
                max_backups: self.audit_log_maxbackup,
                max_age_days: self.audit_log_maxage,
                compress: self.audit_log_compress,
            },
            format: match self.audit_log_format {
                LogFormat::Json => Format::Json,
                LogFormat::Legacy => Format::Legacy,
            },
            mode: self.audit_log_mode.into(),
            buffer: self.audit_log_batch_buffer_size,
            max_event_bytes: self
                .audit_log_truncate_enabled
                .then_some(self.audit_log_truncate_max_event_size),
        });
        Ok(())
    }
}
