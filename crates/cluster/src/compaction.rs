//! Periodic compaction of stores that keep their history forever.

use base::tasks::TaskGroup;
use std::sync::Arc;
use std::time::Duration;
use store::Store;

/// As in Kubernetes: history is kept for five to ten minutes.
pub const INTERVAL: Duration = Duration::from_secs(5 * 60);

/// Compacts in each round up to the revision of the previous round. Several servers may compact one store
/// concurrently.
pub fn compact(store: Arc<dyn Store>, every: Duration, tasks: &TaskGroup) {
    tasks.supervise_until_stopped("compaction", move || {
        let store = Arc::clone(&store);
        async move {
            let mut history = None;
            loop {
                tokio::time::sleep(every).await;
                if let Some(revision) = history.replace(store.revision())
                    && let Err(error) = store.compact(revision).await
                {
                    tracing::warn!(%error, revision, "failed to compact the store, retrying");
                }
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::{Embedded, EmbeddedOptions, Expect, Op, Txn};

    #[tokio::test]
    async fn compaction_removes_old_and_keeps_new_revisions() -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        let store: Arc<dyn Store> = Arc::new(Embedded::open(EmbeddedOptions::new(dir.path()))?);
        let op = Op::Put { value: "1".into(), lease: None };
        store.txn(Txn { key: "/a".into(), expect: Expect::Absent, op }).await?;
        let old = store.revision();
        let tasks = TaskGroup::new();
        compact(Arc::clone(&store), Duration::from_millis(20), &tasks);
        let compacted = async {
            while store.compacted().await? < old {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(Duration::from_secs(20), compacted).await??;
        assert!(store.get("/a").await?.0.is_some());
        tasks.stop();
        tasks.drain(Duration::from_secs(5)).await?;
        store.close().await;
        Ok(())
    }
}
