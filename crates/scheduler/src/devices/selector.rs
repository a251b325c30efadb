//! Compiled CEL selectors.

use std::collections::VecDeque;
use std::sync::Arc;

use expressions::device::{self, Attribute};
use expressions::{Program, Value};
use objects::resource::v1::Device;
use parking_lot::Mutex;

use super::quantity;

/// Number of compiled expressions that are kept.
const CACHED: usize = 10;

/// Compiled expressions, the most recently used ones last.
#[derive(Debug, Default)]
pub struct SelectorCache(Mutex<VecDeque<Arc<Program>>>);

impl SelectorCache {
    pub fn program(&self, expression: &str) -> Result<Arc<Program>, String> {
        let mut programs = self.0.lock();
        let known = programs.iter().position(|program| program.text() == expression);
        let program = match known.and_then(|at| programs.remove(at)) {
            Some(program) => program,
            None => Arc::new(device::compile(expression)?),
        };
        if programs.len() >= CACHED {
            programs.pop_front();
        }
        programs.push_back(Arc::clone(&program));
        Ok(program)
    }
}

/// Value of a device in expressions.
pub fn value<'a>(driver: &'a str, own: &'a Device) -> Result<Value<'a>, String> {
    let mut attributes = Vec::new();
    for (name, attribute) in own.attributes.iter().flatten() {
        let value = match (attribute.int, attribute.bool, &attribute.string, &attribute.version) {
            (Some(value), ..) => Attribute::Int(value),
            (_, Some(value), ..) => Attribute::Bool(value),
            (_, _, Some(value), _) => Attribute::String(value),
            (.., Some(value)) => Attribute::Version(value),
            _ => return Err(format!("attribute {name}: unsupported attribute value")),
        };
        attributes.push((name.as_str(), value));
    }
    let capacity = own.capacity.iter().flatten();
    let capacity = capacity.map(|(name, capacity)| (name.as_str(), quantity(&capacity.value)));
    let allows_multiple = own.allow_multiple_allocations == Some(true);
    device::value(driver, allows_multiple, attributes.into_iter(), capacity)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_keeps_recently_used_programs() {
        let cache = SelectorCache::default();
        let of = |number: usize| format!("device.driver == '{number}'");
        let first = cache.program(&of(0)).expect("compiled");
        for number in 1..CACHED {
            cache.program(&of(number)).expect("compiled");
        }
        assert!(Arc::ptr_eq(&first, &cache.program(&of(0)).expect("cached")));
        let second = cache.program(&of(1)).expect("cached");
        for number in CACHED..2 * CACHED {
            cache.program(&of(number)).expect("compiled");
        }
        assert!(!Arc::ptr_eq(&second, &cache.program(&of(1)).expect("compiled again")));
        assert!(cache.program("device.driver ==").is_err());
        assert_eq!(cache.0.lock().len(), CACHED);
    }
}
