//! Numbers of endpoints and slices of each service, for the gauges of the controllers that write slices.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use base::metrics::ComputedGauges;
use parking_lot::Mutex;
use runtime::{Context, Key};

/// Numbers of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SliceFigures {
    pub endpoints: usize,
    pub slices: usize,
    /// Slices with perfect allocation.
    pub desired: usize,
    pub traffic_distribution: Option<String>,
}

/// Numbers of all services.
#[derive(Clone, Default)]
pub struct SliceFiguresByService(Arc<Mutex<HashMap<Key, SliceFigures>>>);

impl SliceFiguresByService {
    pub fn set(&self, key: &Key, figures: SliceFigures) {
        self.0.lock().insert(key.clone(), figures);
    }

    pub fn forget(&self, key: &Key) {
        self.0.lock().remove(key);
    }

    /// Shows the sums in `gauges`: endpoints, slices and desired slices.
    pub fn show(&self, ctx: &Context, gauges: [&ComputedGauges; 3]) {
        let numbers: [fn(&SliceFigures) -> usize; 3] =
            [|figures| figures.endpoints, |figures| figures.slices, |figures| figures.desired];
        for (gauge, number) in gauges.into_iter().zip(numbers) {
            let all = self.clone();
            gauge.compute(&ctx.tasks, move |rows| {
                let sum: usize = all.0.lock().values().map(number).sum();
                rows.with_label_values::<&str>(&[]).set(sum as f64);
            });
        }
    }

    /// Shows the number of services of each traffic distribution.
    pub fn show_distributions(&self, ctx: &Context, gauge: &ComputedGauges) {
        let all = self.clone();
        gauge.compute(&ctx.tasks, move |rows| {
            let mut counts: BTreeMap<String, usize> = BTreeMap::new();
            for name in all.0.lock().values().filter_map(|figures| figures.traffic_distribution.clone()) {
                let count = counts.entry(name).or_default();
                *count = count.saturating_add(1);
            }
            for (name, count) in counts {
                rows.with_label_values(&[name]).set(count as f64);
            }
        });
    }
}
