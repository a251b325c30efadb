//! Rules of a pod's spec, shared by pods and all kinds with a pod template.

pub mod affinity;
pub mod annotations;
pub mod checks;
pub mod claim_spec;
pub mod containers;
pub mod defaults;
pub mod diff;
pub mod disabled;
pub mod dns;
pub mod env;
pub mod image;
pub mod layout;
pub mod mounts;
pub mod operating_system;
pub mod options;
pub mod paths;
pub mod probes;
pub mod projected;
pub mod relaxed;
pub mod resources;
pub mod security_context;
pub mod spec;
pub mod sysctls;
pub mod template;
pub mod tolerations;
pub mod topology_spread;
pub mod totals;
pub mod volume_sources;
pub mod volumes;
pub mod warnings;
pub mod windows;

pub use options::Options;
pub use spec::validate_pod_spec;
pub use template::validate_template;

use crate::value::Fields;
use machinery::Value;
use machinery::field::Path;

/// Container lists of a pod spec, in the order in which Kubernetes visits them.
pub const CONTAINER_LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// Container lists with their names.
pub fn container_lists(spec: &Value) -> impl Iterator<Item = (&'static str, &[Value])> {
    CONTAINER_LISTS.into_iter().map(|list| (list, spec.items(list)))
}

/// Visits every container with its path.
pub fn for_each_container(spec: &Value, path: &Path<'_>, mut visit: impl FnMut(&Value, &Path<'_>)) {
    for (list, containers) in container_lists(spec) {
        let path = path.child(list);
        for (index, container) in containers.iter().enumerate() {
            visit(container, &path.index(index));
        }
    }
}

/// True for a sidecar: an init container that runs beside the others.
pub fn is_sidecar(container: &Value) -> bool {
    container.text("restartPolicy") == "Always"
}
