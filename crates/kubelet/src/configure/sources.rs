//! Objects referenced by a pod, fetched before its containers are configured.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use objects::core::v1::{ConfigMap, Pod, Secret, Service};

use crate::lifecycle::members::members;

/// Existing objects referenced by a pod; missing ones are absent.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    pub config_maps: BTreeMap<String, ConfigMap>,
    pub secrets: BTreeMap<String, Secret>,
    /// Environment files in the pod's volumes, by volume and path.
    pub files: BTreeMap<(String, String), String>,
    /// Services exposed as environment variables.
    pub services: Vec<Arc<Service>>,
}

/// Names of config maps and secrets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct References {
    pub config_maps: BTreeSet<String>,
    pub secrets: BTreeSet<String>,
}

/// References in the environment of a pod's containers.
#[must_use]
pub fn of_environment(pod: &Pod) -> References {
    let mut found = References::default();
    let Some(spec) = &pod.spec else { return found };
    for member in members(spec) {
        for source in member.container.env_from.iter().flatten() {
            found.config_maps.extend(source.config_map_ref.as_ref().map(|source| source.name.clone()));
            found.secrets.extend(source.secret_ref.as_ref().map(|source| source.name.clone()));
        }
        for source in member.container.env.iter().flatten().filter_map(|env| env.value_from.as_ref()) {
            found.config_maps.extend(source.config_map_key_ref.as_ref().map(|key| key.name.clone()));
            found.secrets.extend(source.secret_key_ref.as_ref().map(|key| key.name.clone()));
        }
    }
    found
}

/// References in the volumes of a pod.
#[must_use]
pub fn of_volumes(pod: &Pod) -> References {
    let mut found = References::default();
    for volume in pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
        found.config_maps.extend(volume.config_map.as_ref().map(|source| source.name.clone()));
        found.secrets.extend(volume.secret.as_ref().and_then(|source| source.secret_name.clone()));
        for source in volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten()) {
            found.config_maps.extend(source.config_map.as_ref().map(|source| source.name.clone()));
            found.secrets.extend(source.secret.as_ref().map(|source| source.name.clone()));
        }
    }
    found
}
