//! What keeps a node usable: logs are rotated, images nobody uses are removed, pods are evicted before memory or disk
//! runs out, or when they use more of the disk than they may.

mod eviction;
mod image_garbage;
mod local_storage;
mod log_rotation;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

pub use eviction::{Amount, Eviction, Signal, Threshold, ThresholdError, parse_amounts};

use crate::node::Pressure;
use crate::pods::Workers;
use crate::shared::Shared;

/// How often the node is looked at.
const LOOK: Duration = Duration::from_secs(10);
/// Images are looked at every so many times.
const IMAGES_EVERY: u32 = 30;

/// Keeps house until the kubelet stops.
pub async fn run(shared: Arc<Shared>, workers: Arc<Workers>, pressure: Arc<Mutex<Pressure>>) {
    let mut ticks = tokio::time::interval(LOOK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut images = image_garbage::ImageGarbage::default();
    let mut eviction = eviction::Watch::default();
    let mut count: u32 = 0;
    loop {
        ticks.tick().await;
        count = count.wrapping_add(1);
        eviction.look(&shared, &workers, &mut images, &pressure).await;
        local_storage::look(&shared, &workers).await;
        if !workers.pods().is_empty() {
            log_rotation::rotate(&shared).await;
        }
        if count.is_multiple_of(IMAGES_EVERY) {
            images.collect(&shared).await;
        }
    }
}
