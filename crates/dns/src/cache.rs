//! Cache of upstream replies: bounded in number, in size and in time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::wire::{HEADER, Query, flags, rcode, rtype, skip_name};

/// Cache key: an upstream question and its flags.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    name: Box<[u8]>,
    kind: u16,
    class: u16,
    dnssec: bool,
    unchecked: bool,
}

impl Key {
    #[must_use]
    pub fn of(query: &Query<'_>) -> Self {
        Self {
            name: query.name().into(),
            kind: query.rtype,
            class: query.class,
            dnssec: query.edns.is_some_and(|edns| edns.dnssec),
            unchecked: query.flags & flags::CHECKING_DISABLED != 0,
        }
    }
}

/// An upstream reply, reusable for the same question.
#[derive(Debug, PartialEq, Eq)]
pub struct CachedReply {
    /// The message without its OPT record.
    message: Vec<u8>,
    question: usize,
    ttls: Vec<usize>,
    ttl: u32,
}

impl CachedReply {
    /// Parses a reply to `query`. `None` if it is malformed or does not match the query.
    #[must_use]
    pub fn read(query: &Query<'_>, mut message: Vec<u8>, max_ttl: u32) -> Option<Self> {
        let question = query.question.len();
        let head = message.get(..HEADER + question)?;
        let field = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        if field(2) & flags::RESPONSE == 0
            || field(4) != 1
            || !head[HEADER..].eq_ignore_ascii_case(query.question)
        {
            return None;
        }
        let code = (field(2) & 0xf) as u8;
        let truncated = field(2) & flags::TRUNCATED != 0;
        let counts = [field(6), field(8), field(10)];
        let mut at = HEADER + question;
        let (mut ttls, mut ttl) = (Vec::new(), max_ttl);
        let mut soa_minimum = None;
        let mut opt = None;
        for (section, count) in counts.into_iter().enumerate() {
            for _ in 0..count {
                let start = at;
                let fixed = skip_name(&message, at)?;
                let record = message.get(fixed..fixed + 10)?;
                let kind = u16::from_be_bytes([record[0], record[1]]);
                let own = u32::from_be_bytes([record[4], record[5], record[6], record[7]]);
                at = fixed + 10 + usize::from(u16::from_be_bytes([record[8], record[9]]));
                if at > message.len() {
                    return None;
                }
                if kind == rtype::OPT {
                    opt = Some((start, at));
                    continue;
                }
                ttls.push(fixed + 4);
                ttl = ttl.min(own);
                if section == 1 && kind == rtype::SOA && at - fixed >= 14 {
                    let minimum = message.get(at - 4..at)?;
                    soa_minimum =
                        Some(own.min(u32::from_be_bytes([minimum[0], minimum[1], minimum[2], minimum[3]])));
                }
            }
        }
        message.truncate(at);
        match opt {
            // Later names may point across an OPT record in the middle, which therefore stays.
            Some((start, end)) if end == at => {
                message.truncate(start);
                message[10..12].copy_from_slice(&(counts[2] - 1).to_be_bytes());
            }
            _ => {}
        }
        let empty = counts[0] == 0;
        ttl = match (code, empty, soa_minimum) {
            (rcode::NO_ERROR, false, _) => ttl,
            (rcode::NO_ERROR | rcode::NAME_ERROR, _, Some(minimum)) => ttl.min(minimum),
            // A failure is cached briefly, to protect the upstream.
            _ => 0,
        };
        if truncated {
            ttl = 0;
        }
        Some(Self { message, question, ttls, ttl })
    }

    #[must_use]
    pub fn is_truncated(&self) -> bool {
        self.message[2] & (flags::TRUNCATED >> 8) as u8 != 0
    }

    #[must_use]
    pub fn code(&self) -> u8 {
        self.message[3] & 0xf
    }

    /// Reports whether the reply has no records: the name or the type does not exist.
    #[must_use]
    pub fn is_denial(&self) -> bool {
        self.code() != rcode::NO_ERROR || self.message[6..8] == [0, 0]
    }

    /// The message, for reading its records.
    #[must_use]
    pub fn message(&self) -> &[u8] {
        &self.message
    }

    /// Writes the reply to `query`, `age` seconds after it was received.
    pub fn write(&self, query: &Query<'_>, age: u32, limit: usize, buffer: &mut Vec<u8>) {
        let opt = query.edns.is_some();
        let space = limit - if opt { 11 } else { 0 };
        buffer.clear();
        let whole = self.message.len() <= space;
        buffer.extend(if whole { &self.message[..] } else { &self.message[..HEADER + self.question] });
        buffer[..2].copy_from_slice(&query.id.to_be_bytes());
        let desired = (query.flags & flags::RECURSION_DESIRED) >> 8;
        buffer[2] = buffer[2] & !1 | desired as u8;
        buffer[HEADER..HEADER + self.question].copy_from_slice(query.question);
        if whole {
            for &at in &self.ttls {
                let ttl = u32::from_be_bytes([buffer[at], buffer[at + 1], buffer[at + 2], buffer[at + 3]]);
                buffer[at..at + 4].copy_from_slice(&ttl.saturating_sub(age).to_be_bytes());
            }
        } else {
            buffer[2] |= (flags::TRUNCATED >> 8) as u8;
            buffer[6..12].fill(0);
        }
        if opt {
            buffer.extend([0, 0, rtype::OPT as u8, 0x04, 0xd0, 0, 0, 0, 0, 0, 0]);
            let count = u16::from_be_bytes([buffer[10], buffer[11]]).saturating_add(1);
            buffer[10..12].copy_from_slice(&count.to_be_bytes());
        }
    }
}

#[derive(Clone, Debug)]
struct Entry {
    cached: Arc<CachedReply>,
    stored: Instant,
    expires: Instant,
}

/// The cache: two generations, each at most half of the entries. Used entries move to the young generation; when that
/// is full, the old one is dropped.
#[derive(Debug)]
pub struct Cache {
    half: usize,
    generations: Mutex<Generations>,
}

#[derive(Debug, Default)]
struct Generations {
    young: HashMap<Key, Entry>,
    old: HashMap<Key, Entry>,
}

impl Cache {
    #[must_use]
    pub fn new(entries: usize) -> Self {
        Self { half: (entries / 2).max(1), generations: Mutex::default() }
    }

    /// A fresh reply and its age in seconds.
    #[must_use]
    pub fn get(&self, key: &Key, now: Instant) -> Option<(Arc<CachedReply>, u32)> {
        let mut generations = self.generations.lock();
        if let Some(entry) = generations.young.get(key) {
            return entry.fresh(now);
        }
        let entry = generations.old.remove(key)?;
        let found = entry.fresh(now);
        if found.is_some() {
            generations.insert(key.clone(), entry, self.half);
        }
        found
    }

    pub fn put(&self, key: Key, cached: Arc<CachedReply>, now: Instant) {
        if cached.ttl == 0 {
            return;
        }
        let expires = now + Duration::from_secs(u64::from(cached.ttl));
        self.generations.lock().insert(key, Entry { cached, stored: now, expires }, self.half);
    }

    /// Number of entries with records, and of denials.
    #[must_use]
    pub fn entries(&self) -> (usize, usize) {
        let generations = self.generations.lock();
        let all = generations.young.values().chain(generations.old.values());
        all.fold(
            (0, 0),
            |(success, denial), entry| {
                if entry.cached.is_denial() { (success, denial + 1) } else { (success + 1, denial) }
            },
        )
    }

    #[must_use]
    pub fn len(&self) -> usize {
        let generations = self.generations.lock();
        generations.young.len() + generations.old.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Generations {
    fn insert(&mut self, key: Key, entry: Entry, half: usize) {
        if self.young.len() >= half {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, entry);
    }
}

impl Entry {
    fn fresh(&self, now: Instant) -> Option<(Arc<CachedReply>, u32)> {
        let age = now.saturating_duration_since(self.stored).as_secs();
        (now < self.expires).then(|| (Arc::clone(&self.cached), u32::try_from(age).unwrap_or(u32::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{CLASS_IN, Reply, Section};

    fn question(name: &[u8], edns: bool) -> Vec<u8> {
        let mut message = vec![0, 9, 1, 0, 0, 1, 0, 0, 0, 0, 0, u8::from(edns)];
        message.extend(name);
        message.extend(rtype::A.to_be_bytes());
        message.extend(CLASS_IN.to_be_bytes());
        if edns {
            message.extend([0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]);
        }
        message
    }

    fn answered(query: &Query<'_>, ttl: u32) -> Vec<u8> {
        let mut buffer = Vec::new();
        let mut reply = Reply::begin(&mut buffer, query, 0, flags::RECURSION_AVAILABLE, 512);
        reply.ipv4(Section::Answer, None, ttl, [192, 0, 2, 1].into());
        reply.finish();
        buffer
    }

    #[test]
    fn cached_reply_ages_and_serves_clients_with_and_without_edns() {
        let key_of = question(b"\x01a\x00", true);
        let query = Query::parse(&key_of).expect("a query");
        let cached = CachedReply::read(&query, answered(&query, 300), 30).expect("a reply");
        assert_eq!(cached.ttl, 30);
        let plain = question(b"\x01A\x00", false);
        let plain = Query::parse(&plain).expect("a query");
        let mut out = Vec::new();
        cached.write(&plain, 10, 512, &mut out);
        assert_eq!(
            out,
            [
                &[0, 9, 0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0][..],
                b"\x01A\x00\x00\x01\x00\x01",
                &[0xc0, 12, 0, 1, 0, 1, 0, 0, 1, 34, 0, 4, 192, 0, 2, 1]
            ]
            .concat()
        );
        cached.write(&query, 10, 512, &mut out);
        assert_eq!(out.len(), 12 + 7 + 16 + 11);
        assert_eq!(out[10..12], [0, 1]);
        cached.write(&query, 10, 32, &mut out);
        assert_eq!((out[2] & 2, out.len()), (2, 12 + 7 + 11));
    }

    #[test]
    fn replies_to_other_questions_are_rejected() {
        let key_of = question(b"\x01a\x00", false);
        let query = Query::parse(&key_of).expect("a query");
        let other = question(b"\x01b\x00", false);
        let other = Query::parse(&other).expect("a query");
        assert_eq!(CachedReply::read(&query, answered(&other, 300), 30), None);
        assert_eq!(CachedReply::read(&query, key_of.clone(), 30), None);
        let mut cut = answered(&query, 300);
        cut.truncate(cut.len() - 1);
        assert_eq!(CachedReply::read(&query, cut, 30), None);
    }

    #[test]
    fn cache_is_bounded_and_evicts() {
        let cache = Cache::new(10);
        let now = Instant::now();
        let mut keys = Vec::new();
        for letter in 0..100_u8 {
            let key_of = question(&[1, letter, 0], false);
            let query = Query::parse(&key_of).expect("a query");
            let cached = Arc::new(CachedReply::read(&query, answered(&query, 5), 30).expect("a reply"));
            cache.put(Key::of(&query), cached, now);
            keys.push(Key::of(&query));
            assert!(cache.len() <= 10, "{}", cache.len());
        }
        let last = &keys[keys.len() - 1];
        assert_eq!(cache.get(last, now + Duration::from_secs(4)).map(|(_, age)| age), Some(4));
        assert!(cache.get(last, now + Duration::from_secs(5)).is_none());
        assert!(cache.get(&keys[0], now).is_none());
    }

    proptest::proptest! {
        #[test]
        fn decoding_a_reply_never_panics(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let key_of = question(b"\x01a\x00", false);
            let query = Query::parse(&key_of).expect("a query");
            let mut message = vec![0, 9, 0x81, 0x80, 0, 1, 0, 2, 0, 1, 0, 1];
            message.extend(query.question);
            message.extend(bytes);
            if let Some(cached) = CachedReply::read(&query, message, 30) {
                cached.write(&query, 1, 512, &mut Vec::new());
            }
        }
    }
}
