//! Conditions of a terminating namespace.

use jiff::Timestamp;
use objects::core::v1::{Namespace, NamespaceCondition};
use objects::meta::v1::Time;

use super::Counts;

/// Findings about the content of a namespace.
#[derive(Debug, Default)]
pub struct Findings {
    /// Discovery error, if not everything could be listed.
    pub discovery: Option<String>,
    pub failures: Vec<client::ClientError>,
    /// Objects by resource.
    pub remaining: Counts,
    /// Objects by finalizer.
    pub finalizers: Counts,
}

struct DesiredCondition {
    kind: &'static str,
    failure: Option<(&'static str, String)>,
    success: (&'static str, &'static str),
}

fn desired_conditions(findings: &Findings) -> [DesiredCondition; 5] {
    let list = |counts: &Counts, verb: &str| {
        let parts: Vec<String> =
            counts.iter().map(|(what, count)| format!("{what} {verb} {count} resource instances")).collect();
        parts.join(", ")
    };
    let failures: Vec<String> = findings.failures.iter().map(ToString::to_string).collect();
    let failed = (!failures.is_empty() && findings.discovery.is_none()).then(|| {
        let text = format!(
            "Failed to delete all resource types, {} remaining: {}",
            failures.len(),
            failures.join(", ")
        );
        ("ContentDeletionFailed", text)
    });
    let remaining = (!findings.remaining.is_empty()).then(|| {
        ("SomeResourcesRemain", format!("Some resources are remaining: {}", list(&findings.remaining, "has")))
    });
    let finalizers = (!findings.finalizers.is_empty()).then(|| {
        let text = format!(
            "Some content in the namespace has finalizers remaining: {}",
            list(&findings.finalizers, "in")
        );
        ("SomeFinalizersRemain", text)
    });
    [
        DesiredCondition {
            kind: "NamespaceDeletionDiscoveryFailure",
            failure: findings.discovery.clone().map(|text| ("DiscoveryFailed", text)),
            success: ("ResourcesDiscovered", "All resources successfully discovered"),
        },
        DesiredCondition {
            kind: "NamespaceDeletionGroupVersionParsingFailure",
            failure: None,
            success: ("ParsedGroupVersions", "All legacy kube types successfully parsed"),
        },
        DesiredCondition {
            kind: "NamespaceDeletionContentFailure",
            failure: failed,
            success: ("ContentDeleted", "All content successfully deleted, may be waiting on finalization"),
        },
        DesiredCondition {
            kind: "NamespaceContentRemaining",
            failure: remaining,
            success: ("ContentRemoved", "All content successfully removed"),
        },
        DesiredCondition {
            kind: "NamespaceFinalizersRemaining",
            failure: finalizers,
            success: ("ContentHasNoFinalizers", "All content-preserving finalizers finished"),
        },
    ]
}

/// The namespace with conditions by the findings; `None` if they are up to date.
pub fn apply(namespace: &Namespace, findings: &Findings, now: Timestamp) -> Option<Namespace> {
    let mut changed = namespace.clone();
    let status = changed.status.get_or_insert_default();
    status.phase = Some("Terminating".to_owned());
    let conditions = status.conditions.get_or_insert_default();
    for desired in desired_conditions(findings) {
        let (state, reason, message) = match desired.failure {
            Some((reason, message)) => ("True", reason, message),
            None => ("False", desired.success.0, desired.success.1.to_owned()),
        };
        let condition = NamespaceCondition {
            type_: desired.kind.to_owned(),
            status: state.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message),
            last_transition_time: Some(Time(now)),
        };
        match conditions.iter_mut().find(|known| known.type_ == desired.kind) {
            None => conditions.push(condition),
            Some(known) => {
                let same = known.status == condition.status;
                let unchanged =
                    same && known.reason == condition.reason && known.message == condition.message;
                if !unchanged {
                    let since = if same { known.last_transition_time.clone() } else { Some(Time(now)) };
                    *known = NamespaceCondition { last_transition_time: since, ..condition };
                }
            }
        }
    }
    (changed.status != namespace.status).then_some(changed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::fixture::{at, meta};

    #[test]
    fn conditions_report_remaining_content() {
        let namespace = Namespace { metadata: meta("a"), ..Namespace::default() };
        let mut findings = Findings::default();
        findings.remaining.insert("pods.".to_owned(), 2);
        findings.finalizers.insert("example.com/f".to_owned(), 1);
        let updated = apply(&namespace, &findings, at(10)).expect("a change");
        let text = |namespace: &Namespace, kind: &str| {
            let conditions =
                namespace.status.as_ref().and_then(|status| status.conditions.as_ref()).expect("some");
            let condition = conditions.iter().find(|condition| condition.type_ == kind).expect("a condition");
            (condition.status.clone(), condition.message.clone().unwrap_or_default())
        };
        let remaining = "Some resources are remaining: pods. has 2 resource instances";
        assert_eq!(text(&updated, "NamespaceContentRemaining"), ("True".to_owned(), remaining.to_owned()));
        let finalizers =
            "Some content in the namespace has finalizers remaining: example.com/f in 1 resource instances";
        assert_eq!(text(&updated, "NamespaceFinalizersRemaining").1, finalizers);
        assert_eq!(text(&updated, "NamespaceDeletionDiscoveryFailure").0, "False");
        assert!(apply(&updated, &findings, at(20)).is_none());
        let done = apply(&updated, &Findings::default(), at(30)).expect("a change");
        assert_eq!(text(&done, "NamespaceContentRemaining").0, "False");
    }
}
