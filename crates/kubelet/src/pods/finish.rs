//! One sync of a terminating pod: stops containers, publishes the final status, cleans up once it is deleted.

use std::sync::Arc;

use client::{DeleteOptions, Preconditions};
use objects::core::v1::Pod;

use super::kill;
use super::worker::{Order, Round, Worker};
use crate::csi;
use crate::engine::EngineError;
use crate::lifecycle::ObservedPod;
use crate::volumes;

impl Worker {
    pub(super) async fn finish(
        &mut self,
        order: &Order,
        observed: ObservedPod,
    ) -> Result<Round, EngineError> {
        let pod = &order.pod;
        self.probes.stop_liveness();
        if let Some((reason, message, _)) = &order.evicted {
            self.verdict.get_or_insert_with(|| (reason.clone(), message.clone()));
        }
        let mut observed = observed;
        if !observed.is_quiet() {
            if !order.gone {
                self.publish(pod, &observed, true).await;
            }
            if !self.kill_unless_shortened(pod, &observed, order).await {
                // The grace period was shortened: restart with the new one.
                return Ok(Round::Wait(Some(self.shared.clock.now())));
            }
            observed = self.observe(pod).await?;
            if !observed.is_quiet() {
                return Ok(Round::Retry);
            }
        }
        if !self.release_resources().await {
            return Ok(Round::Retry);
        }
        if !order.gone {
            self.publish(pod, &observed, true).await;
        }
        self.shared.followed.forget(&self.uid);
        let deleted = pod.metadata.deletion_timestamp.is_some();
        if !order.gone && !deleted {
            return Ok(Round::Wait(None));
        }
        // Subpath mounts keep the volume busy, so they are unmounted first.
        if let Err(error) = volumes::release_parts(&self.directories) {
            tracing::warn!(pod = %self.uid, %error, "failed to unmount subpaths of pod volumes");
            return Ok(Round::Retry);
        }
        let kubelet = &self.shared.config.directory;
        if let Err(error) = csi::unpublish_all(&self.shared, &self.directories.root).await {
            tracing::warn!(pod = %self.uid, %error, "failed to unpublish pod volumes");
            return Ok(Round::Retry);
        }
        // Files are removed before the API object, so that its deletion implies their removal.
        let (kubelet, directories) = (kubelet.clone(), self.directories.clone());
        let removed = tokio::task::spawn_blocking(move || volumes::tear_down(&kubelet, &directories)).await;
        if let Ok(Err(error)) = removed {
            tracing::warn!(pod = %self.uid, %error, "failed to remove pod directory");
            return Ok(Round::Retry);
        }
        if !order.gone && !self.confirm_deletion(pod).await {
            return Ok(Round::Retry);
        }
        self.remove_from_runtime(&observed).await?;
        let (shared, ended, directories) =
            (Arc::clone(&self.shared), Arc::clone(pod), self.directories.clone());
        // The directory is removed last: after a crash it identifies the remains.
        let removed = tokio::task::spawn_blocking(move || {
            shared.cgroups.remove(&ended)?;
            directories.remove()
        });
        if let Ok(Err(error)) = removed.await {
            tracing::warn!(pod = %self.uid, %error, "failed to remove pod cgroup");
            return Ok(Round::Retry);
        }
        let logs = self.log_directory(pod);
        if !pod.metadata.name.as_deref().unwrap_or("").is_empty() {
            let _ = tokio::fs::remove_dir_all(logs).await;
        }
        self.shared.users.forget(&self.uid);
        self.shared.tokens.forget(&self.uid);
        self.shared.volumes.forget(&self.uid);
        self.shared.probes.forget(&self.uid);
        tracing::info!(pod = %self.uid, "pod removed");
        Ok(Round::Done)
    }

    async fn remove_from_runtime(&self, observed: &ObservedPod) -> Result<(), EngineError> {
        for container in &observed.containers {
            self.shared.engine.remove_container(&container.id).await?;
        }
        for sandbox in &observed.sandboxes {
            self.shared.engine.remove_sandbox(&sandbox.id).await?;
        }
        Ok(())
    }

    /// Stops all containers; false if the grace period was shortened meanwhile.
    async fn kill_unless_shortened(&mut self, pod: &Arc<Pod>, observed: &ObservedPod, order: &Order) -> bool {
        let grace = order.grace();
        let mut orders = self.orders.clone();
        let hurried = async move {
            while orders.wait_for(|order| order.grace() < grace).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let (shared, progress) = (Arc::clone(&self.shared), Arc::clone(&self.kill_progress));
        let (ip, news) = (self.pod_ip(pod), Arc::clone(&self.news));
        let kill = kill::kill_all_containers(&shared, &progress, pod, observed, &ip, grace);
        tokio::pin!(kill, hurried);
        loop {
            tokio::select! {
                () = &mut kill => return true,
                () = &mut hurried => return false,
                () = news.notified(), if !order.gone => {}
            }
            tokio::select! {
                () = &mut kill => return true,
                () = self.publish_terminating(pod) => {}
            }
        }
    }

    /// Publishes the status while containers end: readiness follows its probes until then.
    async fn publish_terminating(&mut self, pod: &Arc<Pod>) {
        match self.observe(pod).await {
            Ok(observed) => self.publish(pod, &observed, true).await,
            Err(error) => tracing::debug!(pod = %self.uid, %error, "failed to observe a terminating pod"),
        }
    }

    /// Deletes the API object once nothing of the pod is left on the node.
    async fn confirm_deletion(&self, pod: &Pod) -> bool {
        let meta = &pod.metadata;
        let options = DeleteOptions {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions { uid: meta.uid.clone(), resource_version: None }),
            ..DeleteOptions::default()
        };
        let (namespace, name) = (meta.namespace.as_deref().unwrap_or(""), meta.name.as_deref().unwrap_or(""));
        match self.shared.client.delete::<Pod>(namespace, name, &options).await {
            Ok(()) => true,
            Err(error) if error.is_not_found() || error.is_conflict() => true,
            Err(error) => {
                tracing::warn!(pod = %self.uid, %error, "failed to confirm pod deletion");
                false
            }
        }
    }
}
