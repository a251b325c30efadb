//! Node housekeeping: rotates logs, removes unused images, and evicts pods before memory or disk runs out or when
//! they exceed their storage limits.

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

/// Housekeeping interval.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Image garbage collection runs every so many intervals.
const IMAGES_EVERY: u32 = 30;

/// Runs housekeeping until the kubelet stops.
pub async fn run(shared: Arc<Shared>, workers: Arc<Workers>, pressure: Arc<Mutex<Pressure>>) {
    let mut ticks = tokio::time::interval(CHECK_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut images = image_garbage::ImageGarbage::default();
    let mut eviction = eviction::Watch::default();
    let mut count: u32 = 0;
    loop {
        ticks.tick().await;
        count = count.wrapping_add(1);
        eviction.check_once(&shared, &workers, &mut images, &pressure).await;
        local_storage::check_once(&shared, &workers).await;
        if !workers.pods().is_empty() {
            log_rotation::rotate(&shared).await;
        }
        if count.is_multiple_of(IMAGES_EVERY) {
            images.collect(&shared).await;
        }
    }
}
