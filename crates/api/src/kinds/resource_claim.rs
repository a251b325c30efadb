//! ResourceClaim: an immutable spec, and a status with the allocation.

use crate::kind::{StoredAs, drop_status, keep_metadata_and_spec, keep_status, renamed_version};
use crate::validation::checks::{dns_label, required_one_of};
use crate::validation::device::{self, CLAIM_SPEC, CONFIG_MAX, PARAMETERS_MAX, RequestNames};
use crate::validation::device_v1beta1;
use crate::validation::dump::dump;
use crate::validation::storage::driver_name;
use crate::validation::values::{IMMUTABLE, same};
use crate::value::Fields;
use crate::{Kind, MetadataCheck, Scope};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, meta, names};
use std::collections::BTreeSet;

pub static KIND: Kind = Kind {
    default: |claim| device::default_claim_spec(claim.child_mut("spec")),
    prepare_create: drop_status,
    prepare_update: keep_status,
    prepare_status_update,
    validate: |claim| device::claim_spec(claim.field("spec"), &Path::new("spec")),
    validate_update,
    validate_status_update,
    metadata_on_update: &[MetadataCheck::New, MetadataCheck::Update],
    reset_fields: crate::kind::METADATA_RESET_FIELDS,
    table: &crate::tables::resource::RESOURCE_CLAIM,
    returns_deleted: true,
    ..Kind::new("resource.k8s.io", "v1", "ResourceClaim", "resourceclaims", Scope::Namespaced)
};

/// Requests and devices have another form in this version: see [`crate::validation::device_v1beta1`].
pub static KIND_V1BETA1: Kind = Kind {
    version: "v1beta1",
    default: device_v1beta1::default_claim,
    deprecation: Some("resource.k8s.io/v1beta1 ResourceClaim is deprecated in v1.35+, unavailable in v1.38+"),
    stored_as: Some(&StoredAs {
        kind: &KIND,
        to_stored: device_v1beta1::claim_to_v1,
        from_stored: device_v1beta1::claim_from_v1,
        rules_of_stored: true,
    }),
    ..KIND
};

pub static KIND_V1BETA2: Kind = renamed_version!(
    KIND,
    "resource.k8s.io",
    "v1",
    "v1beta2",
    Some("resource.k8s.io/v1beta2 ResourceClaim is deprecated in v1.36+, unavailable in v1.39+")
);

const RESERVED_FOR_MAX: usize = 256;
const RESULTS_MAX: usize = 32;
const CONDITIONS_MAX: usize = 8;
const INTERFACE_NAME_MAX: usize = 256;
const HARDWARE_ADDRESS_MAX: usize = 128;
const ADDRESSES_MAX: usize = 16;

/// Identity of an allocated device: driver, pool, device and share.
type DeviceId<'a> = [&'a str; 4];

fn device_id(device: &Value) -> DeviceId<'_> {
    ["driver", "pool", "device", "shareID"].map(|field| device.text(field))
}

fn allocated(claim: &Value) -> BTreeSet<DeviceId<'_>> {
    claim.at("status.allocation.devices").items("results").iter().map(device_id).collect()
}

/// The status of a device is removed with its allocation.
fn prepare_status_update(new: &mut Value, old: &Value) {
    keep_metadata_and_spec(new, old);
    let gone: Vec<[String; 4]> = {
        let retained = allocated(new);
        allocated(old).difference(&retained).map(|id| id.map(str::to_owned)).collect()
    };
    let Some(status) = new.field_mut("status") else {
        return;
    };
    if let Some(Value::Array(devices)) = status.field_mut("devices") {
        devices.retain(|device| !gone.iter().any(|id| id.iter().eq(device_id(device).iter())));
        if devices.is_empty() {
            status.unset("devices");
        }
    }
}

fn validate_update(new: &Value, old: &Value) -> ErrorList {
    let spec = new.field("spec");
    if same(spec, old.field("spec")) {
        return Vec::new();
    }
    vec![FieldError::invalid_shown(&Path::new("spec"), dump(spec, CLAIM_SPEC), IMMUTABLE)]
}

fn validate_status_update(new: &Value, old: &Value) -> ErrorList {
    let path = Path::new("status");
    let (status, old_status) = (new.field("status"), old.field("status"));
    let reserved_path = path.child("reservedFor");
    let mut errors = device::bounded_set(
        status.items("reservedFor"),
        RESERVED_FOR_MAX,
        &reserved_path,
        |consumer, path| {
            let missing =
                ["resource", "name", "uid"].into_iter().filter(|field| consumer.text(field).is_empty());
            missing.map(|field| FieldError::required(&path.child(field), "")).collect()
        },
        |consumer| consumer.text("uid"),
    );
    errors.extend(device_statuses(new, &path.child("devices")));
    if !status.items("reservedFor").is_empty() {
        if !status.has("allocation") {
            let detail = "may not be specified when `allocated` is not set";
            errors.push(FieldError::forbidden(&reserved_path, detail));
        } else if meta::deletion_timestamp(new).is_some()
            && !status
                .items("reservedFor")
                .iter()
                .all(|consumer| old_status.items("reservedFor").contains(consumer))
        {
            let detail =
                "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set";
            errors.push(FieldError::forbidden(&reserved_path, detail));
        }
    }
    let allocation_path = path.child("allocation");
    let allocation = status.field("allocation");
    if old_status.has("allocation") {
        if status.has("allocation") && !same(allocation, old_status.field("allocation")) {
            errors.push(FieldError::invalid(&allocation_path, allocation, IMMUTABLE));
        }
    } else if status.has("allocation") {
        let request_names = RequestNames::of(new.field("spec"));
        errors.extend(self::allocation(allocation, &request_names, &allocation_path));
    }
    errors
}

fn allocation(allocation: &Value, request_names: &RequestNames<'_>, path: &Path<'_>) -> ErrorList {
    let (devices, path) = (allocation.field("devices"), path.child("devices"));
    let mut errors =
        device::bounded(devices.items("results"), RESULTS_MAX, &path.child("results"), |result, path| {
            let mut errors = request_names.validate(result.text("request"), &path.child("request"));
            errors.extend(identity(result, path));
            errors.extend(device::binding_conditions(result, path));
            errors.extend(share_id(result, path));
            errors
        });
    // Configurations of the class and of the claim each may use the limit.
    errors.extend(device::bounded(
        devices.items("config"),
        2 * CONFIG_MAX,
        &path.child("config"),
        |config, path| {
            let sources = ["FromClaim", "FromClass"];
            let mut errors = required_one_of(&path.child("source"), config.text("source"), &sources);
            errors.extend(request_names.validate_list(config, path));
            errors.extend(device::configuration(config, path));
            errors
        },
    ));
    errors
}

fn identity(device: &Value, path: &Path<'_>) -> ErrorList {
    let mut errors = driver_name(device.text("driver"), &path.child("driver"));
    errors.extend(device::pool_name(device.text("pool"), &path.child("pool")));
    errors.extend(dns_label(&path.child("device"), device.text("device")));
    errors
}

fn share_id(device: &Value, path: &Path<'_>) -> Option<FieldError> {
    let id = device.opt_text("shareID")?;
    let hex = |part: &str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let lengths = id.split('-').map(str::len);
    let path = path.child("shareID");
    if !lengths.eq([8, 4, 4, 4, 12]) || !id.split('-').all(hex) {
        let detail = format!("error validating uid: invalid UUID length: {}", id.len());
        return Some(FieldError::invalid_str(&path, id, detail));
    }
    id.bytes().any(|byte| byte.is_ascii_uppercase()).then(|| {
        let detail = "uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with \
                      lowercase hexadecimal characters";
        FieldError::invalid_str(&path, id, detail)
    })
}

fn device_statuses(claim: &Value, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    let allocated = allocated(claim);
    let mut seen = BTreeSet::new();
    let devices = claim.field("status").items("devices");
    for (index, status) in devices.iter().enumerate() {
        let path = path.index(index);
        errors.extend(identity(status, &path));
        errors.extend(share_id(status, &path));
        if !allocated.contains(&device_id(status)) {
            let detail = "must be an allocated device in the claim";
            errors.push(FieldError::invalid_shown(&path, shown_id(status), detail));
        }
        let (conditions, conditions_path) = (status.items("conditions"), path.child("conditions"));
        if conditions.len() > CONDITIONS_MAX {
            errors.push(FieldError::too_many(&conditions_path, conditions.len(), CONDITIONS_MAX));
        }
        errors.extend(names::validate_conditions(conditions, &conditions_path));
        if status.has("data") {
            errors.extend(device::raw_object(status.field("data"), PARAMETERS_MAX, &path.child("data")));
        }
        errors.extend(network_data(status.field("networkData"), &path.child("networkData")));
    }
    for (index, status) in devices.iter().enumerate() {
        if !seen.insert(device_id(status)) {
            let value = Some(shown_id(status));
            errors.push(FieldError { value, ..FieldError::duplicate(&path.index(index), &Value::Null) });
        }
    }
    errors
}

fn shown_id(device: &Value) -> String {
    let [driver, pool, device, share] = device_id(device).map(machinery::field::show_named);
    format!(r#"{{"Driver":{driver},"Pool":{pool},"Device":{device},"ShareID":{share}}}"#)
}

fn network_data(data: &Value, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    for (field, max) in [("interfaceName", INTERFACE_NAME_MAX), ("hardwareAddress", HARDWARE_ADDRESS_MAX)] {
        if data.text(field).len() > max {
            errors.push(FieldError::too_long(&path.child(field), max));
        }
    }
    errors.extend(device::bounded_set(
        data.items("ips"),
        ADDRESSES_MAX,
        &path.child("ips"),
        |address, path| names::valid_interface_address(path, address.as_str().unwrap_or("")),
        |address| address.as_str().unwrap_or(""),
    ));
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn deallocation_removes_device_status() {
        let device = json!({"driver": "d", "pool": "p", "device": "x"});
        let old = json!({"status": {"allocation": {"devices": {"results": [device]}}, "devices": [device]}});
        let mut new = json!({"status": {"devices": [device]}});
        prepare_status_update(&mut new, &old);
        assert_eq!(new, json!({"status": {}}));
    }

    #[test]
    fn device_identity_is_shown_with_all_fields() {
        let device = json!({"driver": "d", "pool": "p", "device": "x"});
        assert_eq!(shown_id(&device), r#"{"Driver":"d","Pool":"p","Device":"x","ShareID":""}"#);
    }

    #[test]
    fn reservations_need_an_allocation() {
        let consumer = json!({"resource": "pods", "name": "p", "uid": "u"});
        let new = json!({"status": {"reservedFor": [consumer]}});
        let errors: Vec<String> =
            validate_status_update(&new, &json!({})).iter().map(FieldError::to_string).collect();
        assert_eq!(
            errors,
            ["status.reservedFor: Forbidden: may not be specified when `allocated` is not set"]
        );
    }
}
