//! What calls cost, by function.

use super::range::Range;
use super::{Estimator, Operand};
use crate::types::{Signature, Type};
use cel::common::ast::{Expr, IdedExpr, LiteralValue, operators};

/// Of a string's length: what it costs to look at each character.
const TRAVERSAL: f64 = 0.1;
/// Of a pattern's length: how many expressions it may have.
const PATTERN: f64 = 0.25;
/// The longest pattern behind a named format.
const FORMAT_PATTERN: f64 = 128.0;
/// The longest named format.
const FORMAT: u64 = 64;
/// Few expressions may ask more than twice.
const AUTHORIZATION: u64 = 350_000;
/// The bytes of an address.
const ADDRESS: Range = Range { min: 4, max: 16 };

/// A cost, and the size of what comes out where it has one.
type Charge = (Range, Option<Range>);

impl Estimator<'_> {
    /// What a call costs by one of its signatures, its arguments included.
    pub(super) fn charge(
        &mut self,
        expr: &IdedExpr,
        name: &str,
        signature: &Signature,
        target: Option<&Operand<'_>>,
        arguments: &[Operand<'_>],
        costs: &[Range],
    ) -> Charge {
        let all = costs.iter().fold(Range::ZERO, |sum, cost| sum.plus(*cost));
        if let Some((cost, size)) = self.library(name, signature, target, arguments) {
            return (cost.plus(all), size);
        }
        self.language(expr, name, signature, target, arguments, costs).unwrap_or((all.plus(Range::ONE), None))
    }

    /// The functions of Kubernetes' libraries.
    fn library(
        &self,
        name: &str,
        signature: &Signature,
        target: Option<&Operand<'_>>,
        arguments: &[Operand<'_>],
    ) -> Option<Charge> {
        let first = arguments.first();
        let of_first = |factor: f64| Some((self.size_of(first?).scaled(factor), None));
        match name {
            "check" => Some((Range::exactly(AUTHORIZATION), None)),
            "serviceAccount"
            | "path"
            | "group"
            | "resource"
            | "subresource"
            | "namespace"
            | "name"
            | "allowed"
            | "reason"
            | "error"
            | "errored"
            | "masked"
            | "prefixLength"
            | "family"
            | "isUnspecified"
            | "isLoopback"
            | "isLinkLocalMulticast"
            | "isLinkLocalUnicast"
            | "isGlobalUnicast"
            | "format.named"
            | "sign"
            | "asInteger"
            | "isInteger"
            | "asApproximateFloat"
            | "isGreaterThan"
            | "isLessThan"
            | "compareTo"
            | "add"
            | "sub"
            | "major"
            | "minor"
            | "patch"
            | "getScheme"
            | "getHostname"
            | "getHost"
            | "getPort"
            | "getEscapedPath"
            | "getQuery" => Some((Range::ONE, None)),
            "fieldSelector" | "labelSelector" => of_first(TRAVERSAL),
            "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => {
                let target = target?;
                let size = self.size_of(target);
                let Some(element) = element_of(target) else { return Some((size.scaled(TRAVERSAL), None)) };
                let each = match element.of {
                    Type::String | Type::Bytes => Range::ONE.plus(self.size_of(&element).scaled(TRAVERSAL)),
                    _ => Range::ONE,
                };
                Some((size.times(each), None))
            }
            "url" | "jsonpatch.escapeKey" => {
                let size = self.size_of(first?);
                Some((size.scaled(TRAVERSAL), Some(size)))
            }
            "lowerAscii" | "upperAscii" | "substring" | "trim" => {
                let size = self.size_of(target?);
                Some((size.scaled(TRAVERSAL), Some(size)))
            }
            "replace" => {
                let (from, to) = (first?, arguments.get(1)?);
                let size = self.size_of(target?);
                let result = replaced(size, self.size_of(from), self.size_of(to));
                Some((size.scaled(2.0 * TRAVERSAL), Some(result)))
            }
            "split" => {
                let size = self.size_of(target?);
                let limit = arguments.get(1).and_then(|limit| match &limit.expr.expr {
                    Expr::Literal(LiteralValue::Int(limit)) => u64::try_from(*limit.inner()).ok(),
                    _ => None,
                });
                let parts = Range::up_to(limit.unwrap_or(size.max));
                Some((size.scaled(2.0 * TRAVERSAL), Some(parts)))
            }
            "join" => {
                let target = target?;
                let count = self.size_of(target);
                let mut size = Range::ZERO;
                if let Some(element) = element_of(target) {
                    size = count.times(self.size_of(&element));
                }
                if let Some(between) = first {
                    let gaps = Range { min: count.min.saturating_sub(1), max: count.max.saturating_sub(1) };
                    size = size.plus(self.size_of(between).times(gaps));
                }
                Some((size.scaled(TRAVERSAL), Some(size)))
            }
            "find" | "findAll" => {
                let size = self.size_of(target?);
                let text = size.plus(Range::ONE).scaled(TRAVERSAL);
                let cost = text.times(self.size_of(first?).scaled(PATTERN));
                Some((cost, Some(Range::up_to(size.max))))
            }
            "ip" if target.is_some() => Some((Range::ONE, None)),
            "ip" | "cidr" | "isIP" | "isCIDR" | "quantity" | "isQuantity" | "semver" | "isSemver" => {
                of_first(TRAVERSAL)
            }
            "ip.isCanonical" => of_first(2.0 * TRAVERSAL),
            "containsIP" | "containsCIDR" => {
                let first = first?;
                let mut cost = ADDRESS.plus(ADDRESS).scaled(TRAVERSAL);
                if name == "containsCIDR" {
                    cost = cost.plus(ADDRESS.scaled(TRAVERSAL)).plus(Range::ONE);
                }
                if signature.arguments.get(1) == Some(&Type::String) {
                    cost = cost.plus(self.size_of(first).scaled(TRAVERSAL));
                }
                Some((cost, None))
            }
            "validate" => {
                let size = self.size_of(first?);
                Some((size.scaled(TRAVERSAL).scaled(FORMAT_PATTERN * PATTERN), None))
            }
            operators::EQUALS => equality(first?, arguments.get(1)?),
            _ => None,
        }
    }

    /// The language's own functions whose cost is not 1.
    fn language(
        &mut self,
        expr: &IdedExpr,
        name: &str,
        signature: &Signature,
        target: Option<&Operand<'_>>,
        arguments: &[Operand<'_>],
        costs: &[Range],
    ) -> Option<Charge> {
        let all = costs.iter().fold(Range::ZERO, |sum, cost| sum.plus(*cost));
        let takes = |of: &Type| signature.arguments.iter().all(|argument| argument == of);
        let known = |operand: &Operand<'_>| operand.size.unwrap_or(Range::ANY);
        match (name, arguments) {
            ("format", _) => Some((known(target?).scaled(TRAVERSAL).plus(all), None)),
            ("bytes", [text]) if takes(&Type::String) => {
                let size = known(text);
                let most = Range { min: size.min, max: size.max.saturating_mul(4) };
                Some((size.scaled(TRAVERSAL).plus(all), Some(most)))
            }
            ("string", [bytes]) if takes(&Type::Bytes) => {
                let size = known(bytes);
                let least = Range { min: size.min / 4, max: size.max };
                Some((size.scaled(TRAVERSAL).plus(all), Some(least)))
            }
            ("strings.quote", [text]) => {
                let size = known(text);
                let quoted = Range {
                    min: size.min.saturating_add(2),
                    max: size.max.saturating_mul(2).saturating_add(2),
                };
                Some((size.scaled(TRAVERSAL).plus(all), Some(quoted)))
            }
            ("startsWith" | "endsWith", [part]) => Some((known(part).scaled(TRAVERSAL).plus(all), None)),
            (operators::IN, [_, list]) if matches!(signature.arguments.get(1), Some(Type::List(_))) => {
                Some((known(list).plus(all), None))
            }
            ("matches", [pattern]) => {
                let text = known(target?).plus(Range::ONE).scaled(TRAVERSAL);
                Some((text.times(known(pattern).scaled(PATTERN)).plus(all), None))
            }
            ("contains", [part]) => {
                let text = known(target?).scaled(TRAVERSAL);
                Some((text.times(known(part).scaled(TRAVERSAL)).plus(all), None))
            }
            (operators::LOGICAL_AND | operators::LOGICAL_OR, _) => {
                let least = costs.first()?.min;
                Some((Range { min: least, max: all.max }, None))
            }
            (operators::CONDITIONAL, [_, yes, no]) => {
                let size = known(yes).union(known(no));
                if let (Some(yes), Some(no)) = (self.entry(yes.expr), self.entry(no.expr)) {
                    self.entries.insert(expr.id, yes.union(no));
                }
                let [condition, yes, no] = costs else { return None };
                Some((condition.plus(yes.union(*no)), Some(size)))
            }
            (operators::ADD, [left, right]) => {
                let size = known(left).plus(known(right));
                if let (Some(left), Some(right)) = (self.entry(left.expr), self.entry(right.expr)) {
                    self.entries.insert(expr.id, left.union(right));
                }
                match signature.arguments.first()? {
                    Type::List(_) => Some((all.plus(Range::ONE), Some(size))),
                    Type::String | Type::Bytes => Some((size.scaled(TRAVERSAL).plus(all), Some(size))),
                    _ => None,
                }
            }
            (
                operators::LESS | operators::GREATER | operators::LESS_EQUALS | operators::GREATER_EQUALS,
                [left, right],
            ) if takes(&Type::String) || takes(&Type::Bytes) => Some(comparison(left, right, all)),
            (operators::EQUALS | operators::NOT_EQUALS, [left, right]) => Some(comparison(left, right, all)),
            _ => None,
        }
    }

    /// As large as the part is, or as its place may be.
    fn size_of(&self, operand: &Operand<'_>) -> Range {
        operand.size.or_else(|| self.extent_at(&operand.path)).unwrap_or(Range::ANY)
    }
}

/// Two values are compared as far as the shorter one goes.
fn comparison(left: &Operand<'_>, right: &Operand<'_>, arguments: Range) -> Charge {
    let most = |operand: &Operand<'_>| operand.size.map_or(u64::MAX, |size| size.max);
    let most = most(left).min(most(right));
    let cost = Range { min: u64::from(most > 0), max: most };
    (cost.scaled(TRAVERSAL).plus(arguments), None)
}

/// Values of libraries that are compared in their own way.
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

/// What is in a list, if that is what this is.
fn element_of<'t>(list: &Operand<'t>) -> Option<Operand<'t>> {
    let of = (*list.of.parameters().first()?).clone();
    let mut path = list.path.clone();
    if !path.is_empty() {
        path.push("@items".to_owned());
    }
    Some(Operand { expr: list.expr, of, path, size: None })
}

/// How long a text is once parts of it are replaced.
fn replaced(size: Range, from: Range, to: Range) -> Range {
    let (mut count, mut kept) = (Range::ZERO, Range::ZERO);
    if from.min == 0 {
        // What replaces nothing stands around every character.
        count.max = size.max.saturating_add(1);
        kept.max = size.max;
    } else if to.max <= from.min {
        kept.max = size.max;
    } else {
        count.max = size.max.div_ceil(from.min);
    }
    if from.max == 0 {
        count.min = size.min.saturating_add(1);
        kept.min = size.min;
    } else if from.max <= to.min {
        kept.min = size.min;
    } else {
        count.min = size.min.div_ceil(from.max);
    }
    count.times(to).plus(kept)
}
