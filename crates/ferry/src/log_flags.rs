//! Logging flags of every command.

use std::time::Duration;

use anyhow::{Result, ensure};
use base::logging::{Format, LogSettings, VModule};
use clap::{Args, ValueEnum};

use crate::flags::parse_duration;

#[derive(Args, Debug)]
pub struct LogArgs {
    /// Number for the log level verbosity: 0 essential messages (default of `up`), 1 a line per request (default of
    /// other commands), 2 details, 4 all of Ferry, 6 everything.
    #[arg(short = 'v', long = "v", value_name = "N", global = true)]
    pub verbosity: Option<u32>,

    /// Format of log lines (also `--logging-format`).
    #[arg(long, value_name = "FORMAT", global = true, default_value = "text", alias = "logging-format")]
    pub log_format: LogFormat,

    /// Comma-separated list of pattern=N settings for file-filtered logging (only works for text log format).
    #[arg(
        long,
        value_name = "PATTERN=N[,...]",
        global = true,
        default_value = "",
        hide_default_value = true
    )]
    pub vmodule: VModule,

    /// Maximum time between log flushes; lines are always written within 20 ms.
    #[arg(long, value_name = "DURATION", global = true, default_value = "5s", value_parser = parse_duration)]
    pub log_flush_frequency: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

impl From<LogFormat> for Format {
    fn from(format: LogFormat) -> Self {
        match format {
            LogFormat::Text => Self::Text,
            LogFormat::Json => Self::Json,
        }
    }
}

impl LogArgs {
    /// Logging settings; `usual` is the verbosity without `-v`.
    pub fn settings(self, usual: u32) -> Result<LogSettings> {
        ensure!(
            self.vmodule.is_empty() || self.log_format == LogFormat::Text,
            "--vmodule: only supported for text log format"
        );
        ensure!(!self.log_flush_frequency.is_zero(), "--log-flush-frequency: must be greater than zero");
        let verbosity = self.verbosity.unwrap_or(usual);
        Ok(LogSettings { verbosity, format: self.log_format.into(), modules: self.vmodule })
    }
}
