//! Cost estimates of calls: arguments, and the standard functions.

use super::range::Range;
use super::{Estimator, Operand, library};
use crate::types::{Signature, Type};
use cel::common::ast::{IdedExpr, operators};

/// Cost factor per character of a traversed string.
pub(super) const TRAVERSAL: f64 = 0.1;
/// Cost factor per character of a regular expression.
pub(super) const PATTERN: f64 = 0.25;

/// Cost, and size of the result if it has one.
pub(super) type Charge = (Range, Option<Range>);

/// A call without its name.
pub(super) struct Call<'c, 't> {
    pub signature: &'c Signature,
    pub target: Option<&'c Operand<'t>>,
    pub arguments: &'c [Operand<'t>],
}

impl Estimator<'_> {
    /// Cost of a call by one of its signatures, including its arguments.
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
        let call = Call { signature, target, arguments };
        if let Some((cost, size)) = library::estimate(self, name, &call) {
            return (cost.plus(all), size);
        }
        self.language(expr, name, signature, target, arguments, costs).unwrap_or((all.plus(Range::ONE), None))
    }

    /// Standard functions whose cost is not 1.
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

    /// Size of a subexpression, or the maximum size declared for its path.
    pub(super) fn size_of(&self, operand: &Operand<'_>) -> Range {
        operand.size.or_else(|| self.extent_at(&operand.path)).unwrap_or(Range::ANY)
    }
}

/// Comparison is bounded by the shorter operand.
fn comparison(left: &Operand<'_>, right: &Operand<'_>, arguments: Range) -> Charge {
    let most = |operand: &Operand<'_>| operand.size.map_or(u64::MAX, |size| size.max);
    let most = most(left).min(most(right));
    let cost = Range { min: u64::from(most > 0), max: most };
    (cost.scaled(TRAVERSAL).plus(arguments), None)
}
