//! Image garbage collection: removes unused images when their disk fills up.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::housekeeping_config::ImageCollection;
use crate::node::file_system;
use crate::shared::Shared;

/// Tracks the time of last use of images.
#[derive(Default)]
pub struct ImageGarbage {
    seen: HashMap<String, ImageUse>,
}

#[derive(Clone, Copy)]
struct ImageUse {
    first: Timestamp,
    used: Timestamp,
}

/// An image with its garbage collection criteria.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Candidate {
    id: String,
    size: i64,
    used: Timestamp,
    first: Timestamp,
}

impl ImageGarbage {
    /// Removes images that exceed the maximum age, or as many as needed on a full disk.
    pub async fn collect(&mut self, shared: &Shared) {
        let settings = shared.config.housekeeping.images;
        let Some(candidates) = self.unused(shared).await else { return };
        let (total, available) = file_system(&shared.config.directory);
        let now = shared.clock.now();
        remove(shared, chosen(candidates, &settings, total, available, now), settings.max_age).await;
    }

    /// Removes all unused images.
    pub async fn remove_unused(&mut self, shared: &Shared) {
        let Some(candidates) = self.unused(shared).await else { return };
        remove(shared, candidates, None).await;
    }

    /// Images that no container uses; `None` if the runtime does not respond.
    async fn unused(&mut self, shared: &Shared) -> Option<Vec<Candidate>> {
        let (images, containers) =
            (shared.engine.images().await.ok()?, shared.engine.all_containers().await.ok()?);
        let now = shared.clock.now();
        let mut in_use = HashSet::new();
        for container in containers {
            in_use.insert(container.image_ref);
            in_use.insert(container.image_id);
            in_use.extend(container.image.map(|image| image.image));
        }
        let mut candidates = Vec::new();
        let mut present = HashSet::new();
        for image in images {
            present.insert(image.id.clone());
            let seen = self.seen.entry(image.id.clone()).or_insert(ImageUse { first: now, used: now });
            let names = image.repo_tags.iter().chain(&image.repo_digests);
            if image.pinned
                || in_use.contains(&image.id)
                || names.into_iter().any(|name| in_use.contains(name))
            {
                seen.used = now;
                continue;
            }
            let size = i64::try_from(image.size).unwrap_or(i64::MAX);
            candidates.push(Candidate { id: image.id, size, used: seen.used, first: seen.first });
        }
        self.seen.retain(|id, _| present.contains(id));
        Some(candidates)
    }
}

/// Removes images; those that were not used for `max_age` are removed for their age, others for space.
async fn remove(shared: &Shared, images: Vec<Candidate>, max_age: Option<Duration>) {
    let now = shared.clock.now();
    for image in images {
        match shared.engine.remove_image(&image.id).await {
            Ok(()) => {
                tracing::info!(image = image.id, bytes = image.size, "removed unused image");
                shared.metrics.pods.image_collected(is_stale(&image, max_age, now));
            }
            Err(error) => tracing::warn!(image = image.id, %error, "failed to remove unused image"),
        }
    }
}

fn span(limit: Duration) -> SignedDuration {
    SignedDuration::try_from(limit).unwrap_or(SignedDuration::MAX)
}

/// Reports whether an image was not used for the maximum age.
fn is_stale(image: &Candidate, max_age: Option<Duration>, now: Timestamp) -> bool {
    max_age.is_some_and(|most| now.duration_since(image.used) >= span(most))
}

/// Images to remove: those over the maximum age, then least recently used ones until enough space is free.
fn chosen(
    mut candidates: Vec<Candidate>,
    settings: &ImageCollection,
    total: i64,
    available: i64,
    now: Timestamp,
) -> Vec<Candidate> {
    let used = total.saturating_sub(available);
    let full = total > 0 && used.saturating_mul(100) / total >= settings.begin;
    let mut to_free = if full { used.saturating_sub(total / 100 * settings.until) } else { 0 };
    candidates.sort_by_key(|image| (image.used, image.first));
    candidates.retain(|image| {
        let stale = is_stale(image, settings.max_age, now);
        let old_enough = now.duration_since(image.first) >= span(settings.min_age);
        let goes = stale || (old_enough && to_free > 0);
        if goes {
            to_free = to_free.saturating_sub(image.size);
        }
        goes
    });
    candidates
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_gc_removes_least_recently_used_when_needed() {
        let at = |seconds| Timestamp::from_second(seconds).expect("a time");
        let image =
            |id: &str, size, used| Candidate { id: id.to_owned(), size, used: at(used), first: at(0) };
        let all = || vec![image("new", 10, 900), image("old", 4, 100), image("mid", 4, 500)];
        let ids = |list: Vec<Candidate>| list.into_iter().map(|image| image.id).collect::<Vec<_>>();
        let settings = crate::housekeeping_config::HousekeepingConfig::default().images;
        assert!(chosen(all(), &settings, 100, 50, at(1000)).is_empty());
        assert_eq!(ids(chosen(all(), &settings, 100, 13, at(1000))), ["old", "mid"]);
        assert!(chosen(all(), &settings, 100, 13, at(60)).is_empty(), "all are too young");
        let impatient = ImageCollection { max_age: Some(std::time::Duration::from_secs(600)), ..settings };
        assert_eq!(ids(chosen(all(), &impatient, 100, 50, at(1000))), ["old"]);
    }
}
