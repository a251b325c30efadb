//! History of a store that keeps it for ever is dropped when it is older than anybody may ask for.

use base::tasks::TaskGroup;
use std::sync::Arc;
use std::time::Duration;
use store::Store;

/// As Kubernetes: what happened is kept for five to ten minutes.
pub const EVERY: Duration = Duration::from_secs(5 * 60);

/// Drops in each round what was history in the one before. Several servers of one store may do so side by side.
pub fn compact(store: Arc<dyn Store>, every: Duration, tasks: &TaskGroup) {
    let group = tasks.clone();
    tasks.supervise("compaction", move || {
        let (store, stopping) = (Arc::clone(&store), group.stopping());
        async move {
            let rounds = async {
                let mut history = None;
                loop {
                    tokio::time::sleep(every).await;
                    if let Some(revision) = history.replace(store.revision())
                        && let Err(error) = store.compact(revision).await
                    {
                        tracing::warn!(%error, revision, "the store's history could not be dropped; trying again");
                    }
                }
            };
            tokio::select! {
                () = stopping => {}
                () = rounds => {}
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::{Embedded, EmbeddedOptions, Expect, Op, Txn};

    #[tokio::test]
    async fn history_goes_and_what_is_new_stays() -> anyhow::Result<()> {
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
