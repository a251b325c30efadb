//! Images nobody uses, removed when the disk they are on fills.

use std::collections::{HashMap, HashSet};

use jiff::{SignedDuration, Timestamp};

use crate::node::file_system;
use crate::shared::Shared;

/// Begin when more than this share of the disk is used, in percent, and go on until this much.
const BEGIN: i64 = 85;
const UNTIL: i64 = 80;
/// Images younger than this stay.
const MIN_AGE: SignedDuration = SignedDuration::from_mins(2);

/// Remembers when images were last seen in use.
#[derive(Default)]
pub struct ImageGarbage {
    seen: HashMap<String, Seen>,
}

#[derive(Clone, Copy)]
struct Seen {
    first: Timestamp,
    used: Timestamp,
}

/// An image and what decides about it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Candidate {
    id: String,
    size: i64,
    used: Timestamp,
    first: Timestamp,
}

impl ImageGarbage {
    pub async fn collect(&mut self, shared: &Shared) {
        let (Ok(images), Ok(containers)) =
            (shared.engine.images().await, shared.engine.all_containers().await)
        else {
            return;
        };
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
            let seen = self.seen.entry(image.id.clone()).or_insert(Seen { first: now, used: now });
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
        let (total, available) = file_system(&shared.config.directory);
        for image in chosen(candidates, total, available, now) {
            match shared.engine.remove_image(&image.id).await {
                Ok(()) => tracing::info!(image = image.id, bytes = image.size, "removed an unused image"),
                Err(error) => tracing::warn!(image = image.id, %error, "an unused image is not removed"),
            }
        }
    }
}

/// The images to remove: those unused for longest, until there is room.
fn chosen(mut candidates: Vec<Candidate>, total: i64, available: i64, now: Timestamp) -> Vec<Candidate> {
    let used = total.saturating_sub(available);
    if total <= 0 || used.saturating_mul(100) / total < BEGIN {
        return Vec::new();
    }
    let mut to_free = used.saturating_sub(total / 100 * UNTIL);
    candidates.sort_by_key(|image| (image.used, image.first));
    candidates
        .into_iter()
        .filter(|image| now.duration_since(image.first) >= MIN_AGE)
        .take_while(|image| {
            let more = to_free > 0;
            to_free = to_free.saturating_sub(image.size);
            more
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_unused_go_first_and_only_when_needed() {
        let at = |seconds| Timestamp::from_second(seconds).expect("a time");
        let image =
            |id: &str, size, used| Candidate { id: id.to_owned(), size, used: at(used), first: at(0) };
        let all = || vec![image("new", 10, 900), image("old", 4, 100), image("mid", 4, 500)];
        let ids = |list: Vec<Candidate>| list.into_iter().map(|image| image.id).collect::<Vec<_>>();
        assert!(chosen(all(), 100, 50, at(1000)).is_empty());
        assert_eq!(ids(chosen(all(), 100, 13, at(1000))), ["old", "mid"]);
        assert!(chosen(all(), 100, 13, at(60)).is_empty(), "all are too young");
    }
}
