//! Volume usage for the summary and metrics.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

use super::directories::plugin_of_claim;
use super::disk_usage::disk_usage;
use super::prepare::{Prepared, PreparedVolume};
use crate::csi::{self, Drivers};
use crate::node;

/// Cache lifetime of measurements: counting files is expensive.
const CACHE_LIFETIME: SignedDuration = SignedDuration::from_secs(20);
/// Timeout of driver stats; later results are ignored.
const DRIVER_TIMEOUT: Duration = Duration::from_secs(10);

/// Method of measuring a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Measure {
    /// Not measured.
    #[default]
    Nothing,
    /// Counts files; capacity is that of the underlying file system.
    Files,
    /// A separate file system.
    FileSystem,
    /// Only the size is known.
    Device,
    /// Reported by its CSI driver.
    Driver { driver: String, handle: String },
}

/// Usage of a volume; unknown values are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    pub available: u64,
    pub capacity: u64,
    pub used: u64,
    pub inodes: u64,
    pub inodes_free: u64,
    pub inodes_used: u64,
}

/// A measured volume of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeStats {
    /// Volume name in the pod.
    pub name: String,
    /// Claim of the volume, in the pod's namespace.
    pub claim: Option<String>,
    pub at: Timestamp,
    pub amounts: Amounts,
}

/// Volumes of pods with their last measurements.
#[derive(Debug, Default)]
pub struct PodVolumes(Mutex<HashMap<String, Entry>>);

#[derive(Debug)]
struct Entry {
    prepared: Arc<Prepared>,
    measured: Option<(Timestamp, Arc<[VolumeStats]>)>,
}

impl PodVolumes {
    /// Sets the volumes of a pod.
    pub fn set(&self, uid: &str, prepared: &Arc<Prepared>) {
        let mut all = self.0.lock();
        let prepared = Arc::clone(prepared);
        match all.get_mut(uid) {
            Some(entry) => entry.prepared = prepared,
            None => drop(all.insert(uid.to_owned(), Entry { prepared, measured: None })),
        }
    }

    /// Prepared volumes of a pod.
    #[must_use]
    pub fn prepared(&self, uid: &str) -> Option<Arc<Prepared>> {
        self.0.lock().get(uid).map(|entry| Arc::clone(&entry.prepared))
    }

    pub fn forget(&self, uid: &str) {
        self.0.lock().remove(uid);
    }

    /// Usage of the volumes of a pod. `record` is called with the plugin of each volume that is measured now, and the begin
    /// of its measurement.
    pub async fn measure(
        &self,
        uid: &str,
        drivers: &Drivers,
        now: Timestamp,
        record: &(dyn Fn(&'static str, Instant) + Sync),
    ) -> Arc<[VolumeStats]> {
        let prepared = match self.0.lock().get(uid) {
            None => return Arc::default(),
            Some(Entry { measured: Some((at, known)), .. }) if now.duration_since(*at) < CACHE_LIFETIME => {
                return Arc::clone(known);
            }
            Some(entry) => Arc::clone(&entry.prepared),
        };
        let all = prepared.iter().map(|(name, volume)| async move {
            let begun = Instant::now();
            let amounts = measure(volume, drivers).await?;
            record(plugin_of_claim(&volume.measure), begun);
            Some(VolumeStats { name: name.clone(), claim: volume.claim.clone(), at: now, amounts })
        });
        let found: Arc<[VolumeStats]> =
            futures_util::future::join_all(all).await.into_iter().flatten().collect();
        if let Some(entry) = self.0.lock().get_mut(uid) {
            entry.measured = Some((now, Arc::clone(&found)));
        }
        found
    }
}

/// `None` if it cannot be measured now.
async fn measure(volume: &PreparedVolume, drivers: &Drivers) -> Option<Amounts> {
    if let Measure::Driver { driver, handle } = &volume.measure {
        let driver = drivers.find(driver)?;
        let requested = csi::usage(&driver, handle, &volume.path);
        return match tokio::time::timeout(DRIVER_TIMEOUT, requested).await {
            Ok(Ok(amounts)) => amounts,
            Ok(Err(error)) => {
                tracing::debug!(%error, handle, "failed to get volume stats from CSI driver");
                None
            }
            Err(_) => None,
        };
    }
    let (path, how) = (volume.path.clone(), volume.measure.clone());
    tokio::task::spawn_blocking(move || measure_now(&path, &how)).await.ok()?.ok()
}

fn measure_now(path: &Path, how: &Measure) -> io::Result<Amounts> {
    let nothing = || io::Error::from(io::ErrorKind::Unsupported);
    match how {
        Measure::Nothing | Measure::Driver { .. } => Err(nothing()),
        Measure::Files => {
            let (used, around) = (disk_usage(path), of_file_system(path));
            Ok(Amounts { used: used.bytes, inodes_used: used.inodes, ..around })
        }
        Measure::FileSystem => Ok(of_file_system(path)),
        Measure::Device => {
            let capacity = File::open(path)?.seek(SeekFrom::End(0))?;
            Ok(Amounts { capacity, ..Amounts::default() })
        }
    }
}

fn of_file_system(path: &Path) -> Amounts {
    let found = node::file_system_of(path);
    let ((capacity, available), (inodes, inodes_free)) = (found.bytes, found.inodes);
    let count = |number: i64| u64::try_from(number).unwrap_or(0);
    Amounts {
        available: count(available),
        capacity: count(capacity),
        used: count(capacity - available),
        inodes: count(inodes),
        inodes_free: count(inodes_free),
        inodes_used: count(inodes - inodes_free),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn volume_stats_are_cached() {
        let directory = tempfile::tempdir().expect("a directory");
        let volume = |measure| PreparedVolume {
            path: directory.path().to_owned(),
            measure,
            claim: Some("c".to_owned()),
            ..PreparedVolume::default()
        };
        let prepared = Arc::new(Prepared::from([
            ("files".to_owned(), volume(Measure::Files)),
            ("host".to_owned(), volume(Measure::Nothing)),
            ("whole".to_owned(), volume(Measure::FileSystem)),
            ("gone".to_owned(), volume(Measure::Driver { driver: "d".into(), handle: "h".into() })),
        ]));
        let (volumes, drivers) = (PodVolumes::default(), Drivers::default());
        let at = |seconds: i64| Timestamp::from_second(seconds).expect("a time");
        let recorded = Mutex::new(Vec::new());
        let record = |plugin: &'static str, _: Instant| recorded.lock().push(plugin);
        let measure = |seconds: i64| volumes.measure("uid", &drivers, at(seconds), &record);
        assert!(measure(0).await.is_empty());
        volumes.set("uid", &prepared);
        let found = measure(1).await;
        let names: Vec<&str> = found.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["files", "whole"]);
        assert!(found[0].amounts.capacity > 0 && found[0].amounts.inodes_used == 1, "{found:?}");
        std::fs::write(directory.path().join("f"), [0; 10_000]).expect("a file");
        assert_eq!(measure(2).await, found, "cached");
        assert_eq!(recorded.lock().len(), 2, "only measurements are recorded");
        let later = measure(60).await;
        assert_eq!(later[0].amounts.inodes_used, 2);
        assert!(later[0].amounts.used >= 10_000);
        volumes.forget("uid");
        assert!(measure(61).await.is_empty());
    }

    #[test]
    fn block_volume_size_is_measured() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        file.as_file().set_len(4096).expect("a size");
        let amounts = measure_now(file.path(), &Measure::Device).expect("a size");
        assert_eq!(amounts, Amounts { capacity: 4096, ..Amounts::default() });
    }
}
