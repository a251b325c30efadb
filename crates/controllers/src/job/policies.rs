//! Pod failure policy and success policy of a job.

use objects::batch::v1::{
    PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyOnPodConditionsPattern,
    SuccessPolicy,
};
use objects::core::v1::{ContainerStatus, Pod, PodCondition};

use super::indexes::Indexes;

/// Verdict of the failure policy on one failed pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No rule matches, or one with action Count.
    Count,
    Ignore,
    FailIndex,
    /// The job fails, with this message.
    FailJob(String),
}

impl Verdict {
    /// True if the failure counts toward the backoff limit.
    #[must_use]
    pub fn counts(&self) -> bool {
        *self != Self::Ignore
    }
}

/// Action of the first matching rule; `None` if none matches.
#[must_use]
pub fn action(policy: &PodFailurePolicy, pod: &Pod) -> Option<&'static str> {
    policy.rules.iter().find_map(|rule| {
        let matches = match (&rule.on_exit_codes, &rule.on_pod_conditions) {
            (Some(requirement), _) => failed_container(pod, requirement).is_some(),
            (None, Some(patterns)) => matching_condition(pod, patterns).is_some(),
            (None, None) => false,
        };
        let known = ["Ignore", "FailIndex", "FailJob", "Count"];
        known.into_iter().find(|known| matches && rule.action == *known)
    })
}

/// Applies the first matching rule.
#[must_use]
pub fn judge(policy: Option<&PodFailurePolicy>, pod: &Pod) -> Verdict {
    let Some(policy) = policy else { return Verdict::Count };
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    for (index, rule) in policy.rules.iter().enumerate() {
        let why = if let Some(requirement) = &rule.on_exit_codes {
            failed_container(pod, requirement).map(|(container, code)| {
                format!(
                    "Container {container} for pod {namespace}/{name} failed with exit code {code} matching {} rule at index {index}",
                    rule.action
                )
            })
        } else if let Some(patterns) = &rule.on_pod_conditions {
            matching_condition(pod, patterns).map(|condition| {
                format!(
                    "Pod {namespace}/{name} has condition {} matching {} rule at index {index}",
                    condition.type_, rule.action
                )
            })
        } else {
            None
        };
        let Some(message) = why else { continue };
        match rule.action.as_str() {
            "Ignore" => return Verdict::Ignore,
            "FailIndex" => return Verdict::FailIndex,
            "FailJob" => return Verdict::FailJob(message),
            "Count" => return Verdict::Count,
            _ => {}
        }
    }
    Verdict::Count
}

fn failed_container<'a>(
    pod: &'a Pod,
    requirement: &PodFailurePolicyOnExitCodesRequirement,
) -> Option<(&'a str, i32)> {
    let status = pod.status.as_ref()?;
    let find = |statuses: &'a Option<Vec<ContainerStatus>>| {
        statuses.iter().flatten().find_map(|container| {
            let code = container.state.as_ref()?.terminated.as_ref()?.exit_code;
            let named = requirement.container_name.as_ref().is_none_or(|name| *name == container.name);
            let listed = requirement.values.contains(&code);
            let matches = match requirement.operator.as_str() {
                "In" => listed,
                "NotIn" => !listed,
                _ => false,
            };
            (named && code != 0 && matches).then_some((container.name.as_str(), code))
        })
    };
    find(&status.container_statuses).or_else(|| find(&status.init_container_statuses))
}

fn matching_condition<'a>(
    pod: &'a Pod,
    patterns: &[PodFailurePolicyOnPodConditionsPattern],
) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| {
        patterns.iter().any(|pattern| {
            pattern.type_ == condition.type_
                && pattern.status.as_deref().unwrap_or("True") == condition.status
        })
    })
}

/// Message of the first rule of the success policy that the succeeded indexes satisfy.
#[must_use]
pub fn success(policy: Option<&SuccessPolicy>, completions: u32, succeeded: &Indexes) -> Option<String> {
    if succeeded.is_empty() {
        return None;
    }
    let met = policy?.rules.iter().position(|rule| {
        let enough = |count: usize| {
            rule.succeeded_count.is_some_and(|wanted| count >= usize::try_from(wanted).unwrap_or(0))
        };
        match &rule.succeeded_indexes {
            Some(text) => {
                let wanted = Indexes::parse(text, completions);
                let reached = wanted.common(succeeded);
                !wanted.is_empty() && (reached == wanted.len() || enough(reached))
            }
            None => enough(succeeded.len()),
        }
    })?;
    Some(format!("Matched rules at index {met}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::fixture::pod;
    use objects::batch::v1::{PodFailurePolicyRule, SuccessPolicyRule};
    use objects::core::v1::{ContainerState, ContainerStateTerminated};

    fn exited(code: i32) -> Pod {
        let mut pod = pod("p", "Failed");
        let status = pod.status.get_or_insert_default();
        status.container_statuses = Some(vec![ContainerStatus {
            name: "main".into(),
            state: Some(ContainerState {
                terminated: Some(ContainerStateTerminated { exit_code: code, ..Default::default() }),
                ..Default::default()
            }),
            ..Default::default()
        }]);
        pod
    }

    fn on_codes(action: &str, operator: &str, values: &[i32]) -> PodFailurePolicyRule {
        PodFailurePolicyRule {
            action: action.into(),
            on_exit_codes: Some(PodFailurePolicyOnExitCodesRequirement {
                container_name: None,
                operator: operator.into(),
                values: values.to_vec(),
            }),
            on_pod_conditions: None,
        }
    }

    #[test]
    fn first_matching_failure_rule_applies() {
        let policy = PodFailurePolicy {
            rules: vec![
                on_codes("Ignore", "In", &[3]),
                PodFailurePolicyRule {
                    action: "Ignore".into(),
                    on_exit_codes: None,
                    on_pod_conditions: Some(vec![PodFailurePolicyOnPodConditionsPattern {
                        status: Some("True".into()),
                        type_: "DisruptionTarget".into(),
                    }]),
                },
                on_codes("FailIndex", "In", &[4]),
                on_codes("FailJob", "NotIn", &[1, 2]),
            ],
        };
        assert_eq!(judge(None, &exited(3)), Verdict::Count);
        assert_eq!(judge(Some(&policy), &exited(3)), Verdict::Ignore);
        assert_eq!(judge(Some(&policy), &exited(4)), Verdict::FailIndex);
        assert_eq!(judge(Some(&policy), &exited(1)), Verdict::Count);
        assert_eq!(
            judge(Some(&policy), &exited(42)),
            Verdict::FailJob(
                "Container main for pod ns/p failed with exit code 42 matching FailJob rule at index 3"
                    .into()
            )
        );
        let mut evicted = exited(42);
        evicted.status.get_or_insert_default().conditions = Some(vec![PodCondition {
            type_: "DisruptionTarget".into(),
            status: "True".into(),
            ..Default::default()
        }]);
        assert_eq!(judge(Some(&policy), &evicted), Verdict::Ignore);
    }

    #[test]
    fn success_rules_require_indexes_or_count() {
        let rule = |indexes: Option<&str>, count| SuccessPolicyRule {
            succeeded_indexes: indexes.map(str::to_owned),
            succeeded_count: count,
        };
        for (rules, succeeded, expected) in [
            (vec![rule(Some("0,2"), None)], "0,1", None),
            (vec![rule(Some("0,2"), None)], "0-2", Some("Matched rules at index 0")),
            (vec![rule(Some("0-4"), Some(2))], "1,6", None),
            (vec![rule(Some("0-4"), Some(2))], "1,3", Some("Matched rules at index 0")),
            (vec![rule(Some("9"), None), rule(None, Some(1))], "1", Some("Matched rules at index 1")),
            (vec![rule(None, Some(0))], "", None),
        ] {
            let policy = SuccessPolicy { rules };
            let got = success(Some(&policy), 8, &Indexes::parse(succeeded, 8));
            assert_eq!(got.as_deref(), expected, "{succeeded}");
        }
    }
}
