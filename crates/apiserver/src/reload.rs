//! Reloading of configuration files while the server runs, with metrics.

use base::clock::Clock;
use base::file_changes::FileChanges;
use base::metrics::{IntCounterVec, IntGaugeVec, Metrics, MetricsError};
use base::tasks::TaskGroup;
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::path::PathBuf;

/// `apiserver_{authentication,authorization}_config_controller_*`.
#[derive(Clone)]
pub struct ReloadMetrics {
    reloads: IntCounterVec,
    last_reload: IntGaugeVec,
    last_config: IntGaugeVec,
    server: String,
    clock: Clock,
}

impl ReloadMetrics {
    /// Metrics of `authentication` or `authorization` configuration.
    pub fn new(metrics: &Metrics, of: &str, clock: &Clock) -> Result<Self, MetricsError> {
        const LABELS: [&str; 2] = ["status", "apiserver_id_hash"];
        let name = |name: &str| format!("apiserver_{of}_config_controller_{name}");
        Ok(Self {
            reloads: metrics.counters(
                &name("automatic_reloads_total"),
                &format!("Total number of automatic reloads of {of} configuration split by status and apiserver identity."),
                &LABELS,
            )?,
            last_reload: metrics.gauges(
                &name("automatic_reload_last_timestamp_seconds"),
                &format!("Timestamp of the last automatic reload of {of} configuration split by status and apiserver identity."),
                &LABELS,
            )?,
            last_config: metrics.gauges(
                &name("last_config_info"),
                &format!("Information about the last applied {of} configuration with hash as label, split by apiserver identity."),
                &["apiserver_id_hash", "hash"],
            )?,
            server: server_id_hash(),
            clock: clock.clone(),
        })
    }

    /// Records the configuration in use.
    fn applied(&self, hash: &str) {
        self.last_config.reset();
        self.last_config.with_label_values(&[self.server.as_str(), hash]).set(1);
    }

    fn reloaded(&self, hash: Option<&str>) {
        let labels = [if hash.is_some() { "success" } else { "failure" }, self.server.as_str()];
        self.reloads.with_label_values(&labels).inc();
        self.last_reload.with_label_values(&labels).set(self.clock.now().as_second());
        if let Some(hash) = hash {
            self.applied(hash);
        }
    }
}

/// `sha256:` and the hexadecimal digest.
pub fn hash(data: &[u8]) -> String {
    let mut text = "sha256:".to_owned();
    for byte in Sha256::digest(data) {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Hash of this server's identity.
pub fn server_id_hash() -> String {
    hash(server_id().as_bytes())
}

/// This server's identity, derived from the host name as in Kubernetes.
#[must_use]
pub fn server_id() -> String {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let digest = Sha256::digest(name.trim());
    let mut id = "apiserver-".to_owned();
    let (mut bits, mut count) = (0_u32, 0);
    for byte in &digest[..16] {
        bits = bits << 8 | u32::from(*byte);
        count += 8;
        while count >= 5 {
            count -= 5;
            id.push(char::from(ALPHABET[(bits >> count & 31) as usize]));
        }
    }
    id.push(char::from(ALPHABET[(bits << (5 - count) & 31) as usize]));
    id
}

/// Calls `reload` whenever the content of a file changes, until the task group stops.
pub fn follow(
    path: PathBuf,
    what: &'static str,
    metrics: ReloadMetrics,
    tasks: &TaskGroup,
    reload: impl Fn() -> Result<(), String> + Send + 'static,
) {
    let content = |path: &PathBuf| std::fs::read(path).map(|data| hash(&data)).unwrap_or_default();
    let mut last = content(&path);
    metrics.applied(&last);
    let group = tasks.clone();
    tasks.spawn(async move {
        let mut changes = match FileChanges::of(&path) {
            Ok(changes) => changes,
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "failed to watch {what} for changes");
                return;
            }
        };
        loop {
            let now = content(&path);
            if now != last {
                last = now;
                match reload() {
                    Ok(()) => {
                        metrics.reloaded(Some(&last));
                        tracing::info!(path = %path.display(), "reloaded {what}");
                    }
                    Err(error) => {
                        metrics.reloaded(None);
                        tracing::error!(error, "failed to reload {what}, keeping the previous one");
                    }
                }
            }
            let Some(changed) = group.until_stopped(changes.changed()).await else { return };
            if let Err(error) = changed {
                tracing::warn!(%error, path = %path.display(), "lost the watch of {what}, changes need a restart");
                return;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_is_prefixed_with_algorithm() {
        assert_eq!(hash(b""), "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_eq!(server_id_hash(), server_id_hash());
        assert_eq!(server_id_hash().len(), "sha256:".len() + 64);
    }
}
