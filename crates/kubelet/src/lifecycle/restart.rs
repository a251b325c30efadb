//! Restart decisions for exited containers.

use objects::core::v1::{Container, Pod};

use super::observed::{ObservedContainer, RunState};

/// Effective restart policy of a container: its own, or its pod's.
#[must_use]
pub fn policy<'a>(pod: &'a Pod, container: &'a Container) -> &'a str {
    let of_pod = pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref());
    container.restart_policy.as_deref().or(of_pod).unwrap_or("Always")
}

/// Rule action that restarts the whole pod.
const ALL: &str = "RestartAllContainers";
/// State reason of containers removed by RestartAllContainers.
pub const RESTARTING_ALL: &str = "RestartingAllContainers";

/// Action of the first rule that matches `exit_code`.
fn action(container: &Container, exit_code: i32) -> Option<&str> {
    let fits = container.restart_policy_rules.iter().flatten().find(|rule| {
        rule.exit_codes.as_ref().is_some_and(|codes| {
            let listed = codes.values.iter().flatten().any(|code| *code == exit_code);
            if codes.operator == "NotIn" { !listed } else { listed }
        })
    });
    fits.map(|rule| rule.action.as_str())
}

/// Returns true if this exit restarts the whole pod.
#[must_use]
pub fn restarts_all(container: &Container, exit_code: i32) -> bool {
    action(container, exit_code) == Some(ALL)
}

/// Returns true if a container of the pod has such a rule.
#[must_use]
pub fn may_restart_all(pod: &Pod) -> bool {
    let spec = pod.spec.iter();
    let all = spec.flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers));
    all.into_iter().any(|one| one.restart_policy_rules.iter().flatten().any(|rule| rule.action == ALL))
}

/// Returns true if a container that exited with `exit_code` restarts. Its own rules take precedence over the policy.
#[must_use]
pub fn on_exit(pod: &Pod, container: &Container, exit_code: i32) -> bool {
    if action(container, exit_code).is_some_and(|action| action == "Restart" || action == ALL) {
        return true;
    }
    match policy(pod, container) {
        "Never" => false,
        "OnFailure" => exit_code != 0,
        _ => true,
    }
}

/// Returns true if a container has to be started after the newest of its name, if any.
#[must_use]
pub fn is_due(pod: &Pod, container: &Container, newest: Option<&ObservedContainer>) -> bool {
    match newest {
        None => true,
        Some(newest) => match newest.state {
            RunState::Running => false,
            RunState::Created | RunState::Unknown => true,
            RunState::Exited => on_exit(pod, container, newest.exit_code),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use objects::core::v1::{ContainerRestartRule, ContainerRestartRuleOnExitCodes, PodSpec};

    fn pod(policy: &str) -> Pod {
        Pod {
            spec: Some(PodSpec { restart_policy: Some(policy.to_owned()), ..PodSpec::default() }),
            ..Pod::default()
        }
    }

    #[test]
    fn restart_policies_by_exit_code() {
        for (policy, code, want) in [
            ("Always", 0, true),
            ("Always", 1, true),
            ("OnFailure", 0, false),
            ("OnFailure", 1, true),
            ("Never", 0, false),
            ("Never", 1, false),
        ] {
            assert_eq!(on_exit(&pod(policy), &Container::default(), code), want, "{policy} {code}");
        }
    }

    #[test]
    fn container_restart_rules_override_policy() {
        let rule = |operator: &str, values: Vec<i32>| ContainerRestartRule {
            action: "Restart".to_owned(),
            exit_codes: Some(ContainerRestartRuleOnExitCodes {
                operator: operator.to_owned(),
                values: Some(values),
            }),
        };
        let container = |rule| Container {
            restart_policy: Some("Never".to_owned()),
            restart_policy_rules: Some(vec![rule]),
            ..Container::default()
        };
        assert!(on_exit(&pod("Never"), &container(rule("In", vec![42])), 42));
        assert!(!on_exit(&pod("Always"), &container(rule("In", vec![42])), 1));
        assert!(on_exit(&pod("Never"), &container(rule("NotIn", vec![0])), 7));
        let all = ContainerRestartRule { action: ALL.to_owned(), ..rule("In", vec![42]) };
        assert!(!restarts_all(&container(rule("In", vec![42])), 42));
        assert!(restarts_all(&container(all.clone()), 42) && !restarts_all(&container(all.clone()), 0));
        assert!(on_exit(&pod("Never"), &container(all), 42));
    }
}
