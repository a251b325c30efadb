//! Device requests of claims and classes: requests, constraints, configuration, selector expressions.

use super::checks::{dns_label, dns_subdomain, invalid_each, one_of, required_one_of};
use super::dump::{Field, Shape};
use super::storage::driver_name;
use super::values::strings;
use crate::value::Fields;
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};
use machinery::names;
use std::collections::{BTreeMap, BTreeSet};

pub const REQUESTS_MAX: usize = 32;
const CONSTRAINTS_MAX: usize = 32;
pub const CONFIG_MAX: usize = 32;
const SELECTORS_MAX: usize = 32;
const SUBREQUESTS_MAX: usize = 8;
const EXPRESSION_MAX: usize = 10 * 1024;
pub const PARAMETERS_MAX: usize = 10 * 1024;
const ID_MAX: usize = 32;
pub const EFFECTS: &[&str] = &["NoExecute", "NoSchedule", "None"];

/// Validates the items of a list of limited length; items of an over-long list are not validated.
pub fn bounded(
    items: &[Value],
    max: usize,
    path: &Path<'_>,
    mut check: impl FnMut(&Value, &Path<'_>) -> ErrorList,
) -> ErrorList {
    if items.len() > max {
        return vec![FieldError::too_many(path, items.len(), max)];
    }
    items.iter().enumerate().flat_map(|(index, item)| check(item, &path.index(index))).collect()
}

/// Same as above, with unique keys.
pub fn bounded_set<'a>(
    items: &'a [Value],
    max: usize,
    path: &Path<'_>,
    check: impl FnMut(&Value, &Path<'_>) -> ErrorList,
    key: impl Fn(&'a Value) -> &'a str,
) -> ErrorList {
    let mut errors = bounded(items, max, path, check);
    if items.len() > max {
        return errors;
    }
    let mut seen = BTreeSet::new();
    for (index, item) in items.iter().enumerate() {
        let key = key(item);
        if !seen.insert(key) {
            errors.push(FieldError::duplicate(&path.index(index), &key.into()));
        }
    }
    errors
}

fn text_of(item: &Value) -> &str {
    item.as_str().unwrap_or("")
}

fn name_of(item: &Value) -> &str {
    item.text("name")
}

/// Requests of a claim with the subrequests of each.
pub struct RequestNames<'a>(BTreeMap<&'a str, BTreeSet<&'a str>>);

impl<'a> RequestNames<'a> {
    /// Requests of a claim's `spec`.
    pub fn of(spec: &'a Value) -> Self {
        let requests = spec.field("devices").items("requests").iter();
        let names = requests.map(|request| {
            (request.text("name"), request.items("firstAvailable").iter().map(name_of).collect())
        });
        Self(names.collect())
    }

    fn has(&self, name: &str) -> bool {
        match name.split_once('/') {
            None => self.0.contains_key(name),
            Some((request, subrequest)) => {
                self.0.get(request).is_some_and(|subrequests| subrequests.contains(subrequest))
            }
        }
    }

    /// A reference to a request, or to a request and one of its subrequests.
    pub fn validate(&self, name: &str, path: &Path<'_>) -> ErrorList {
        let unknown = || {
            let detail = "must be the name of a request in the claim or the name of a request and a subrequest \
                          separated by '/'";
            FieldError::invalid_str(path, name, detail)
        };
        if name.matches('/').count() > 1 {
            return vec![unknown()];
        }
        let mut errors: ErrorList = name.split('/').flat_map(|part| dns_label(path, part)).collect();
        if !self.has(name) {
            errors.push(unknown());
        }
        errors
    }

    /// A list of unique references.
    pub fn validate_list(&self, owner: &Value, path: &Path<'_>) -> ErrorList {
        bounded_set(
            owner.items("requests"),
            REQUESTS_MAX,
            &path.child("requests"),
            |name, path| self.validate(text_of(name), path),
            text_of,
        )
    }
}

/// The `spec` of a claim.
pub fn claim_spec(spec: &Value, path: &Path<'_>) -> ErrorList {
    let (devices, path) = (spec.field("devices"), path.child("devices"));
    let request_names = RequestNames::of(spec);
    let mut errors =
        bounded_set(devices.items("requests"), REQUESTS_MAX, &path.child("requests"), request, name_of);
    errors.extend(bounded(
        devices.items("constraints"),
        CONSTRAINTS_MAX,
        &path.child("constraints"),
        |constraint, path| self::constraint(constraint, &request_names, path),
    ));
    errors.extend(bounded(devices.items("config"), CONFIG_MAX, &path.child("config"), |config, path| {
        let mut errors = request_names.validate_list(config, path);
        errors.extend(configuration(config, path));
        errors
    }));
    errors
}

fn request(request: &Value, path: &Path<'_>) -> ErrorList {
    let mut errors = dns_label(&path.child("name"), request.text("name"));
    let subrequests = request.items("firstAvailable");
    match (request.has("exactly"), !subrequests.is_empty()) {
        (false, false) => {
            let detail = "exactly one of `exactly` or `firstAvailable` is required";
            errors.push(FieldError::required(path, detail));
        }
        (true, true) => {
            let detail =
                "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set";
            errors.push(FieldError::invalid(path, &Value::Null, detail));
        }
        (true, false) => errors.extend(exact_request(request.field("exactly"), &path.child("exactly"))),
        (false, true) => errors.extend(bounded_set(
            subrequests,
            SUBREQUESTS_MAX,
            &path.child("firstAvailable"),
            |subrequest, path| {
                let mut errors = dns_label(&path.child("name"), subrequest.text("name"));
                errors.extend(exact_request(subrequest, path));
                errors
            },
            name_of,
        )),
    }
    errors
}

fn exact_request(request: &Value, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    let (class, class_path) = (request.text("deviceClassName"), path.child("deviceClassName"));
    if class.is_empty() {
        errors.push(FieldError::required(&class_path, ""));
    } else {
        errors.extend(dns_subdomain(&class_path, class));
    }
    errors.extend(selectors(request, path));
    let (count, count_path) = (request.int("count"), path.child("count"));
    match request.text("allocationMode") {
        "All" if count != 0 => {
            let detail = "must not be specified when allocationMode is 'All'";
            errors.push(FieldError::invalid(&count_path, &count.into(), detail));
        }
        "ExactCount" if count <= 0 => {
            errors.push(FieldError::invalid(&count_path, &count.into(), "must be greater than zero"));
        }
        mode => errors.extend(one_of(&path.child("allocationMode"), mode, &["All", "ExactCount"])),
    }
    let path = path.child("tolerations");
    for (index, toleration) in request.items("tolerations").iter().enumerate() {
        errors.extend(self::toleration(toleration, &path.index(index)));
    }
    errors
}

/// The `selectors` of a request or a class.
pub fn selectors(owner: &Value, path: &Path<'_>) -> ErrorList {
    bounded(owner.items("selectors"), SELECTORS_MAX, &path.child("selectors"), |selector, path| {
        let path = path.child("cel");
        if !selector.has("cel") {
            return vec![FieldError::required(&path, "")];
        }
        let (text, path) = (selector.field("cel").text("expression"), path.child("expression"));
        if text.len() > EXPRESSION_MAX {
            return vec![FieldError::too_long(&path, EXPRESSION_MAX)];
        }
        match expressions::device::check(text) {
            Ok(()) => Vec::new(),
            Err(why) => vec![FieldError::invalid_str(&path, text, why)],
        }
    })
}

fn toleration(toleration: &Value, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    if !toleration.text("key").is_empty() {
        errors.extend(names::validate_label_name(toleration.text("key"), &path.child("key")));
    }
    let (value, value_path) = (toleration.text("value"), path.child("value"));
    match toleration.text("operator") {
        "Exists" if !value.is_empty() => {
            errors.push(FieldError::invalid_str(&value_path, value, "must be empty for operator `Exists`"));
        }
        "Exists" => {}
        "Equal" => errors.extend(invalid_each(&value_path, value, names::label_value(value))),
        other => errors.extend(required_one_of(&path.child("operator"), other, &["Equal", "Exists"])),
    }
    if !toleration.text("effect").is_empty() {
        errors.extend(one_of(&path.child("effect"), toleration.text("effect"), EFFECTS));
    }
    errors
}

fn constraint(constraint: &Value, request_names: &RequestNames<'_>, path: &Path<'_>) -> ErrorList {
    let mut errors = request_names.validate_list(constraint, path);
    let named = ["matchAttribute", "distinctAttribute"]
        .into_iter()
        .find_map(|field| Some((field, constraint.opt_text(field)?)));
    match named {
        Some((field, attribute)) => errors.extend(fully_qualified_name(attribute, &path.child(field))),
        None => {
            let detail = "exactly one of \"matchAttribute\" or \"distinctAttribute\" is required, but multiple \
                          fields are set";
            errors.push(FieldError::required(path, detail));
        }
    }
    errors
}

/// Opaque configuration for a driver.
pub fn configuration(config: &Value, path: &Path<'_>) -> ErrorList {
    let path = path.child("opaque");
    if !config.has("opaque") {
        return vec![FieldError::required(&path, "")];
    }
    let opaque = config.field("opaque");
    let mut errors = driver_name(opaque.text("driver"), &path.child("driver"));
    errors.extend(raw_object(opaque.field("parameters"), PARAMETERS_MAX, &path.child("parameters")));
    errors
}

/// A JSON object of limited size.
pub fn raw_object(value: &Value, max: usize, path: &Path<'_>) -> ErrorList {
    if value.is_null() {
        return vec![FieldError::required(path, "")];
    }
    if value.to_string().len() > max {
        return vec![FieldError::too_long(path, max)];
    }
    if !value.is_object() {
        return vec![FieldError::invalid_str(path, "<value omitted>", "must be a valid JSON object")];
    }
    Vec::new()
}

/// Name of an attribute or capacity, with or without a domain.
pub fn qualified_name(name: &str, path: &Path<'_>) -> ErrorList {
    let parts: Vec<&str> = name.split('/').collect();
    match parts[..] {
        [id] => identifier(id, path),
        [domain, id] => {
            let mut errors = Vec::new();
            if domain.is_empty() {
                errors.push(FieldError::invalid_str(path, "", "the domain must not be empty"));
            } else {
                errors.extend(driver_name(domain, path));
            }
            if id.is_empty() {
                errors.push(FieldError::invalid_str(path, "", "the name must not be empty"));
            } else {
                errors.extend(identifier(id, path));
            }
            errors
        }
        // Names with more slashes are accepted, as in Kubernetes.
        _ => Vec::new(),
    }
}

fn fully_qualified_name(name: &str, path: &Path<'_>) -> ErrorList {
    let mut errors = qualified_name(name, path);
    if !name.contains('/') {
        let detail = "a fully qualified name must be a domain and a name separated by a slash";
        errors.push(FieldError::invalid_str(path, name, detail));
    }
    errors
}

fn identifier(id: &str, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    if id.len() > ID_MAX {
        errors.push(FieldError::too_long(path, ID_MAX));
    }
    errors.extend(invalid_each(path, id, names::c_identifier(id)));
    errors
}

/// Sets the time of a taint that has none.
pub fn default_taint(taint: &mut Value) {
    if !taint.has("timeAdded") {
        taint.set("timeAdded", crate::clock::now_text());
    }
}

/// A taint of a device; an unchanged effect is not validated again.
pub fn taint(taint: &Value, old: Option<&Value>, path: &Path<'_>) -> ErrorList {
    let mut errors = names::validate_label_name(taint.text("key"), &path.child("key"));
    let (value, effect) = (taint.text("value"), taint.text("effect"));
    errors.extend(invalid_each(&path.child("value"), value, names::label_value(value)));
    if old.is_none_or(|old| old.text("effect") != effect) {
        errors.extend(required_one_of(&path.child("effect"), effect, EFFECTS));
    }
    errors
}

/// The name of a pool: subdomains separated by slashes.
pub fn pool_name(name: &str, path: &Path<'_>) -> ErrorList {
    if name.is_empty() {
        return vec![FieldError::required(path, "")];
    }
    let mut errors = Vec::new();
    if name.len() > names::DNS_SUBDOMAIN_MAX {
        errors.push(FieldError::too_long(path, names::DNS_SUBDOMAIN_MAX));
    }
    errors.extend(name.split('/').flat_map(|part| dns_subdomain(path, part)));
    errors
}

/// Binding conditions and binding failure conditions: both lists or none.
pub fn binding_conditions(owner: &Value, path: &Path<'_>) -> ErrorList {
    const MAX: usize = 4;
    let fields = ["bindingConditions", "bindingFailureConditions"];
    let mut errors = Vec::new();
    for field in fields {
        errors.extend(bounded(owner.items(field), MAX, &path.child(field), |condition, path| {
            names::validate_label_name(text_of(condition), path)
        }));
    }
    let wanted: BTreeSet<&str> = strings(owner.items(fields[0])).collect();
    for field in fields {
        let path = path.child(field);
        let mut seen = BTreeSet::new();
        for (index, condition) in strings(owner.items(field)).enumerate() {
            let path = path.index(index);
            if !seen.insert(condition) {
                errors.push(FieldError::duplicate(&path, &condition.into()));
            }
            if field == fields[1] && wanted.contains(condition) {
                let detail = "bindingFailureConditions must not overlap with bindingConditions";
                errors.push(FieldError::invalid_str(&path, condition, detail));
            }
        }
    }
    for (field, other) in [(fields[0], fields[1]), (fields[1], fields[0])] {
        if owner.items(field).is_empty() && !owner.items(other).is_empty() {
            let detail = format!("{field} are required to use {other}");
            errors.push(FieldError::invalid(&path.child(field), owner.field(field), detail));
        }
    }
    errors
}

/// Sets defaults of the requests in a claim's `spec`.
pub fn default_claim_spec(spec: &mut Value) {
    let Some(devices) = spec.field_mut("devices") else {
        return;
    };
    for request in devices.items_mut("requests") {
        if let Some(exactly) = request.field_mut("exactly") {
            default_request(exactly);
        }
        request.items_mut("firstAvailable").iter_mut().for_each(default_request);
    }
}

pub fn default_request(request: &mut Value) {
    request.default_if_zero("allocationMode", "ExactCount");
    if request.text("allocationMode") == "ExactCount" {
        request.default_if_zero("count", 1);
    }
    for toleration in request.items_mut("tolerations") {
        toleration.default_if_zero("operator", "Equal");
    }
}

/// A claim's `spec` in the form shown in messages.
pub const CLAIM_SPEC: &[Field] = &[("devices", "Devices", Shape::Struct(DEVICES))];
const DEVICES: &[Field] = &[
    ("requests", "Requests", Shape::List(REQUEST)),
    ("constraints", "Constraints", Shape::List(CONSTRAINT)),
    ("config", "Config", Shape::List(CONFIG)),
];
const REQUEST: &[Field] = &[
    ("name", "Name", Shape::Text),
    ("exactly", "Exactly", Shape::Pointer(EXACTLY)),
    ("firstAvailable", "FirstAvailable", Shape::List(SUBREQUEST)),
];
const EXACTLY: &[Field] = &[
    ("deviceClassName", "DeviceClassName", Shape::Text),
    ("selectors", "Selectors", Shape::List(SELECTOR)),
    ("allocationMode", "AllocationMode", Shape::Text),
    ("count", "Count", Shape::Int),
    ("adminAccess", "AdminAccess", Shape::Optional),
    ("tolerations", "Tolerations", Shape::List(TOLERATION)),
    ("capacity", "Capacity", Shape::Pointer(CAPACITY)),
];
const SUBREQUEST: &[Field] = &[
    ("name", "Name", Shape::Text),
    ("deviceClassName", "DeviceClassName", Shape::Text),
    ("selectors", "Selectors", Shape::List(SELECTOR)),
    ("allocationMode", "AllocationMode", Shape::Text),
    ("count", "Count", Shape::Int),
    ("tolerations", "Tolerations", Shape::List(TOLERATION)),
    ("capacity", "Capacity", Shape::Pointer(CAPACITY)),
];
const SELECTOR: &[Field] = &[("cel", "CEL", Shape::Pointer(&[("expression", "Expression", Shape::Text)]))];
const CAPACITY: &[Field] = &[("requests", "Requests", Shape::Optional)];
const TOLERATION: &[Field] = &[
    ("key", "Key", Shape::Text),
    ("operator", "Operator", Shape::Text),
    ("value", "Value", Shape::Text),
    ("effect", "Effect", Shape::Text),
    ("tolerationSeconds", "TolerationSeconds", Shape::Optional),
];
const CONSTRAINT: &[Field] = &[
    ("requests", "Requests", Shape::Optional),
    ("matchAttribute", "MatchAttribute", Shape::Optional),
    ("distinctAttribute", "DistinctAttribute", Shape::Optional),
];
const CONFIG: &[Field] = &[
    ("requests", "Requests", Shape::Optional),
    (
        "opaque",
        "Opaque",
        Shape::Pointer(&[("driver", "Driver", Shape::Text), ("parameters", "Parameters", Shape::Optional)]),
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn request_references_resolve_to_requests_and_subrequests() {
        let spec = json!({"devices": {"requests": [
            {"name": "a"}, {"name": "b", "firstAvailable": [{"name": "c"}]},
        ]}});
        let request_names = RequestNames::of(&spec);
        for (name, ok) in
            [("a", true), ("b", true), ("b/c", true), ("a/c", false), ("b/c/d", false), ("x", false)]
        {
            assert_eq!(request_names.validate(name, &Path::new("r")).is_empty(), ok, "{name}");
        }
    }

    #[test]
    fn device_requests_get_defaults() {
        let mut spec = json!({"devices": {"requests": [
            {"exactly": {}}, {"firstAvailable": [{"allocationMode": "All"}]},
        ]}});
        default_claim_spec(&mut spec);
        assert_eq!(
            spec["devices"]["requests"],
            json!([
                {"exactly": {"allocationMode": "ExactCount", "count": 1}},
                {"firstAvailable": [{"allocationMode": "All"}]},
            ])
        );
    }

    #[test]
    fn binding_conditions_need_both_lists() {
        let cases = [
            (json!({}), 0),
            (json!({"bindingConditions": ["a"], "bindingFailureConditions": ["b"]}), 0),
            (json!({"bindingConditions": ["a"]}), 1),
            (json!({"bindingConditions": ["a"], "bindingFailureConditions": ["a"]}), 1),
        ];
        for (device, count) in cases {
            assert_eq!(binding_conditions(&device, &Path::new("d")).len(), count, "{device}");
        }
    }
}
