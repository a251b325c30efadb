//! Labels and annotations that identify pods in the runtime, with Kubernetes' own names.

use std::collections::BTreeMap;

use objects::core::v1::{Container, Pod};

pub const POD_NAME: &str = "io.kubernetes.pod.name";
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
pub const POD_UID: &str = "io.kubernetes.pod.uid";
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";
pub const CONTAINER_HASH: &str = "io.kubernetes.container.hash";
pub const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
pub const TERMINATION_PATH: &str = "io.kubernetes.container.terminationMessagePath";
pub const TERMINATION_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
pub const GRACE_PERIOD: &str = "io.kubernetes.pod.terminationGracePeriod";

#[must_use]
pub fn of_pod(pod: &Pod) -> BTreeMap<String, String> {
    let mut labels = pod.metadata.labels.clone().unwrap_or_default();
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    labels.insert(POD_NAME.to_owned(), text(&pod.metadata.name));
    labels.insert(POD_NAMESPACE.to_owned(), text(&pod.metadata.namespace));
    labels.insert(POD_UID.to_owned(), text(&pod.metadata.uid));
    labels
}

#[must_use]
pub fn of_container(pod: &Pod, container: &Container) -> BTreeMap<String, String> {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    BTreeMap::from([
        (POD_NAME.to_owned(), text(&pod.metadata.name)),
        (POD_NAMESPACE.to_owned(), text(&pod.metadata.namespace)),
        (POD_UID.to_owned(), text(&pod.metadata.uid)),
        (CONTAINER_NAME.to_owned(), container.name.clone()),
    ])
}

#[must_use]
pub fn annotations(pod: &Pod, container: &Container, restarts: u32) -> BTreeMap<String, String> {
    let mut out = BTreeMap::from([
        (CONTAINER_HASH.to_owned(), fingerprint(container)),
        (RESTART_COUNT.to_owned(), restarts.to_string()),
        (TERMINATION_PATH.to_owned(), container.termination_message_path.clone().unwrap_or_default()),
        (
            TERMINATION_POLICY.to_owned(),
            container.termination_message_policy.clone().unwrap_or_else(|| "File".to_owned()),
        ),
    ]);
    let grace = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
    out.extend(grace.map(|grace| (GRACE_PERIOD.to_owned(), grace.to_string())));
    out
}

/// FNV-1a hash of the immutable fields of a running container: its name and image.
#[must_use]
pub fn fingerprint(container: &Container) -> String {
    let mut hash = 0x811c_9dc5_u32;
    let image = container.image.as_deref().unwrap_or("");
    for byte in container.name.bytes().chain([0]).chain(image.bytes()) {
        hash = (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    }
    format!("{hash:x}")
}
