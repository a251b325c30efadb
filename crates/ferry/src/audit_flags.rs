//! Flags of the audit log, with Kubernetes' names.

use crate::audit_webhook_flags::AuditWebhookFlags;
use anyhow::Result;
use clap::{ArgAction, Args, ValueEnum};
use cluster::audit::{AuditConfig, Format, LogConfig, Mode, Rotation};
use std::path::PathBuf;

/// Strategy for sending audit events.
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
    /// Log every write, without its objects, to logs/audit.log in the data directory; `ferry audit` reads it.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set, num_args = 0..=1,
          default_missing_value = "true", require_equals = true, help_heading = "Audit")]
    pub audit_trail: bool,

    /// Path to the file that defines the audit policy configuration: a Policy of audit.k8s.io/v1.
    #[arg(long, value_name = "FILE", help_heading = "Audit")]
    pub audit_policy_file: Option<PathBuf>,

    /// If set, all requests coming to the apiserver will be logged to this file. '-' means standard out.
    #[arg(long, value_name = "FILE", help_heading = "Audit")]
    pub audit_log_path: Option<PathBuf>,

    /// The maximum number of days to retain old audit log files; 0 means no limit.
    #[arg(
        long,
        value_name = "DAYS",
        default_value_t = 366,
        requires = "audit_log_path",
        help_heading = "Audit"
    )]
    pub audit_log_maxage: u32,

    /// The maximum number of old audit log files to retain. Setting a value of 0 will mean there's no restriction on
    /// the number of files.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 100,
        requires = "audit_log_path",
        help_heading = "Audit"
    )]
    pub audit_log_maxbackup: usize,

    /// The maximum size in megabytes of the audit log file before it gets rotated; 0 disables rotation.
    #[arg(
        long,
        value_name = "MB",
        default_value_t = 100,
        requires = "audit_log_path",
        help_heading = "Audit"
    )]
    pub audit_log_maxsize: u64,

    /// If set, the rotated log files will be compressed using gzip.
    #[arg(long, value_name = "BOOL", default_value_t = false, action = ArgAction::Set, num_args = 0..=1,
          default_missing_value = "true", require_equals = true, requires = "audit_log_path", help_heading = "Audit")]
    pub audit_log_compress: bool,

    /// Format of saved audits.
    #[arg(
        long,
        value_name = "FORMAT",
        default_value = "json",
        requires = "audit_log_path",
        help_heading = "Audit"
    )]
    pub audit_log_format: LogFormat,

    /// Strategy for sending audit events. Blocking indicates sending events should block server responses. Batch
    /// causes the backend to buffer and write events asynchronously.
    #[arg(
        long,
        value_name = "MODE",
        default_value = "blocking",
        requires = "audit_log_path",
        help_heading = "Audit"
    )]
    pub audit_log_mode: AuditMode,

    /// The size of the buffer to store events before batching and writing; further events are dropped. Only used in
    /// batch mode.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 10_000,
        requires = "audit_log_path",
        help_heading = "Audit"
    )]
    pub audit_log_batch_buffer_size: usize,

    /// If true, request and response objects are removed from events larger than the maximum size.
    #[arg(long, value_name = "BOOL", default_value_t = false, action = ArgAction::Set, num_args = 0..=1,
          default_missing_value = "true", require_equals = true, requires = "audit_log_path", help_heading = "Audit")]
    pub audit_log_truncate_enabled: bool,

    /// Maximum size of the audit event in bytes before it is truncated.
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 102_400,
        requires = "audit_log_path",
        help_heading = "Audit"
    )]
    pub audit_log_truncate_max_event_size: usize,

    /// API group and version used for serializing audit events written to log.
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
            config.audit_log = None;
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
