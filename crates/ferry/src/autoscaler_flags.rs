//! Flags of kube-controller-manager about the horizontal pod autoscaler, of all commands that run it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use cluster::ControllerSettings;

use crate::flags::parse_duration;

#[derive(Args, Debug)]
pub struct AutoscalerArgs {
    /// The period for syncing the number of pods in horizontal pod autoscaler.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = parse_duration, help_heading = "Controllers")]
    pub horizontal_pod_autoscaler_sync_period: Duration,

    /// The minimum change (from 1.0) in the desired-to-actual metrics ratio for the horizontal pod autoscaler to
    /// consider scaling.
    #[arg(long, value_name = "RATIO", default_value_t = 0.1, help_heading = "Controllers")]
    pub horizontal_pod_autoscaler_tolerance: f64,

    /// The period after pod start when CPU samples might be skipped.
    #[arg(long, value_name = "DURATION", default_value = "5m0s", value_parser = parse_duration, help_heading = "Controllers")]
    pub horizontal_pod_autoscaler_cpu_initialization_period: Duration,

    /// The period after pod start during which readiness changes will be treated as initial readiness.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_duration, help_heading = "Controllers")]
    pub horizontal_pod_autoscaler_initial_readiness_delay: Duration,

    /// The period for which autoscaler will look backwards and not scale down below any recommendation it made during
    /// that period.
    #[arg(long, value_name = "DURATION", default_value = "5m0s", value_parser = parse_duration, help_heading = "Controllers")]
    pub horizontal_pod_autoscaler_downscale_stabilization: Duration,
}

impl AutoscalerArgs {
    /// Sets the autoscaler's part of the settings.
    pub fn apply(self, settings: &mut ControllerSettings) -> Result<()> {
        let signed = |duration: Duration| duration.try_into().context("a duration is too long");
        let autoscaler = &mut settings.autoscaler;
        ensure!(
            !self.horizontal_pod_autoscaler_sync_period.is_zero(),
            "--horizontal-pod-autoscaler-sync-period is zero"
        );
        autoscaler.period = self.horizontal_pod_autoscaler_sync_period;
        ensure!(
            self.horizontal_pod_autoscaler_tolerance >= 0.0,
            "--horizontal-pod-autoscaler-tolerance is negative"
        );
        autoscaler.tolerance = self.horizontal_pod_autoscaler_tolerance;
        autoscaler.cpu_initialization = signed(self.horizontal_pod_autoscaler_cpu_initialization_period)?;
        autoscaler.readiness_delay = signed(self.horizontal_pod_autoscaler_initial_readiness_delay)?;
        autoscaler.downscale_window = signed(self.horizontal_pod_autoscaler_downscale_stabilization)?;
        Ok(())
    }
}
