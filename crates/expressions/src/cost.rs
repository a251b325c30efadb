//! Cost of calls in the units of Kubernetes: one unit is about a tenth of a microsecond of its evaluator. The
//! documented limits are in these units.

use crate::value::{Fault, Value};
use cel::common::ast::operators;

pub const LIST: u64 = 10;
pub const MAP: u64 = 30;
pub const STRUCT: u64 = 40;
/// Cost of an authorizer check: two fit into one expression.
pub const CHECK: u64 = 350_000;
/// Maximum size of the result of one call.
const MAX_RESULT_SIZE: u64 = 16 * 1024 * 1024;

/// Cost of traversing so many characters.
fn traversal(size: u64) -> u64 {
    size.div_ceil(10)
}

/// Cost of matching a text against a pattern.
pub fn matches(text: u64, pattern: usize) -> u64 {
    let pattern = u64::try_from(pattern).unwrap_or(u64::MAX);
    traversal(text.saturating_add(1)).saturating_mul(pattern.div_ceil(4))
}

/// Actual cost of a call.
pub fn call(function: &str, arguments: &[Value<'_>], result: Option<&Value<'_>>) -> u64 {
    own_cost(function, arguments, result).unwrap_or(1)
}

/// Cost of a call of a function whose cost depends on its arguments.
pub(crate) fn own_cost(function: &str, arguments: &[Value<'_>], result: Option<&Value<'_>>) -> Option<u64> {
    let size = |index: usize| arguments.get(index).map_or(0, Value::size);
    let first_is_string =
        matches!(arguments.first(), Some(Value::String(_) | Value::Bytes(_) | Value::List(_)));
    Some(match function {
        "fieldSelector" | "labelSelector" => {
            LIST + traversal(size(1)) + size(1).div_ceil(2).saturating_mul(LIST + STRUCT)
        }
        "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => {
            arguments.first().map_or(0, Value::weight)
        }
        "url"
        | "lowerAscii"
        | "upperAscii"
        | "substring"
        | "trim"
        | "jsonpatch.escapeKey"
        | "cidr"
        | "isIP"
        | "isCIDR"
        | "quantity"
        | "isQuantity"
        | "semver"
        | "isSemver"
        | "startsWith"
        | "endsWith"
        | "format"
        | "strings.quote" => traversal(size(0)),
        "ip" => match arguments.first() {
            Some(Value::Cidr(_)) => 1,
            _ => traversal(size(0)),
        },
        "replace" | "split" | "ip.isCanonical" => traversal(size(0).saturating_mul(2)),
        "join" => traversal(result.map_or(0, Value::size).saturating_mul(2)),
        "find" | "findAll" | "matches" => matches(size(0), usize::try_from(size(1)).unwrap_or(usize::MAX)),
        "containsIP" | "containsCIDR" => {
            let parsed =
                if matches!(arguments.get(1), Some(Value::String(_))) { traversal(size(1)) } else { 0 };
            let masked = if function == "containsCIDR" { traversal(size(0)) + 1 } else { 0 };
            traversal(size(0).saturating_mul(2)) + parsed + masked
        }
        "validate" => match arguments.first() {
            Some(Value::Format(format)) => matches(size(1), format.pattern_size),
            _ => 1,
        },
        "string" | "bytes" => match arguments.first() {
            Some(Value::String(_) | Value::Bytes(_)) => traversal(size(0)),
            _ => 1,
        },
        "contains" if first_is_string => traversal(size(0)).saturating_mul(traversal(size(1))).max(1),
        operators::IN => match arguments.get(1) {
            Some(list @ Value::List(_)) => list.size().saturating_add(traversal(list.weight())),
            _ => 1,
        },
        operators::EQUALS
        | operators::NOT_EQUALS
        | operators::LESS
        | operators::LESS_EQUALS
        | operators::GREATER
        | operators::GREATER_EQUALS => match (arguments.first(), arguments.get(1)) {
            // Comparison includes nested values.
            (Some(a @ (Value::List(_) | Value::Map(_))), Some(b @ (Value::List(_) | Value::Map(_)))) => {
                traversal(a.weight().min(b.weight())).max(1)
            }
            _ => traversal(size(0).min(size(1))),
        },
        // Concatenation copies; sets compare all pairs of elements.
        operators::ADD => traversal(size(0).saturating_add(size(1))).max(1),
        "sets.contains" | "sets.equivalent" | "sets.intersects" | "distinct" => {
            size(0).saturating_mul(size(1).max(1)).max(1)
        }
        "flatten" | "slice" | "reverse" | "sort" | "@sortByAssociatedKeys" | "lists.range" => {
            1 + result.map_or(0, Value::size)
        }
        _ => return None,
    })
}

/// Rejects calls whose result would be far larger than their arguments, before they run.
pub fn reject_oversized_result(function: &str, arguments: &[Value<'_>]) -> Result<(), Fault> {
    let size = |index: usize| arguments.get(index).map_or(0, Value::size);
    let result_size = match (function, arguments) {
        ("lists.range", [Value::Int(count)]) => u64::try_from(*count).unwrap_or(0).saturating_mul(16),
        ("replace", [_, from, with, ..]) => {
            let times = size(0).saturating_add(1) / from.size().max(1);
            size(0).saturating_add(times.saturating_mul(with.size()))
        }
        ("join", [Value::List(list), rest @ ..]) => {
            let between = rest.first().map_or(0, Value::size);
            list.iter().fold(0u64, |sum, item| sum.saturating_add(item.size()).saturating_add(between))
        }
        (operators::ADD, [Value::List(a), Value::List(b)]) => {
            u64::try_from(a.len().saturating_add(b.len())).unwrap_or(u64::MAX).saturating_mul(32)
        }
        ("sets.contains" | "sets.equivalent" | "sets.intersects", _) => size(0).saturating_mul(size(1)),
        ("distinct", _) => size(0).saturating_mul(size(0)) / 8,
        _ => 0,
    };
    if result_size > MAX_RESULT_SIZE { Err(Fault::Cost) } else { Ok(()) }
}
