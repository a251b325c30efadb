//! Cache of webhook decisions. Bounded: many requests evict entries of others, but memory stays limited.

use parking_lot::Mutex;
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Capacity.
const MAX_DECISIONS: usize = 8192;

/// Hash of a request, since tokens must not be stored.
pub type Hash = [u8; 32];

/// Hashes a request.
pub fn hash(question: &impl Serialize) -> Hash {
    Sha256::digest(serde_json::to_vec(question).unwrap_or_default()).into()
}

pub struct WebhookCache<T> {
    answers: Mutex<HashMap<Hash, (T, Instant)>>,
}

impl<T> Default for WebhookCache<T> {
    fn default() -> Self {
        Self { answers: Mutex::default() }
    }
}

impl<T: Clone> WebhookCache<T> {
    pub fn get(&self, key: &Hash) -> Option<T> {
        let answers = self.answers.lock();
        answers.get(key).filter(|(_, until)| Instant::now() < *until).map(|(answer, _)| answer.clone())
    }

    pub fn put(&self, key: Hash, answer: T, ttl: Duration) {
        if ttl.is_zero() {
            return;
        }
        let now = Instant::now();
        let mut answers = self.answers.lock();
        if answers.len() >= MAX_DECISIONS {
            answers.retain(|_, (_, until)| now < *until);
        }
        if answers.len() >= MAX_DECISIONS {
            answers.clear();
        }
        answers.insert(key, (answer, now + ttl));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_decisions_expire() {
        let cache = WebhookCache::default();
        let key = hash(&("a", 1));
        cache.put(key, 7, Duration::ZERO);
        assert_eq!(cache.get(&key), None);
        cache.put(key, 7, Duration::from_secs(60));
        assert_eq!(cache.get(&key), Some(7));
        assert_eq!(cache.get(&hash(&("a", 2))), None);
        for n in 0..2 * MAX_DECISIONS {
            cache.put(hash(&n), 0, Duration::from_secs(60));
        }
        assert!(cache.answers.lock().len() <= MAX_DECISIONS);
    }
}
