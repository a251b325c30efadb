//! Metrics of volumes: their operations and the calls to CSI drivers.

use std::time::Instant;

use base::metrics::{HistogramVec, Metrics, MetricsError};
use tonic::{Code, Status};

const BUCKETS: [f64; 13] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];

/// An operation on a volume, by its name in Kubernetes.
#[derive(Clone, Copy, Debug)]
pub enum VolumeOperation {
    Mount,
    Unmount,
    UnmountDevice,
    UnmapVolume,
    UnmapDevice,
}

impl VolumeOperation {
    fn name(self) -> &'static str {
        match self {
            Self::Mount => "volume_mount",
            Self::Unmount => "volume_unmount",
            Self::UnmountDevice => "unmount_device",
            Self::UnmapVolume => "unmap_volume",
            Self::UnmapDevice => "unmap_device",
        }
    }
}

/// Metrics of operations on volumes.
#[derive(Clone, Debug)]
pub struct StorageMetrics {
    operations: HistogramVec,
    total: HistogramVec,
    pub csi: CsiMetrics,
}

impl StorageMetrics {
    pub(super) fn new(metrics: &Metrics) -> Result<Self, MetricsError> {
        Ok(Self {
            operations: metrics.histograms(
                "storage_operation_duration_seconds",
                "Storage operation duration",
                &["volume_plugin", "operation_name", "status", "migrated"],
                &BUCKETS,
            )?,
            total: metrics.histograms(
                "volume_operation_total_seconds",
                "Storage operation end to end duration in seconds",
                &["operation_name", "plugin_name"],
                &BUCKETS,
            )?,
            csi: CsiMetrics(metrics.histograms(
                "csi_operations_seconds",
                "Container Storage Interface operation duration with gRPC error code status total",
                &["driver_name", "method_name", "grpc_status_code", "migrated"],
                &BUCKETS,
            )?),
        })
    }

    /// Records an operation that began at `begun`. Volumes of drivers have the plugin `kubernetes.io/csi:DRIVER`.
    pub fn operated(&self, operation: VolumeOperation, plugin: &str, good: bool, begun: Instant) {
        let seconds = begun.elapsed().as_secs_f64();
        let name = operation.name();
        let labels = [plugin, name, if good { "success" } else { "fail-unknown" }, "false"];
        self.operations.with_label_values(&labels).observe(seconds);
        if good {
            self.total.with_label_values(&[name, plugin]).observe(seconds);
        }
    }
}

/// Durations of calls to CSI drivers by method and status.
#[derive(Clone, Debug)]
pub struct CsiMetrics(HistogramVec);

impl CsiMetrics {
    /// Records a call of a method of the node service.
    pub async fn timed<T>(
        &self,
        driver: &str,
        method: &str,
        call: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        let begun = Instant::now();
        let outcome = call.await;
        let code = outcome.as_ref().map_or_else(Status::code, |_| Code::Ok);
        let method = format!("/csi.v1.Node/{method}");
        let durations = self.0.with_label_values(&[driver, &method, &code_name(code), "false"]);
        durations.observe(begun.elapsed().as_secs_f64());
        outcome
    }
}

/// The name of a code in Go's gRPC, which differs from this one's in two places.
fn code_name(code: Code) -> String {
    match code {
        Code::Ok => "OK".to_owned(),
        Code::Cancelled => "Canceled".to_owned(),
        code => format!("{code:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::clock::Clock;

    #[tokio::test]
    async fn calls_and_operations_are_counted_by_driver_and_status() {
        let registry = Metrics::new(&Clock::system()).expect("a registry");
        let metrics = StorageMetrics::new(&registry).expect("new names");
        let call = |outcome: Result<(), Status>| {
            metrics.csi.timed("d.example.com", "NodeStageVolume", async move { outcome })
        };
        assert!(call(Ok(())).await.is_ok());
        assert!(call(Err(Status::cancelled("stopped"))).await.is_err());
        assert!(call(Err(Status::deadline_exceeded("late"))).await.is_err());
        metrics.operated(VolumeOperation::Unmount, "kubernetes.io/csi:d.example.com", false, Instant::now());
        metrics.operated(
            VolumeOperation::UnmapDevice,
            "kubernetes.io/csi:d.example.com",
            true,
            Instant::now(),
        );
        let page = String::from_utf8(registry.encode().expect("a page")).expect("text");
        for code in ["OK", "Canceled", "DeadlineExceeded"] {
            let row = format!(
                "csi_operations_seconds_count{{driver_name=\"d.example.com\",grpc_status_code=\"{code}\",\
                 method_name=\"/csi.v1.Node/NodeStageVolume\",migrated=\"false\"}} 1\n"
            );
            assert!(page.contains(&row), "{row}: {page}");
        }
        let plugin = "volume_plugin=\"kubernetes.io/csi:d.example.com\"";
        for row in [
            format!("operation_name=\"volume_unmount\",status=\"fail-unknown\",{plugin}}} 1\n"),
            format!("operation_name=\"unmap_device\",status=\"success\",{plugin}}} 1\n"),
        ] {
            let row = format!("storage_operation_duration_seconds_count{{migrated=\"false\",{row}");
            assert!(page.contains(&row), "{row}: {page}");
        }
        assert!(
            !page.contains("volume_operation_total_seconds_count{operation_name=\"volume_unmount\""),
            "{page}"
        );
    }
}
