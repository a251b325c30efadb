//! Implements [`Replicated`](super::Replicated) for a kind: the fields have the same names, except for the selector
//! and the terminating pods, which not every kind counts.

/// Makes a kind [`Replicated`](super::Replicated).
macro_rules! replicated {
    (
        $kind:ident, $status:ident, $condition:ident,
        selector: $selector:expr,
        $(terminating: $terminating:ident,)?
    ) => {
        impl $crate::replicas::Replicated for $kind {
            const COUNTS_TERMINATING: bool = !stringify!($($terminating)?).is_empty();

            fn replicas(&self) -> i32 {
                self.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
            }

            fn min_ready_seconds(&self) -> i32 {
                self.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0)
            }

            fn selector(&self) -> objects::meta::v1::LabelSelector {
                self.spec.as_ref().map($selector).unwrap_or_default()
            }

            fn template(&self) -> Option<&objects::core::v1::PodTemplateSpec> {
                self.spec.as_ref()?.template.as_ref()
            }

            fn status(&self) -> $crate::replicas::Status {
                let status = self.status.clone().unwrap_or_default();
                let conditions = status.conditions.unwrap_or_default().into_iter();
                $crate::replicas::Status {
                    replicas: status.replicas,
                    fully_labeled: status.fully_labeled_replicas.unwrap_or(0),
                    ready: status.ready_replicas.unwrap_or(0),
                    available: status.available_replicas.unwrap_or(0),
                    terminating: None$(.or(status.$terminating))?,
                    observed_generation: status.observed_generation.unwrap_or(0),
                    conditions: conditions
                        .map(|condition| $crate::replicas::Condition {
                            kind: condition.type_,
                            status: condition.status,
                            reason: condition.reason.unwrap_or_default(),
                            message: condition.message.unwrap_or_default(),
                            since: condition.last_transition_time,
                        })
                        .collect(),
                }
            }

            fn set_status(&mut self, status: $crate::replicas::Status) {
                let conditions = status.conditions.into_iter().map(|condition| $condition {
                    type_: condition.kind,
                    status: condition.status,
                    reason: Some(condition.reason),
                    message: Some(condition.message),
                    last_transition_time: condition.since,
                });
                self.status = Some($status {
                    replicas: status.replicas,
                    fully_labeled_replicas: Some(status.fully_labeled),
                    ready_replicas: Some(status.ready),
                    available_replicas: Some(status.available),
                    $($terminating: status.terminating,)?
                    observed_generation: Some(status.observed_generation),
                    conditions: Some(conditions.collect::<Vec<_>>()).filter(|list| !list.is_empty()),
                });
            }
        }
    };
}

pub(crate) use replicated;
