//! Conditions of the common shape.

use jiff::Timestamp;
use objects::meta::v1::{Condition, Time};

/// True if the condition of this type is `True`.
#[must_use]
pub fn holds(conditions: Option<&Vec<Condition>>, kind: &str) -> bool {
    conditions.into_iter().flatten().any(|condition| condition.type_ == kind && condition.status == "True")
}

/// Sets the condition; its transition time changes only with its status. Returns false if nothing changed.
pub fn set(
    conditions: &mut Option<Vec<Condition>>,
    kind: &str,
    value: bool,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> bool {
    let value = if value { "True" } else { "False" };
    let all = conditions.get_or_insert_default();
    let known = all.iter_mut().find(|condition| condition.type_ == kind);
    let since =
        known.as_ref().filter(|known| known.status == value).map(|known| known.last_transition_time.clone());
    let wanted = Condition {
        type_: kind.to_owned(),
        status: value.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: since.unwrap_or(Time(now)),
        observed_generation: known.as_ref().and_then(|known| known.observed_generation),
    };
    match known {
        Some(known) if *known == wanted => false,
        Some(known) => {
            *known = wanted;
            true
        }
        None => {
            all.push(wanted);
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::fixture::{at, time};

    #[test]
    fn transition_time_changes_only_with_status() {
        let mut conditions = None;
        assert!(set(&mut conditions, "Ready", true, "R", "", at(1)));
        assert!(!set(&mut conditions, "Ready", true, "R", "", at(2)));
        assert!(set(&mut conditions, "Ready", true, "S", "", at(3)));
        assert!(holds(conditions.as_ref(), "Ready"));
        assert_eq!(conditions.clone().expect("one")[0].last_transition_time, time(1));
        assert!(set(&mut conditions, "Ready", false, "S", "", at(4)));
        assert_eq!(conditions.expect("one")[0].last_transition_time, time(4));
    }
}
