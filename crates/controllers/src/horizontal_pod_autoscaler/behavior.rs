//! Limits on following a recommendation: stabilization windows, policies, minimum and maximum. Pure.

use jiff::{SignedDuration, Timestamp};
use objects::autoscaling::v2::{HPAScalingRules, HorizontalPodAutoscalerBehavior};

/// Past recommendations and scale events of one autoscaler.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    proposals: Vec<(Timestamp, i32)>,
    grown: Vec<(Timestamp, i32)>,
    shrunk: Vec<(Timestamp, i32)>,
}

/// A condition to set: type, status, reason, message.
pub type Finding = (&'static str, bool, &'static str, &'static str);

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub current: i32,
    pub min: i32,
    pub max: i32,
    /// Time for which past recommendations keep the size, unless the behavior sets another.
    pub downscale_window: SignedDuration,
}

impl Memory {
    /// Size when first seen: prevents scaling down below it immediately.
    pub fn begin(&mut self, current: i32, now: Timestamp) {
        if self.proposals.is_empty() {
            self.proposals.push((now, current));
        }
    }

    /// Records a scale event.
    pub fn changed(&mut self, from: i32, to: i32, now: Timestamp) {
        let oldest = now.saturating_sub(SignedDuration::from_secs(1800)).unwrap_or(now);
        for events in [&mut self.grown, &mut self.shrunk] {
            events.retain(|(at, _)| *at >= oldest);
        }
        if to > from {
            self.grown.push((now, to - from));
        } else if to < from {
            self.shrunk.push((now, from - to));
        }
    }

    /// Desired number of replicas, and the conditions that explain it.
    pub fn follow(
        &mut self,
        proposed: i32,
        limits: Limits,
        behavior: Option<&HorizontalPodAutoscalerBehavior>,
        now: Timestamp,
    ) -> (i32, [Finding; 2]) {
        let up = behavior.and_then(|behavior| behavior.scale_up.as_ref());
        let down = behavior.and_then(|behavior| behavior.scale_down.as_ref());
        let window = |rules: Option<&HPAScalingRules>, default: SignedDuration| {
            let seconds = rules.and_then(|rules| rules.stabilization_window_seconds);
            seconds.map_or(default, |seconds| SignedDuration::from_secs(seconds.into()))
        };
        let (up_window, down_window) =
            (window(up, SignedDuration::ZERO), window(down, limits.downscale_window));
        let within = |at: Timestamp, window: SignedDuration| now.duration_since(at) < window;
        let lowest = self.proposals.iter().filter(|(at, _)| within(*at, up_window)).map(|(_, n)| *n).min();
        let highest = self.proposals.iter().filter(|(at, _)| within(*at, down_window)).map(|(_, n)| *n).max();
        let lowest = lowest.map_or(proposed, |known| known.min(proposed));
        let highest = highest.map_or(proposed, |known| known.max(proposed));
        let stable = if behavior.is_some() { limits.current.max(lowest).min(highest) } else { highest };
        self.proposals.retain(|(at, _)| within(*at, up_window.max(down_window)));
        self.proposals.push((now, proposed));
        let able = if stable == proposed {
            ("AbleToScale", true, "ReadyForNewScale", "recommended size matches current size")
        } else if behavior.is_some() && proposed >= limits.current {
            let message = "recent recommendations were lower than current one, applying the lowest recent recommendation";
            ("AbleToScale", true, "ScaleUpStabilized", message)
        } else {
            let message = "recent recommendations were higher than current one, applying the highest recent recommendation";
            ("AbleToScale", true, "ScaleDownStabilized", message)
        };
        let (replicas, reason, message) = self.limited(stable, limits, up, down, behavior.is_some(), now);
        (replicas, [able, ("ScalingLimited", replicas != stable, reason, message)])
    }

    fn limited(
        &self,
        wanted: i32,
        limits: Limits,
        up: Option<&HPAScalingRules>,
        down: Option<&HPAScalingRules>,
        has_behavior: bool,
        now: Timestamp,
    ) -> (i32, &'static str, &'static str) {
        let fast_up = "the desired replica count is increasing faster than the maximum scale rate";
        let too_many = "the desired replica count is more than the maximum replica count";
        let fast_down = "the desired replica count is decreasing faster than the maximum scale rate";
        let too_few = "the desired replica count is less than the minimum replica count";
        if !has_behavior || wanted > limits.current {
            let rate = if has_behavior {
                self.rate(limits.current, up, true, now).max(limits.current)
            } else {
                limits.current.saturating_mul(2).max(4)
            };
            let (most, reason, message) = if limits.max > rate {
                (rate, "ScaleUpLimit", fast_up)
            } else {
                (limits.max, "TooManyReplicas", too_many)
            };
            if wanted > most {
                return (most, reason, message);
            }
        }
        if !has_behavior || wanted < limits.current {
            let rate = if has_behavior {
                self.rate(limits.current, down, false, now).min(limits.current)
            } else {
                0
            };
            let (least, reason, message) = if limits.min < rate {
                (rate, "ScaleDownLimit", fast_down)
            } else {
                (limits.min, "TooFewReplicas", too_few)
            };
            if wanted < least {
                return (least, reason, message);
            }
        }
        (wanted, "DesiredWithinRange", "the desired count is within the acceptable range")
    }

    /// Limit by the scaling policies.
    fn rate(&self, current: i32, rules: Option<&HPAScalingRules>, up: bool, now: Timestamp) -> i32 {
        let Some(rules) = rules else { return if up { i32::MAX } else { 0 } };
        let select = rules.select_policy.as_deref().unwrap_or("Max");
        if select == "Disabled" {
            return current;
        }
        let within = |events: &[(Timestamp, i32)], seconds: i32| -> i32 {
            let period = SignedDuration::from_secs(seconds.into());
            events.iter().filter(|(at, _)| now.duration_since(*at) < period).map(|(_, count)| *count).sum()
        };
        let allowed = rules.policies.iter().flatten().map(|policy| {
            let grown = within(&self.grown, policy.period_seconds);
            let shrunk = within(&self.shrunk, policy.period_seconds);
            let start = current - grown + shrunk;
            let part = f64::from(start) * f64::from(policy.value) / 100.0;
            match (policy.type_.as_str(), up) {
                ("Percent", true) => (f64::from(start) + part).ceil() as i32,
                ("Percent", false) => (f64::from(start) - part) as i32,
                (_, true) => start.saturating_add(policy.value),
                (_, false) => start.saturating_sub(policy.value),
            }
        });
        let farthest = (select != "Min") == up;
        let chosen = if farthest { allowed.max() } else { allowed.min() };
        chosen.unwrap_or(current)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::fixture::at;
    use serde_json::json;

    fn limits(current: i32) -> Limits {
        Limits { current, min: 1, max: 20, downscale_window: SignedDuration::from_secs(300) }
    }

    #[test]
    fn default_behavior_doubles_up_and_stabilizes_down() {
        let mut memory = Memory::default();
        memory.begin(2, at(0));
        assert_eq!(memory.follow(10, limits(2), None, at(10)).0, 4);
        let (replicas, [able, limited]) = memory.follow(1, limits(4), None, at(20));
        assert_eq!((replicas, able.2, limited.2), (8, "ScaleDownStabilized", "ScaleUpLimit"));
        // Five minutes after the last high recommendation it may scale down.
        assert_eq!(memory.follow(1, limits(4), None, at(400)).0, 1);
        assert_eq!(memory.follow(0, limits(4), None, at(401)).0, 1);
        assert_eq!(
            Memory::default().follow(50, limits(15), None, at(0)),
            (
                20,
                [
                    ("AbleToScale", true, "ReadyForNewScale", "recommended size matches current size"),
                    (
                        "ScalingLimited",
                        true,
                        "TooManyReplicas",
                        "the desired replica count is more than the maximum replica count",
                    ),
                ],
            )
        );
    }

    #[test]
    fn policies_limit_changes_per_period() {
        let behavior: HorizontalPodAutoscalerBehavior = serde_json::from_value(json!({
            "scaleUp": { "stabilizationWindowSeconds": 0, "selectPolicy": "Max", "policies": [
                { "type": "Pods", "value": 2, "periodSeconds": 60 }, { "type": "Percent", "value": 10, "periodSeconds": 60 },
            ] },
            "scaleDown": { "stabilizationWindowSeconds": 0, "selectPolicy": "Min", "policies": [
                { "type": "Pods", "value": 1, "periodSeconds": 60 }, { "type": "Percent", "value": 50, "periodSeconds": 60 },
            ] },
        })).expect("a behavior");
        let mut memory = Memory::default();
        assert_eq!(memory.follow(15, limits(5), Some(&behavior), at(0)).0, 7);
        memory.changed(5, 7, at(0));
        // The period is used up.
        assert_eq!(memory.follow(15, limits(7), Some(&behavior), at(30)).0, 7);
        assert_eq!(memory.follow(15, limits(7), Some(&behavior), at(90)).0, 9);
        assert_eq!(memory.follow(1, limits(9), Some(&behavior), at(300)).0, 8);
    }

    #[test]
    fn scale_down_can_be_disabled() {
        let behavior: HorizontalPodAutoscalerBehavior = serde_json::from_value(json!({
            "scaleDown": { "stabilizationWindowSeconds": 0, "selectPolicy": "Disabled" },
            "scaleUp": { "stabilizationWindowSeconds": 60, "selectPolicy": "Max",
                         "policies": [{ "type": "Percent", "value": 100, "periodSeconds": 15 }] },
        }))
        .expect("a behavior");
        let mut memory = Memory::default();
        assert_eq!(memory.follow(1, limits(9), Some(&behavior), at(0)).0, 9);
        // Scaling up waits until all recommendations of a minute agree.
        assert_eq!(memory.follow(12, limits(9), Some(&behavior), at(10)).0, 9);
        assert_eq!(memory.follow(12, limits(9), Some(&behavior), at(65)).0, 12);
    }
}
