//! Limits of numbers.

use super::{Shown, ValueCheck, ValueErrors};
use crate::custom::node::{Node, NodeType};
use machinery::Value;
use machinery::field::{ErrorKind, Path, show_float};

/// True for numbers without a fraction.
pub(super) fn is_whole(value: &Value) -> bool {
    value.as_f64().is_some_and(|number| number.fract() == 0.0)
}

/// A value and a limit, compared as integers where both are.
#[expect(clippy::cast_possible_truncation, reason = "limits are truncated, as Kubernetes does for integers")]
fn is_above(value: &Value, number: f64, limit: f64, native: bool) -> Option<std::cmp::Ordering> {
    match value.as_i64() {
        Some(value) if native => Some(i128::from(value).cmp(&(limit as i128))),
        _ => number.partial_cmp(&limit),
    }
}

impl ValueCheck<'_> {
    pub(super) fn number(&self, value: &Value, node: &Node, at: &Path<'_>, outcome: &mut ValueErrors) {
        let Some(number) = value.as_f64() else { return };
        let format = self.format(node);
        let kind = node.kind;
        self.range("Checked", number, kind, format, at, outcome);
        let Some(checks) = &node.checks else { return };
        // Limits of integer types are integers, unless they do not fit the type.
        let mut native =
            |limit: f64, what: &str| self.range(what, limit, kind, format, at, outcome) && value.is_i64();
        let shown = |limit: f64, native: bool| show_float(if native { limit.trunc() } else { limit });
        let multiple = checks.multiple_of.map(|factor| (factor, native(factor, "MultipleOf")));
        let minimum = checks.minimum.map(|limit| (limit, native(limit, "Minimum boundary")));
        let maximum = checks.maximum.map(|limit| (limit, native(limit, "Maximum boundary")));
        if let Some((factor, native)) = multiple {
            let factor = if native { factor.trunc() } else { factor };
            let times = if factor < 1.0 { 1.0 / factor * number } else { number / factor };
            if factor <= 0.0 {
                let shown = show_float(factor);
                let message = format!("factor MultipleOf declared for {at} must be positive: {shown}");
                let factor = serde_json::Number::from_f64(factor).map_or(Value::Null, Value::Number);
                self.fail(ErrorKind::Invalid, at, Shown::Value(&factor), message, outcome);
            } else if times.fract() != 0.0 {
                self.invalid(at, value, &format!("should be a multiple of {}", show_float(factor)), outcome);
            }
        }
        if let Some((least, native)) = minimum {
            let order = is_above(value, number, least, native);
            let exclusive = checks.exclusive_minimum;
            if order.is_some_and(|order| order.is_lt() || exclusive && order.is_eq()) {
                let relation = if exclusive { "greater than" } else { "greater than or equal to" };
                self.invalid(at, value, &format!("should be {relation} {}", shown(least, native)), outcome);
            }
        }
        if let Some((most, native)) = maximum {
            let order = is_above(value, number, most, native);
            let exclusive = checks.exclusive_maximum;
            if order.is_some_and(|order| order.is_gt() || exclusive && order.is_eq()) {
                let relation = if exclusive { "less than" } else { "less than or equal to" };
                self.invalid(at, value, &format!("should be {relation} {}", shown(most, native)), outcome);
            }
        }
    }

    /// Requires values and limits to be numbers of the type. False if this one is not.
    fn range(
        &self,
        what: &str,
        number: f64,
        kind: NodeType,
        format: &str,
        at: &Path<'_>,
        outcome: &mut ValueErrors,
    ) -> bool {
        let is_whole = |least: f64, most: f64| number.fract() == 0.0 && (least..=most).contains(&number);
        let fits = match (kind, format) {
            (NodeType::Integer, "int32") => is_whole(f64::from(i32::MIN), f64::from(i32::MAX)),
            (NodeType::Integer, _) => is_whole(-9.3e18, 9.2e18),
            (_, "float") => number.abs() <= f64::from(f32::MAX),
            _ => true,
        };
        if !fits {
            let kind = kind.name();
            let of = match format {
                "" => format!("{kind} (default format)"),
                format => format!("{kind} with format {format}"),
            };
            self.fail_whole(format!("{what} value must be of type {of} in {at}"), outcome);
        }
        fits
    }
}
