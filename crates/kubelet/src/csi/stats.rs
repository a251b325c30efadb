//! Usage of a volume, as reported by its driver.

use std::path::Path;

use cri::csi::{NodeGetVolumeStatsRequest, NodeServiceCapabilityRPCType, VolumeUsage, VolumeUsageUnit};

use super::driver::{Driver, within};
use super::{CsiError, call};
use crate::volumes::Amounts;

const STATS: &str = "NodeGetVolumeStats";

/// `None` if the driver does not report usage.
pub async fn usage(driver: &Driver, handle: &str, path: &Path) -> Result<Option<Amounts>, CsiError> {
    if !driver.can(NodeServiceCapabilityRPCType::GetVolumeStats) {
        return Ok(None);
    }
    let request = NodeGetVolumeStatsRequest {
        volume_id: handle.to_owned(),
        volume_path: path.display().to_string(),
        staging_target_path: String::new(),
    };
    let answer = driver.call(STATS, driver.node().node_get_volume_stats(within(request))).await;
    let usage = answer.map_err(call(STATS))?.usage;
    Ok((!usage.is_empty()).then(|| amounts(&usage)))
}

fn amounts(usage: &[VolumeUsage]) -> Amounts {
    let count = |number: i64| u64::try_from(number).unwrap_or(0);
    let mut found = Amounts::default();
    for one in usage {
        let (available, total, used) = (count(one.available), count(one.total), count(one.used));
        match one.unit() {
            VolumeUsageUnit::Bytes => {
                (found.available, found.capacity, found.used) = (available, total, used)
            }
            VolumeUsageUnit::Inodes => {
                (found.inodes_free, found.inodes, found.inodes_used) = (available, total, used);
            }
            VolumeUsageUnit::Unknown => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volume_stats_units() {
        let usage = |unit: VolumeUsageUnit, available, total, used| VolumeUsage {
            available,
            total,
            used,
            unit: unit as i32,
        };
        let reported = [
            usage(VolumeUsageUnit::Bytes, 1, 3, 2),
            usage(VolumeUsageUnit::Inodes, 10, 30, -1),
            usage(VolumeUsageUnit::Unknown, 7, 7, 7),
        ];
        let want =
            Amounts { available: 1, capacity: 3, used: 2, inodes: 30, inodes_free: 10, inodes_used: 0 };
        assert_eq!(amounts(&reported), want);
    }
}
