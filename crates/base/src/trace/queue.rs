//! The queue between the tasks that end spans and the exporter: bounded in number and bytes, never waiting.

use super::otlp::FinishedSpan;
use crate::metrics::{IntCounter, IntCounterVec, Metrics, MetricsError, Opts};
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::mpsc;

/// Spans in the queue, as in OpenTelemetry's batch processor.
const MAX_SPANS: usize = 2048;
/// Memory of the spans in the queue and in the batch that is sent.
const MAX_BYTES: usize = 4 << 20;

pub(super) struct Queue {
    sender: mpsc::Sender<FinishedSpan>,
    bytes: AtomicUsize,
    pub exported: IntCounter,
    dropped: IntCounterVec,
}

impl Queue {
    pub fn new() -> Result<(Self, mpsc::Receiver<FinishedSpan>), MetricsError> {
        let (sender, receiver) = mpsc::channel(MAX_SPANS);
        let exported = IntCounter::new(
            "ferry_trace_spans_exported_total",
            "Number of spans that the collector accepted.",
        )?;
        let dropped = IntCounterVec::new(
            Opts::new(
                "ferry_trace_spans_dropped_total",
                "Number of sampled spans that did not reach the collector, by reason.",
            ),
            &["reason"],
        )?;
        for reason in ["queue_full", "export_failed", "rejected", "stopped"] {
            dropped.with_label_values(&[reason]);
        }
        Ok((Self { sender, bytes: AtomicUsize::new(0), exported, dropped }, receiver))
    }

    pub fn register(&self, metrics: &Metrics) -> Result<(), MetricsError> {
        metrics.add(self.exported.clone())?;
        metrics.add(self.dropped.clone())?;
        Ok(())
    }

    /// Queues a span, or drops and counts it.
    pub fn push(&self, span: FinishedSpan) {
        let size = span.size();
        if self.bytes.fetch_add(size, Ordering::Relaxed) + size > MAX_BYTES {
            self.bytes.fetch_sub(size, Ordering::Relaxed);
            self.drop_spans("queue_full", 1);
            return;
        }
        if let Err(error) = self.sender.try_send(span) {
            self.bytes.fetch_sub(size, Ordering::Relaxed);
            let reason = match error {
                mpsc::error::TrySendError::Full(_) => "queue_full",
                mpsc::error::TrySendError::Closed(_) => "stopped",
            };
            self.drop_spans(reason, 1);
        }
    }

    /// Releases the memory of spans that were sent or dropped.
    pub fn release(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub fn drop_spans(&self, reason: &str, count: u64) {
        self.dropped.with_label_values(&[reason]).inc_by(count);
    }
}
