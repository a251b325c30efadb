//! Cost estimates of the functions in Kubernetes' libraries: one row per estimate, with the functions that it applies to.

use super::calls::{Call, Charge, PATTERN, TRAVERSAL};
use super::range::Range;
use super::{Estimator, Operand};
use crate::types::Type;
use cel::common::ast::{Expr, LiteralValue, operators};

/// Length of the longest pattern of a named format.
const FORMAT_PATTERN: f64 = 128.0;
/// Length of the longest named format.
const FORMAT: u64 = 64;
/// Cost of an authorizer check, so high that few expressions can make more than two.
const AUTHORIZATION: u64 = 350_000;
/// Size of an IP address, in bytes.
const ADDRESS: Range = Range { min: 4, max: 16 };

/// Charge of a call without its arguments; `None` if the standard rules apply.
type Estimate = fn(&Estimator<'_>, &Call<'_, '_>) -> Option<Charge>;

static ROWS: &[(&[&str], Estimate)] = &[
    (&["check"], |_, _| Some((Range::exactly(AUTHORIZATION), None))),
    (CONSTANT, |_, _| Some((Range::ONE, None))),
    (&["fieldSelector", "labelSelector"], |estimator, call| of_first(estimator, call, TRAVERSAL)),
    (&["isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"], elements),
    (&["url", "jsonpatch.escapeKey"], |estimator, call| copy(estimator, call.arguments.first()?)),
    (&["lowerAscii", "upperAscii", "substring", "trim"], |estimator, call| copy(estimator, call.target?)),
    (&["replace"], replace),
    (&["split"], split),
    (&["join"], join),
    (&["find", "findAll"], find),
    (&["ip"], |estimator, call| match call.target {
        Some(_) => Some((Range::ONE, None)),
        None => of_first(estimator, call, TRAVERSAL),
    }),
    (&["cidr", "isIP", "isCIDR", "quantity", "isQuantity", "semver", "isSemver"], |estimator, call| {
        of_first(estimator, call, TRAVERSAL)
    }),
    (&["ip.isCanonical"], |estimator, call| of_first(estimator, call, 2.0 * TRAVERSAL)),
    (&["containsIP"], |estimator, call| contains_address(estimator, call, Range::ZERO)),
    (&["containsCIDR"], |estimator, call| {
        contains_address(estimator, call, ADDRESS.scaled(TRAVERSAL).plus(Range::ONE))
    }),
    (&["validate"], |estimator, call| {
        let size = estimator.size_of(call.arguments.first()?);
        Some((size.scaled(TRAVERSAL).scaled(FORMAT_PATTERN * PATTERN), None))
    }),
    (&[operators::EQUALS], |_, call| equality(call.arguments.first()?, call.arguments.get(1)?)),
];

/// Functions that cost 1.
const CONSTANT: &[&str] = &[
    // Authorizer.
    "serviceAccount",
    "path",
    "group",
    "resource",
    "subresource",
    "namespace",
    "name",
    "allowed",
    "reason",
    "error",
    "errored",
    // IP addresses and CIDRs.
    "masked",
    "prefixLength",
    "family",
    "isUnspecified",
    "isLoopback",
    "isLinkLocalMulticast",
    "isLinkLocalUnicast",
    "isGlobalUnicast",
    // Formats, quantities, versions.
    "format.named",
    "sign",
    "asInteger",
    "isInteger",
    "asApproximateFloat",
    "isGreaterThan",
    "isLessThan",
    "compareTo",
    "add",
    "sub",
    "major",
    "minor",
    "patch",
    // URLs.
    "getScheme",
    "getHostname",
    "getHost",
    "getPort",
    "getEscapedPath",
    "getQuery",
];

/// Charge of a function of a library; `None` for others.
pub(super) fn estimate(estimator: &Estimator<'_>, name: &str, call: &Call<'_, '_>) -> Option<Charge> {
    let (_, estimate) = ROWS.iter().find(|(names, _)| names.contains(&name))?;
    estimate(estimator, call)
}

/// A traversal of the first argument.
fn of_first(estimator: &Estimator<'_>, call: &Call<'_, '_>, factor: f64) -> Option<Charge> {
    Some((estimator.size_of(call.arguments.first()?).scaled(factor), None))
}

/// A traversal of a text, with a result of its size.
fn copy(estimator: &Estimator<'_>, text: &Operand<'_>) -> Option<Charge> {
    let size = estimator.size_of(text);
    Some((size.scaled(TRAVERSAL), Some(size)))
}

/// A comparison of all elements of a list, or a search in a text.
fn elements(estimator: &Estimator<'_>, call: &Call<'_, '_>) -> Option<Charge> {
    let target = call.target?;
    let size = estimator.size_of(target);
    let Some(element) = element_of(target) else { return Some((size.scaled(TRAVERSAL), None)) };
    let each = match element.of {
        Type::String | Type::Bytes => Range::ONE.plus(estimator.size_of(&element).scaled(TRAVERSAL)),
        _ => Range::ONE,
    };
    Some((size.times(each), None))
}

fn replace(estimator: &Estimator<'_>, call: &Call<'_, '_>) -> Option<Charge> {
    let (from, to) = (call.arguments.first()?, call.arguments.get(1)?);
    let size = estimator.size_of(call.target?);
    let result = replaced(size, estimator.size_of(from), estimator.size_of(to));
    Some((size.scaled(2.0 * TRAVERSAL), Some(result)))
}

fn split(estimator: &Estimator<'_>, call: &Call<'_, '_>) -> Option<Charge> {
    let size = estimator.size_of(call.target?);
    let limit = call.arguments.get(1).and_then(|limit| match &limit.expr.expr {
        Expr::Literal(LiteralValue::Int(limit)) => u64::try_from(*limit.inner()).ok(),
        _ => None,
    });
    let parts = Range::up_to(limit.unwrap_or(size.max));
    Some((size.scaled(2.0 * TRAVERSAL), Some(parts)))
}

fn join(estimator: &Estimator<'_>, call: &Call<'_, '_>) -> Option<Charge> {
    let target = call.target?;
    let count = estimator.size_of(target);
    let mut size = Range::ZERO;
    if let Some(element) = element_of(target) {
        size = count.times(estimator.size_of(&element));
    }
    if let Some(between) = call.arguments.first() {
        let gaps = Range { min: count.min.saturating_sub(1), max: count.max.saturating_sub(1) };
        size = size.plus(estimator.size_of(between).times(gaps));
    }
    Some((size.scaled(TRAVERSAL), Some(size)))
}

fn find(estimator: &Estimator<'_>, call: &Call<'_, '_>) -> Option<Charge> {
    let size = estimator.size_of(call.target?);
    let text = size.plus(Range::ONE).scaled(TRAVERSAL);
    let cost = text.times(estimator.size_of(call.arguments.first()?).scaled(PATTERN));
    Some((cost, Some(Range::up_to(size.max))))
}

/// A comparison of addresses; an argument of type string is parsed first.
fn contains_address(estimator: &Estimator<'_>, call: &Call<'_, '_>, masking: Range) -> Option<Charge> {
    let first = call.arguments.first()?;
    let mut cost = ADDRESS.plus(ADDRESS).scaled(TRAVERSAL).plus(masking);
    if call.signature.arguments.get(1) == Some(&Type::String) {
        cost = cost.plus(estimator.size_of(first).scaled(TRAVERSAL));
    }
    Some((cost, None))
}

/// Types of libraries with a comparison of their own.
fn equality(left: &Operand<'_>, right: &Operand<'_>) -> Option<Charge> {
    if left.of != right.of {
        return None;
    }
    let name = match &left.of {
        Type::Opaque(_) => return Some((Range::ONE, None)),
        Type::Object(of) => of.name.strip_prefix("kubernetes.")?,
        _ => return None,
    };
    match name {
        "NamedFormat" => Some((Range { min: 1, max: FORMAT }.scaled(TRAVERSAL), None)),
        "URL" => {
            let most = right.size.map_or(1, |size| size.max);
            Some((Range { min: 1, max: most }.scaled(TRAVERSAL), None))
        }
        _ => Some((Range::ONE, None)),
    }
}

/// Element of a list.
fn element_of<'t>(list: &Operand<'t>) -> Option<Operand<'t>> {
    let of = (*list.of.parameters().first()?).clone();
    let mut path = list.path.clone();
    if !path.is_empty() {
        path.push("@items".to_owned());
    }
    Some(Operand { expr: list.expr, of, path, size: None })
}

/// Length of a text after replacement.
fn replaced(size: Range, from: Range, to: Range) -> Range {
    let (mut count, mut retained) = (Range::ZERO, Range::ZERO);
    if from.min == 0 {
        // Replacing the empty string inserts the replacement around every character.
        count.max = size.max.saturating_add(1);
        retained.max = size.max;
    } else if to.max <= from.min {
        retained.max = size.max;
    } else {
        count.max = size.max.div_ceil(from.min);
    }
    if from.max == 0 {
        count.min = size.min.saturating_add(1);
        retained.min = size.min;
    } else if from.max <= to.min {
        retained.min = size.min;
    } else {
        count.min = size.min.div_ceil(from.max);
    }
    count.times(to).plus(retained)
}
