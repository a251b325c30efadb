//! Environment variables and the references that fill them.

use crate::pod_spec::checks::{dns_label, invalid_texts, qualified_name, required_text};
use crate::value::Fields;
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, names};

/// `fieldPath`s supported in environment variables, sorted.
const ENV_FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

/// `fieldPath`s supported in downward API volumes, sorted.
pub const VOLUME_FIELDS: [&str; 5] =
    ["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];

/// All valid `fieldPath` labels.
const KNOWN_FIELDS: [&str; 14] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.serviceAccountName",
    "spec.schedulerName",
    "status.phase",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

const RESOURCE_FIELDS: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];

const BYTE_DIVISORS: [&str; 13] =
    ["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];

pub fn validate_env(variables: &[Value], path: &Path<'_>, errors: &mut ErrorList) {
    for (index, variable) in variables.iter().enumerate() {
        let path = path.index(index);
        let name = variable.text("name");
        if name.is_empty() {
            errors.push(FieldError::required(&path.child("name"), ""));
        } else {
            invalid_texts(names::relaxed_env_var_name(name), name, &path.child("name"), errors);
        }
        if variable.has("valueFrom") {
            validate_value_from(variable, &path.child("valueFrom"), errors);
        }
    }
}

fn validate_value_from(variable: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let from = variable.field("valueFrom");
    let mut sources = 0;
    let mut source = |name: &'static str, check: fn(&Value, &Path<'_>, &mut ErrorList)| {
        if from.has(name) {
            sources += 1;
            check(from.field(name), &path.child(name), errors);
        }
    };
    source("fieldRef", |value, path, errors| validate_field_ref(value, &ENV_FIELDS, path, errors));
    source("resourceFieldRef", |value, path, errors| validate_resource_field_ref(value, false, path, errors));
    source("configMapKeyRef", validate_key_ref);
    source("secretKeyRef", validate_key_ref);
    source("fileKeyRef", validate_file_key_ref);
    let problem = if sources == 0 {
        "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
    } else if !variable.text("value").is_empty() {
        "may not be specified when `value` is not empty"
    } else if sources > 1 {
        "may not have more than one field specified at a time"
    } else {
        return;
    };
    errors.push(FieldError::invalid_str(path, "", problem));
}

/// A `fieldRef` to one of `allowed`, or to one label or annotation.
pub fn validate_field_ref(reference: &Value, allowed: &[&str], path: &Path<'_>, errors: &mut ErrorList) {
    for name in ["apiVersion", "fieldPath"] {
        if reference.text(name).is_empty() {
            errors.push(FieldError::required(&path.child(name), ""));
            return;
        }
    }
    let version = reference.text("apiVersion");
    let field_path = reference.text("fieldPath");
    let subscript = split_subscript(field_path);
    let problem = if version != "v1" {
        format!("unsupported pod version: {version}")
    } else {
        match subscript {
            Some(("metadata.annotations" | "metadata.labels", _)) => String::new(),
            Some(_) => format!("field label does not support subscript: {field_path}"),
            None if KNOWN_FIELDS.contains(&field_path) || field_path == "spec.host" => String::new(),
            None => format!("field label not supported: {field_path}"),
        }
    };
    if !problem.is_empty() {
        let detail = format!("error converting fieldPath: {problem}");
        errors.push(FieldError::invalid_str(&path.child("fieldPath"), field_path, detail));
        return;
    }
    match subscript {
        Some(("metadata.annotations", key)) => qualified_name(&key.to_lowercase(), path, errors),
        Some((_, key)) => qualified_name(key, path, errors),
        None => {
            let field_path = if field_path == "spec.host" { "spec.nodeName" } else { field_path };
            if !allowed.contains(&field_path) {
                let path = path.child("fieldPath");
                errors.push(FieldError::not_supported(&path, &Value::from(field_path), allowed));
            }
        }
    }
}

/// Splits `metadata.labels['key']` into path and key.
fn split_subscript(field_path: &str) -> Option<(&str, &str)> {
    let (path, key) = field_path.strip_suffix("']")?.split_once("['")?;
    (!path.is_empty()).then_some((path, key))
}

/// A `resourceFieldRef`; in a volume it must name a container.
pub fn validate_resource_field_ref(reference: &Value, volume: bool, path: &Path<'_>, errors: &mut ErrorList) {
    let resource = reference.text("resource");
    let huge_pages = resource.starts_with("limits.hugepages-") || resource.starts_with("requests.hugepages-");
    if volume && reference.text("containerName").is_empty() {
        errors.push(FieldError::required(&path.child("containerName"), ""));
    } else if resource.is_empty() {
        errors.push(FieldError::required(&path.child("resource"), ""));
    } else if !RESOURCE_FIELDS.contains(&resource) && !huge_pages {
        let path = path.child("resource");
        errors.push(FieldError::not_supported(&path, &Value::from(resource), &RESOURCE_FIELDS));
    }
    let divisor = reference.text("divisor");
    if divisor.is_empty() || divisor == "0" {
        return;
    }
    let (allowed, detail): (&[&str], _) = match resource {
        "limits.cpu" | "requests.cpu" => {
            (&["1m", "1"], "only divisor's values 1m and 1 are supported with the cpu resource".to_owned())
        }
        _ => {
            let what = match resource {
                "limits.memory" | "requests.memory" => "memory",
                "limits.ephemeral-storage" | "requests.ephemeral-storage" => "local ephemeral storage",
                _ if huge_pages => "hugepages",
                _ => return,
            };
            let values = BYTE_DIVISORS.join(", ");
            (&BYTE_DIVISORS, format!("only divisor's values {values} are supported with the {what} resource"))
        }
    };
    if !allowed.contains(&divisor) {
        errors.push(FieldError::invalid_str(&path.child("divisor"), resource, detail));
    }
}

/// A key of a ConfigMap or Secret.
fn validate_key_ref(reference: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let (name, key) = (reference.text("name"), reference.text("key"));
    invalid_texts(names::dns_subdomain(name, false), name, &path.child("name"), errors);
    if key.is_empty() {
        errors.push(FieldError::required(&path.child("key"), ""));
    } else {
        invalid_texts(names::config_map_key(key), key, &path.child("key"), errors);
    }
}

fn validate_file_key_ref(reference: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let key = reference.text("key");
    required_text(reference, "key", path, errors);
    if !key.is_empty() {
        invalid_texts(names::relaxed_env_var_name(key), key, &path.child("key"), errors);
    }
    let volume = reference.text("volumeName");
    required_text(reference, "volumeName", path, errors);
    if !volume.is_empty() {
        dns_label(volume, &path.child("volumeName"), errors);
    }
    let file = reference.text("path");
    required_text(reference, "path", path, errors);
    if !file.is_empty() {
        super::paths::no_backsteps(file, &path.child("path"), errors);
    }
}

pub fn validate_env_from(sources: &[Value], path: &Path<'_>, errors: &mut ErrorList) {
    for (index, source) in sources.iter().enumerate() {
        let item = path.index(index);
        let prefix = source.text("prefix");
        if !prefix.is_empty() {
            invalid_texts(names::relaxed_env_var_name(prefix), prefix, &item.child("prefix"), errors);
        }
        let mut found = 0;
        for name in ["configMapRef", "secretRef"] {
            if !source.has(name) {
                continue;
            }
            found += 1;
            let item = item.child(name);
            let referred = source.field(name).text("name");
            if referred.is_empty() {
                errors.push(FieldError::required(&item.child("name"), ""));
            } else {
                invalid_texts(names::dns_subdomain(referred, true), referred, &item.child("name"), errors);
            }
        }
        let problem = match found {
            0 => "must specify one of: `configMapRef` or `secretRef`",
            1 => continue,
            _ => "may not have more than one field specified at a time",
        };
        errors.push(FieldError::invalid_str(path, "", problem));
    }
}

/// `fileKeyRef`s must refer to `emptyDir` volumes of the pod.
pub fn validate_file_key_volumes(spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    super::for_each_container(spec, path, |container, path| {
        for (index, variable) in container.items("env").iter().enumerate() {
            let reference = variable.field("valueFrom").field("fileKeyRef");
            if reference.is_null() {
                continue;
            }
            let name = reference.text("volumeName");
            let env = path.child("env");
            let item = env.index(index);
            let from = item.child("valueFrom");
            let file = from.child("fileKeyRef");
            let path = file.child("volumeName");
            match spec.items("volumes").iter().rev().find(|volume| volume.text("name") == name) {
                None => errors.push(FieldError::not_found(&path, &Value::from(name))),
                Some(volume) if !volume.has("emptyDir") => {
                    let detail = "referenced volume must be of type emptyDir";
                    errors.push(FieldError::invalid_str(&path, name, detail));
                }
                Some(_) => {}
            }
        }
    });
}
