//! Interning of equal names, patterns and nodes.
//!
//! Definitions repeat themselves and each other: label selectors, object references, pod templates, versions that
//! differ in one field. The pool holds weak references; entries that no compiled version uses are freed.

use super::node::Node;
use super::patterns::Pattern;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

static POOL: LazyLock<Mutex<Pool>> = LazyLock::new(Mutex::default);

/// Minimum number of additions between two removals of dead entries.
const MIN_SWEEP: usize = 4096;

#[derive(Default)]
struct Pool {
    names: HashMap<Box<str>, Weak<str>>,
    patterns: HashMap<Box<str>, Weak<Pattern>>,
    /// Nodes by [`Node::digest`].
    nodes: HashMap<u64, Vec<Weak<Node>>>,
    added: usize,
}

/// The shared copy of a name.
pub fn name(text: &str) -> Arc<str> {
    with(|pool| shared(&mut pool.names, text, || Arc::from(text), &mut pool.added))
}

/// The shared copy of a pattern.
pub fn pattern(text: &str) -> Arc<Pattern> {
    with(|pool| shared(&mut pool.patterns, text, || Arc::new(Pattern::new(text)), &mut pool.added))
}

/// The shared copy of a node.
pub fn node(node: Node) -> Arc<Node> {
    if node.rules.is_some() {
        return Arc::new(node);
    }
    let digest = node.digest();
    with(|pool| {
        let known = pool.nodes.entry(digest).or_default();
        if let Some(equal) = known.iter().filter_map(Weak::upgrade).find(|other| **other == node) {
            return equal;
        }
        let made = Arc::new(node);
        known.push(Arc::downgrade(&made));
        pool.added += 1;
        made
    })
}

fn with<T>(work: impl FnOnce(&mut Pool) -> T) -> T {
    let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    let live = pool.names.len() + pool.patterns.len() + pool.nodes.len();
    if pool.added > MIN_SWEEP.max(live) {
        pool.sweep();
    }
    work(&mut pool)
}

fn shared<T: ?Sized>(
    known: &mut HashMap<Box<str>, Weak<T>>,
    text: &str,
    make: impl FnOnce() -> Arc<T>,
    added: &mut usize,
) -> Arc<T> {
    if let Some(live) = known.get(text).and_then(Weak::upgrade) {
        return live;
    }
    let made = make();
    *added += 1;
    known.insert(Box::from(text), Arc::downgrade(&made));
    made
}

impl Pool {
    fn sweep(&mut self) {
        self.added = 0;
        self.names.retain(|_, name| name.strong_count() > 0);
        self.patterns.retain(|_, pattern| pattern.strong_count() > 0);
        self.nodes.retain(|_, nodes| {
            nodes.retain(|node| node.strong_count() > 0);
            !nodes.is_empty()
        });
    }
}
