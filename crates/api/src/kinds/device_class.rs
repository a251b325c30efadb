//! DeviceClass.

use crate::kind::renamed_version;
use crate::validation::device::{self, CONFIG_MAX};
use crate::value::Fields;
use crate::{Kind, MetadataCheck, Scope};
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};
use machinery::names;

pub static KIND: Kind = Kind {
    // Only the generated name is validated, not the prefix.
    validate_name: |name, prefix| if prefix { Vec::new() } else { names::dns_subdomain_in_bytes(name) },
    validate,
    validate_update: |new, _| validate(new),
    counts_generation: true,
    metadata_on_update: &[MetadataCheck::New, MetadataCheck::Update],
    table: &crate::tables::resource::NAME_AND_AGE,
    returns_deleted: true,
    ..Kind::new("resource.k8s.io", "v1", "DeviceClass", "deviceclasses", Scope::Cluster)
};

pub static KIND_V1BETA1: Kind = renamed_version!(
    KIND,
    "resource.k8s.io",
    "v1",
    "v1beta1",
    Some("resource.k8s.io/v1beta1 DeviceClass is deprecated in v1.35+, unavailable in v1.38+")
);

pub static KIND_V1BETA2: Kind = renamed_version!(
    KIND,
    "resource.k8s.io",
    "v1",
    "v1beta2",
    Some("resource.k8s.io/v1beta2 DeviceClass is deprecated in v1.36+, unavailable in v1.39+")
);

fn validate(class: &Value) -> ErrorList {
    let (path, spec) = (Path::new("spec"), class.field("spec"));
    let mut errors = device::selectors(spec, &path);
    let config_path = path.child("config");
    errors.extend(device::bounded(spec.items("config"), CONFIG_MAX, &config_path, device::configuration));
    if let Some(name) = spec.opt_text("extendedResourceName").filter(|name| !is_extended_resource(name)) {
        let detail = "must be a valid extended resource name";
        errors.push(FieldError::invalid_str(&path.child("extendedResourceName"), name, detail));
    }
    errors
}

/// An extended resource that quotas can name.
fn is_extended_resource(name: &str) -> bool {
    let native = !name.contains('/') || name.contains("kubernetes.io/");
    !native && !name.starts_with("requests.") && names::qualified_name(&format!("requests.{name}")).is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extended_resource_names_are_recognized() {
        for (name, extended) in [
            ("example.com/gpu", true),
            ("cpu", false),
            ("kubernetes.io/x", false),
            ("requests.example.com/gpu", false),
            ("example.com/", false),
        ] {
            assert_eq!(is_extended_resource(name), extended, "{name}");
        }
    }
}
