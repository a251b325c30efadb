//! A store whose requests for one resource are measured.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use async_trait::async_trait;
use prometheus::{Histogram, IntCounter};
use store::{
    Expect, KeyValue, Layer, Op, Outcome, RangeRequest, RangeResponse, Result, Revision, Store, Txn,
};

use crate::metrics;

/// Operations of the store, as labels.
const OPERATIONS: [&str; 5] = ["get", "list", "create", "update", "delete"];
const GET: usize = 0;
const LIST: usize = 1;

const CREATE: usize = 2;
const UPDATE: usize = 3;
const DELETE: usize = 4;

fn operation(txn: &Txn) -> usize {
    match (&txn.op, txn.expect) {
        (Op::Delete, _) => DELETE,
        (Op::Put { .. }, Expect::Absent) => CREATE,
        (Op::Put { .. }, _) => UPDATE,
    }
}

/// Metrics of one operation.
struct OperationMetrics {
    seconds: Histogram,
    requests: IntCounter,
    errors: IntCounter,
}

/// The store of one resource.
pub struct MeasuredStore {
    inner: Arc<dyn Store>,
    group: String,
    resource: String,
    /// Resolved at the first request of an operation.
    operations: [OnceLock<Option<OperationMetrics>>; 5],
}

impl MeasuredStore {
    pub fn new(inner: Arc<dyn Store>, group: &str, resource: &str) -> Self {
        let (group, resource) = (group.to_owned(), resource.to_owned());
        Self { inner, group, resource, operations: Default::default() }
    }

    fn record(&self, operation: usize, begin: Instant, is_ok: bool) {
        let (Some(cell), Some(name)) = (self.operations.get(operation), OPERATIONS.get(operation)) else {
            return;
        };
        let resolve = || {
            let process = metrics::process()?;
            let [group, resource] = metrics::resource_labels(&self.group, &self.resource);
            let labels = [*name, group, resource];
            Some(OperationMetrics {
                seconds: process.store_seconds.with_label_values(&labels),
                requests: process.store_requests.with_label_values(&labels),
                errors: process.store_errors.with_label_values(&labels),
            })
        };
        let Some(metrics) = cell.get_or_init(resolve) else { return };
        metrics.requests.inc();
        metrics.seconds.observe(begin.elapsed().as_secs_f64());
        if !is_ok {
            metrics.errors.inc();
        }
    }
}

#[async_trait]
impl Layer for MeasuredStore {
    fn below(&self) -> &dyn Store {
        &*self.inner
    }

    async fn get(&self, key: &str) -> Result<(Option<KeyValue>, Revision)> {
        let begin = Instant::now();
        let outcome = self.inner.get(key).await;
        self.record(GET, begin, outcome.is_ok());
        outcome
    }

    async fn range(&self, request: RangeRequest) -> Result<RangeResponse> {
        let begin = Instant::now();
        let outcome = self.inner.range(request).await;
        self.record(LIST, begin, outcome.is_ok());
        outcome
    }

    async fn txn(&self, txn: Txn) -> Result<Outcome> {
        let (operation, begin) = (operation(&txn), Instant::now());
        let outcome = self.inner.txn(txn).await;
        self.record(operation, begin, outcome.is_ok());
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::{Embedded, EmbeddedOptions};

    #[tokio::test]
    async fn requests_are_counted_by_operation() {
        let directory = tempfile::tempdir().expect("a directory");
        let inner = Embedded::open(EmbeddedOptions::new(directory.path().join("store"))).expect("a store");
        let store = MeasuredStore::new(Arc::new(inner), "measured.example.com", "things");
        let put = || Op::Put { value: "1".into(), lease: None };
        let txn = |expect, op| Txn { key: "/registry/things/a".into(), expect, op };
        Store::txn(&store, txn(Expect::Absent, put())).await.expect("created");
        Store::txn(&store, txn(Expect::Any, put())).await.expect("updated");
        Store::txn(&store, txn(Expect::Any, Op::Delete)).await.expect("deleted");
        Store::get(&store, "/registry/things/a").await.expect("read");
        let metrics = metrics::process().expect("metrics");
        for operation in ["create", "update", "delete", "get"] {
            let labels = [operation, "measured.example.com", "things"];
            assert_eq!(metrics.store_requests.with_label_values(&labels).get(), 1, "{operation}");
            assert_eq!(metrics.store_errors.with_label_values(&labels).get(), 0, "{operation}");
            assert_eq!(metrics.store_seconds.with_label_values(&labels).get_sample_count(), 1, "{operation}");
        }
        Store::close(&store).await;
    }
}
