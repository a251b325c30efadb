//! ResourceSlice: the devices of a pool, or a part of them.

use crate::field_selectors::{LabelError, Selectable};
use crate::kind::{SelectableField, StoredAs, renamed_version};
use crate::validation::checks::{dns_label, dns_subdomain};
use crate::validation::device;
use crate::validation::device_attribute::{attribute, capacity, has_lists, value_count};
use crate::validation::device_v1beta1;
use crate::validation::storage::driver_name;
use crate::validation::values::{same, unchanged};
use crate::value::Fields;
use crate::{Kind, Scope};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, meta};

pub static KIND: Kind = Kind {
    default,
    prepare_create: |slice| drop_disabled(slice, &Value::Null),
    prepare_update,
    validate: |slice| validate(slice, None),
    validate_update: |new, old| validate(new, Some(old)),
    warnings: |new, _| warnings(new),
    counts_generation: true,
    selectable: Selectable::new(SELECTABLE, LabelError::For("resource.k8s.io/v1, Kind=ResourceSlice")),
    table: &crate::tables::resource::RESOURCE_SLICE,
    returns_deleted: true,
    ..Kind::new("resource.k8s.io", "v1", "ResourceSlice", "resourceslices", Scope::Cluster)
};

/// Requests and devices have another form in this version: see [`crate::validation::device_v1beta1`].
pub static KIND_V1BETA1: Kind = Kind {
    version: "v1beta1",
    default: device_v1beta1::default_slice,
    deprecation: Some("resource.k8s.io/v1beta1 ResourceSlice is deprecated in v1.35+, unavailable in v1.38+"),
    stored_as: Some(&StoredAs {
        kind: &KIND,
        to_stored: device_v1beta1::slice_to_v1,
        from_stored: device_v1beta1::slice_from_v1,
        rules_of_stored: true,
    }),
    ..KIND
};

pub static KIND_V1BETA2: Kind = renamed_version!(
    KIND,
    "resource.k8s.io",
    "v1",
    "v1beta2",
    Some("resource.k8s.io/v1beta2 ResourceSlice is deprecated in v1.36+, unavailable in v1.39+")
);

const SELECTABLE: &[SelectableField] = {
    use crate::field_selectors::{NAME, field, text};
    &[
        NAME,
        field("spec.nodeName", |slice| text(slice, "/spec/nodeName")),
        field("spec.driver", |slice| text(slice, "/spec/driver")),
    ]
};

const DEVICES_MAX: usize = 128;
/// Lower limit for slices whose devices have taints, counters or lists.
const LARGE_DEVICES_MAX: usize = 64;
const COUNTER_SETS_MAX: usize = 8;
const COUNTERS_MAX: usize = 32;
const CONSUMED_SETS_MAX: usize = 2;
const ATTRIBUTES_AND_CAPACITIES_MAX: usize = 32;
const VALUES_MAX: usize = 48;
const TAINTS_MAX: usize = 16;

fn default(slice: &mut Value) {
    let Some(spec) = slice.field_mut("spec") else {
        return;
    };
    for device in spec.items_mut("devices") {
        device.items_mut("taints").iter_mut().for_each(device::default_taint);
    }
}

/// Submitted values count as a change even if they are dropped.
fn prepare_update(new: &mut Value, old: &Value) {
    if !same(new.field("spec"), old.field("spec")) {
        meta::metadata_mut(new).insert("generation".to_owned(), (meta::generation(old) + 1).into());
    }
    drop_disabled(new, old);
}

/// List attributes and mappings to node allocatable resources are disabled.
fn drop_disabled(new: &mut Value, old: &Value) {
    const LISTS: &[&str] = &["bools", "ints", "strings", "versions"];
    let old_devices = old.field("spec").items("devices");
    let keep_lists = old_devices.iter().any(has_lists);
    let keep_mappings = old_devices.iter().any(|device| device.has("nodeAllocatableResourceMappings"));
    for device in new.child_mut("spec").items_mut("devices") {
        if !keep_mappings {
            device.unset("nodeAllocatableResourceMappings");
        }
        if let Some(Value::Object(attributes)) = device.field_mut("attributes").filter(|_| !keep_lists) {
            for attribute in attributes.values_mut() {
                LISTS.iter().for_each(|field| attribute.unset(field).map_or((), drop));
            }
        }
    }
}

fn validate(slice: &Value, old: Option<&Value>) -> ErrorList {
    let (path, spec) = (Path::new("spec"), slice.field("spec"));
    let (pool, pool_path) = (spec.field("pool"), path.child("pool"));
    let mut errors = driver_name(spec.text("driver"), &path.child("driver"));
    errors.extend(device::pool_name(pool.text("name"), &pool_path.child("name")));
    if pool.int("resourceSliceCount") <= 0 {
        let count_path = pool_path.child("resourceSliceCount");
        let count = pool.int("resourceSliceCount").into();
        errors.push(FieldError::invalid(&count_path, &count, "must be greater than zero"));
    }
    if pool.int("generation") < 0 {
        let generation = pool.int("generation").into();
        let detail = "must be greater than or equal to zero";
        errors.push(FieldError::invalid(&pool_path.child("generation"), &generation, detail));
    }
    if let Some(old) = old.map(|old| old.field("spec")) {
        errors.extend(unchanged(&pool_path.child("name"), pool.field("name"), old.at("pool.name")));
        for field in ["driver", "nodeName"] {
            errors.extend(unchanged(&path.child(field), spec.field(field), old.field(field)));
        }
    }
    errors.extend(nodes(spec, &path));
    if spec.has("sharedCounters") && spec.has("devices") {
        let detail = "only one of `sharedCounters` or `devices` is allowed";
        errors.push(FieldError::invalid_str(&path, "", detail));
    }
    let devices = spec.items("devices");
    let large = |device: &Value| {
        !device.items("taints").is_empty()
            || !device.items("consumesCounters").is_empty()
            || has_lists(device)
    };
    let max = if devices.iter().any(large) { LARGE_DEVICES_MAX } else { DEVICES_MAX };
    let per_device_nodes = spec.flag("perDeviceNodeSelection");
    let old_devices = old.map_or(&[][..], |old| old.field("spec").items("devices"));
    errors.extend(device::bounded_set(
        devices,
        max,
        &path.child("devices"),
        |device, path| {
            let old = old_devices.iter().find(|old| old.text("name") == device.text("name"));
            self::device(device, old, per_device_nodes, path)
        },
        |device| device.text("name"),
    ));
    errors.extend(device::bounded_set(
        spec.items("sharedCounters"),
        COUNTER_SETS_MAX,
        &path.child("sharedCounters"),
        |set, path| counters(set, "name", path),
        |set| set.text("name"),
    ));
    errors
}

/// Requires exactly one field that selects the nodes of the devices.
fn nodes(spec: &Value, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    let mut set_fields = Vec::new();
    match spec.opt_text("nodeName") {
        Some("") => {
            let detail = "must be either unset or set to a non-empty string";
            errors.push(FieldError::invalid_str(&path.child("nodeName"), "", detail));
        }
        Some(name) => {
            set_fields.push("`nodeName`");
            errors.extend(dns_subdomain(&path.child("nodeName"), name));
        }
        None => {}
    }
    if spec.has("nodeSelector") {
        set_fields.push("`nodeSelector`");
        let terms = spec.field("nodeSelector").field("nodeSelectorTerms");
        if spec.field("nodeSelector").items("nodeSelectorTerms").len() != 1 {
            let path = path.child("nodeSelector");
            let detail = "must have exactly one node selector term";
            errors.push(FieldError::invalid(&path.child("nodeSelectorTerms"), terms, detail));
        }
    }
    for (field, quoted) in
        [("allNodes", "`allNodes`"), ("perDeviceNodeSelection", "`perDeviceNodeSelection`")]
    {
        match spec.opt_flag(field) {
            Some(true) => set_fields.push(quoted),
            Some(false) => errors.push(not_true(&path.child(field))),
            None => {}
        }
    }
    const ONE_OF: &str =
        "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
    match set_fields.len() {
        0 => errors.push(FieldError::required(path, ONE_OF)),
        1 => {}
        _ => {
            let detail = format!("{ONE_OF}, but multiple fields are set");
            errors.push(FieldError::invalid_str(path, &format!("{{{}}}", set_fields.join(", ")), detail));
        }
    }
    errors
}

fn not_true(path: &Path<'_>) -> FieldError {
    FieldError::invalid(path, &false.into(), "must be either unset or set to true")
}

fn device(device: &Value, old: Option<&Value>, per_device_nodes: bool, path: &Path<'_>) -> ErrorList {
    let mut errors = dns_label(&path.child("name"), device.text("name"));
    let (attributes, capacities) = (device.entries("attributes"), device.entries("capacity"));
    let entries = attributes.map_or(0, |map| map.len()) + capacities.map_or(0, |map| map.len());
    let mut refuse_more = |count: usize, what: &str, max: usize| {
        if count > max {
            let detail = format!("the total number of {what} must not exceed {max}");
            errors.push(FieldError::invalid_shown(path, count.to_string(), detail));
        }
    };
    refuse_more(entries, "attributes and capacities", ATTRIBUTES_AND_CAPACITIES_MAX);
    refuse_more(value_count(device), "attribute values", VALUES_MAX);
    let attributes_path = path.child("attributes");
    for (key, value) in attributes.into_iter().flatten() {
        errors.extend(device::qualified_name(key, &attributes_path));
        errors.extend(attribute(value, &attributes_path.key(key)));
    }
    let capacity_path = path.child("capacity");
    for (key, value) in capacities.into_iter().flatten() {
        errors.extend(device::qualified_name(key, &capacity_path));
        errors.extend(capacity(value, device.flag("allowMultipleAllocations"), &capacity_path.key(key)));
    }
    if !old.is_some_and(|old| same(old.field("taints"), device.field("taints"))) {
        errors.extend(device::bounded(
            device.items("taints"),
            TAINTS_MAX,
            &path.child("taints"),
            |taint, path| device::taint(taint, None, path),
        ));
    }
    errors.extend(device::bounded_set(
        device.items("consumesCounters"),
        CONSUMED_SETS_MAX,
        &path.child("consumesCounters"),
        |consumption, path| counters(consumption, "counterSet", path),
        |consumption| consumption.text("counterSet"),
    ));
    errors.extend(device_nodes(device, per_device_nodes, path));
    errors.extend(device::binding_conditions(device, path));
    errors
}

/// Requires a node selection in each device if, and only if, the slice has `perDeviceNodeSelection`.
fn device_nodes(device: &Value, per_device_nodes: bool, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    if !per_device_nodes {
        if ["nodeName", "nodeSelector", "allNodes"].iter().any(|field| device.has(field)) {
            let detail = "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` \
                          is set to true in the ResourceSlice spec";
            errors.push(FieldError::invalid(path, &Value::Null, detail));
        }
        return errors;
    }
    let mut set_fields = Vec::new();
    match device.opt_text("nodeName") {
        Some("") => errors.push(FieldError::invalid_str(&path.child("nodeName"), "", "must not be empty")),
        Some(name) => {
            set_fields.push("`nodeName`");
            errors.extend(dns_subdomain(&path.child("nodeName"), name));
        }
        None => {}
    }
    if device.has("nodeSelector") {
        set_fields.push("`nodeSelector`");
    }
    match device.opt_flag("allNodes") {
        Some(true) => set_fields.push("`allNodes`"),
        Some(false) => errors.push(not_true(&path.child("allNodes"))),
        None => {}
    }
    let detail = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when \
                  `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
    match set_fields.len() {
        0 => errors.push(FieldError::required(path, detail)),
        1 => {}
        _ => errors.push(FieldError::invalid_str(path, &format!("{{{}}}", set_fields.join(", ")), detail)),
    }
    errors
}

/// A named counter set, or a device's consumption of one.
fn counters(set: &Value, name_field: &str, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    let (name, name_path) = (set.text(name_field), path.child(name_field));
    if name.is_empty() {
        errors.push(FieldError::required(&name_path, ""));
    } else {
        errors.extend(dns_label(&name_path, name));
    }
    let path = path.child("counters");
    match set.entries("counters").filter(|counters| !counters.is_empty()) {
        None => errors.push(FieldError::required(&path, "")),
        Some(counters) if counters.len() > COUNTERS_MAX => {
            errors.push(FieldError::too_many(&path, counters.len(), COUNTERS_MAX));
        }
        Some(counters) => errors.extend(counters.keys().flat_map(|name| dns_label(&path, name))),
    }
    errors
}

fn warnings(slice: &Value) -> Vec<String> {
    let driver = slice.field("spec").text("driver");
    if driver == driver.to_lowercase() {
        return Vec::new();
    }
    vec![format!("spec.driver: driver names should be lowercase; {driver:?} contains uppercase characters")]
}
