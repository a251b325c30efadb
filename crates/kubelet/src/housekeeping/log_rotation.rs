//! Rotates large container logs and removes the oldest rotated files.

use std::path::{Path, PathBuf};

use crate::configure::labels;
use crate::shared::Shared;

/// Rotates the logs of all running containers that exceed the size limit.
pub async fn rotate(shared: &Shared) {
    let containers = match shared.engine.running_containers().await {
        Ok(containers) => containers,
        Err(error) => return tracing::debug!(%error, "failed to list containers for log rotation"),
    };
    for container in containers {
        let label = |name: &str| container.labels.get(name).cloned().unwrap_or_default();
        let restarts = container.annotations.get(labels::RESTART_COUNT).map_or("0", String::as_str);
        let directory = format!(
            "{}_{}_{}/{}",
            label(labels::POD_NAMESPACE),
            label(labels::POD_NAME),
            label(labels::POD_UID),
            label(labels::CONTAINER_NAME)
        );
        let path = shared.settings.logs.join(directory).join(format!("{restarts}.log"));
        let large =
            std::fs::metadata(&path).is_ok_and(|meta| meta.len() > shared.config.housekeeping.logs.max_size);
        if !large {
            continue;
        }
        let stamp = shared.clock.now().strftime("%Y%m%d-%H%M%S").to_string();
        let aside = PathBuf::from(format!("{}.{stamp}", path.display()));
        if let Err(error) = std::fs::rename(&path, &aside) {
            tracing::warn!(%error, path = %path.display(), "failed to rotate log");
            continue;
        }
        if let Err(error) = shared.engine.reopen_log(&container.id).await {
            tracing::warn!(%error, path = %path.display(), "failed to reopen log");
            let _ = std::fs::rename(&aside, &path);
            continue;
        }
        for old in surplus(&path, shared.config.housekeeping.logs.max_files) {
            let _ = std::fs::remove_file(old);
        }
    }
}

/// Rotated files beyond the limit.
fn surplus(path: &Path, most: usize) -> Vec<PathBuf> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str()))
    else {
        return Vec::new();
    };
    let prefix = format!("{name}.");
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let mut aside: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with(&prefix)))
        .map(|entry| entry.path())
        .collect();
    // File names end in a timestamp, so that they sort oldest first.
    aside.sort();
    let keep = most.saturating_sub(1);
    aside.truncate(aside.len().saturating_sub(keep));
    aside
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotated_logs_oldest_are_surplus() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("0.log");
        for stamp in ["1", "2", "3", "4", "5", "6"] {
            std::fs::write(directory.path().join(format!("0.log.{stamp}")), "").expect("a file");
        }
        std::fs::write(&path, "").expect("a file");
        std::fs::write(directory.path().join("1.log"), "").expect("a file");
        let names: Vec<_> = surplus(&path, 5)
            .into_iter()
            .filter_map(|path| path.extension()?.to_str().map(str::to_owned))
            .collect();
        assert_eq!(names, ["1", "2"]);
    }
}
