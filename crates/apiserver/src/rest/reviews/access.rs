//! SubjectAccessReview, LocalSubjectAccessReview and SelfSubjectAccessReview.

use crate::authorize::{Attributes, Decision};
use crate::context::Context;
use crate::rest::Rest;
use crate::user::UserInfo;
use machinery::field::{ErrorList, FieldError, Path};
use machinery::selector::field::{FieldSelector, escape};
use machinery::selector::label::LabelSelector;
use machinery::status::{Result, Status};
use machinery::{Value, meta, names};
use serde_json::json;

/// Handles SubjectAccessReview.
pub async fn any_subject(rest: &Rest, review: Value) -> Result<Value> {
    let spec = &review["spec"];
    let mut errors = validate_attributes(spec, true);
    errors.extend(validate_metadata(&review, &[], "must be empty"));
    refuse(&errors)?;
    let user = subject(spec);
    answer(rest, &user, review).await
}

/// Handles LocalSubjectAccessReview.
pub async fn local(rest: &Rest, context: &Context, review: Value) -> Result<Value> {
    let spec = &review["spec"];
    let mut errors = validate_attributes(spec, true);
    errors.extend(validate_metadata(&review, &["namespace"], "must be empty except for namespace"));
    let wanted = spec["resourceAttributes"]["namespace"].as_str().unwrap_or("");
    if !spec["resourceAttributes"].is_null() && wanted != context.info.namespace {
        let path = Path::new("spec.resourceAttributes.namespace");
        errors.push(FieldError::invalid_str(&path, wanted, "must match metadata.namespace"));
    }
    let other = &spec["nonResourceAttributes"];
    if !other.is_null() {
        let path = Path::new("spec.nonResourceAttributes");
        errors.push(FieldError::invalid_shown(
            &path,
            shown_path(other),
            "disallowed on this kind of request",
        ));
    }
    refuse(&errors)?;
    let user = subject(spec);
    answer(rest, &user, review).await
}

/// Handles SelfSubjectAccessReview.
pub async fn own(rest: &Rest, context: &Context, review: Value) -> Result<Value> {
    let mut errors = validate_attributes(&review["spec"], false);
    errors.extend(validate_metadata(&review, &[], "must be empty"));
    refuse(&errors)?;
    answer(rest, &context.user, review).await
}

async fn answer(rest: &Rest, user: &UserInfo, mut review: Value) -> Result<Value> {
    let spec = &review["spec"];
    let selectors = selectors(&spec["resourceAttributes"]);
    let attributes = attributes(spec, &selectors);
    let mut status = json!({"allowed": false});
    let mut problems = Vec::new();
    match rest.registry.authorization.decide(user, &attributes).await {
        Ok(decision) => {
            let (allowed, reason) = match &decision {
                Decision::Allowed(reason) => (true, &**reason),
                Decision::NoOpinion(reason) | Decision::Denied(reason) => (false, reason.as_str()),
            };
            status["allowed"] = allowed.into();
            if let Decision::Denied(_) = decision {
                status["denied"] = true.into();
            }
            if !reason.is_empty() {
                status["reason"] = reason.into();
            }
        }
        Err(error) => problems.push(error.message),
    }
    problems.extend(unreadable_selectors(&spec["resourceAttributes"]));
    if !problems.is_empty() {
        status["evaluationError"] = problems.join("; ").into();
    }
    review["status"] = status;
    Ok(review)
}

fn subject(spec: &Value) -> UserInfo {
    let text = |field: &str| spec[field].as_str().unwrap_or("").to_owned();
    let list = |value: &Value| {
        let values = value.as_array().into_iter().flatten();
        values.filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>()
    };
    let extra = spec["extra"].as_object().into_iter().flatten();
    UserInfo {
        name: text("user"),
        uid: text("uid"),
        groups: list(&spec["groups"]),
        extra: extra.map(|(key, values)| (key.clone(), list(values))).collect(),
    }
}

/// Field and label selector of a review in request syntax. Invalid requirements are omitted.
fn selectors(resource: &Value) -> [String; 2] {
    let text = |field: &str, is_good: fn(&Value) -> bool, write: fn(&Value) -> String| {
        let given = &resource[field];
        let requirements = given["requirements"].as_array().map_or(&[][..], Vec::as_slice);
        let written: Vec<String> = requirements.iter().filter(|one| is_good(one)).map(write).collect();
        match written.is_empty() {
            true => given["rawSelector"].as_str().unwrap_or("").to_owned(),
            false => written.join(","),
        }
    };
    [
        text("fieldSelector", is_field_requirement, written_field),
        text("labelSelector", is_label_requirement, written_label),
    ]
}

fn written_field(requirement: &Value) -> String {
    let operator = if requirement["operator"] == "In" { "=" } else { "!=" };
    let value = escape(requirement["values"][0].as_str().unwrap_or(""));
    format!("{}{operator}{value}", requirement["key"].as_str().unwrap_or(""))
}

fn written_label(requirement: &Value) -> String {
    let key = requirement["key"].as_str().unwrap_or("");
    let values = requirement["values"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let values = values.collect::<Vec<_>>().join(",");
    match requirement["operator"].as_str() {
        Some("In") => format!("{key} in ({values})"),
        Some("NotIn") => format!("{key} notin ({values})"),
        Some("Exists") => key.to_owned(),
        _ => format!("!{key}"),
    }
}

fn attributes<'a>(spec: &'a Value, [fields, labels]: &'a [String; 2]) -> Attributes<'a> {
    let resource = &spec["resourceAttributes"];
    if resource.is_null() {
        let other = &spec["nonResourceAttributes"];
        let text = |field: &str| other[field].as_str().unwrap_or("");
        return Attributes { verb: text("verb"), path: text("path"), ..Attributes::default() };
    }
    let text = |field: &str| resource[field].as_str().unwrap_or("");
    Attributes {
        verb: text("verb"),
        is_resource: true,
        group: text("group"),
        version: if text("version").is_empty() { "*" } else { text("version") },
        resource: text("resource"),
        subresource: text("subresource"),
        namespace: text("namespace"),
        name: text("name"),
        path: "",
        field_selector: fields,
        label_selector: labels,
    }
}

/// Validation errors without a kind, as in Kubernetes.
fn refuse(errors: &ErrorList) -> Result<()> {
    if errors.is_empty() { Ok(()) } else { Err(Status::invalid("authorization.k8s.io", "", "", errors)) }
}

fn validate_attributes(spec: &Value, with_subject: bool) -> ErrorList {
    let path = Path::new("spec");
    let (resource, other) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
    let mut errors = ErrorList::new();
    if !resource.is_null() && !other.is_null() {
        let path = path.child("nonResourceAttributes");
        let why = "cannot be specified in combination with resourceAttributes";
        errors.push(FieldError::invalid_shown(&path, shown_path(other), why));
    }
    if resource.is_null() && other.is_null() {
        let path = path.child("resourceAttributes");
        let why = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
        errors.push(FieldError::invalid(&path, other, why));
    }
    let user = spec["user"].as_str().unwrap_or("");
    let groups = spec["groups"].as_array().is_some_and(|groups| !groups.is_empty());
    if with_subject && user.is_empty() && !groups {
        let why = "at least one of user or group must be specified";
        errors.push(FieldError::invalid_str(&path.child("user"), user, why));
    }
    let path = Path::new("spec.resourceAttributes");
    for field in ["fieldSelector", "labelSelector"] {
        if !resource[field].is_null() {
            let path = path.child(field);
            errors.extend(validate_selector(&resource[field], field == "labelSelector", &path));
        }
    }
    errors
}

fn validate_selector(selector: &Value, labels: bool, path: &Path<'_>) -> ErrorList {
    let mut errors = ErrorList::new();
    let raw = selector["rawSelector"].as_str().unwrap_or("");
    let requirements = selector["requirements"].as_array().map_or(&[][..], Vec::as_slice);
    if !raw.is_empty() && !requirements.is_empty() {
        let why = "may not specified at the same time as requirements";
        errors.push(FieldError::invalid_str(&path.child("rawSelector"), raw, why));
    }
    if raw.is_empty() && requirements.is_empty() {
        let why = format!("when {path} is specified, requirements or rawSelector is required");
        errors.push(FieldError::required(&path.child("requirements"), why));
    }
    let list = path.child("requirements");
    for (index, requirement) in requirements.iter().enumerate() {
        let path = list.index(index);
        let key = requirement["key"].as_str().unwrap_or("");
        if !labels && key.is_empty() {
            errors.push(FieldError::required(&path.child("key"), "must be specified"));
        }
        let values = requirement["values"].as_array().map_or(&[][..], Vec::as_slice);
        match requirement["operator"].as_str().unwrap_or("") {
            "In" | "NotIn" if values.is_empty() => {
                let why = "must be specified when `operator` is 'In' or 'NotIn'";
                errors.push(FieldError::required(&path.child("values"), why));
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.push(FieldError::forbidden(&path.child("values"), why));
            }
            _ => {}
        }
        if labels {
            errors.extend(names::validate_label_name(key, &path.child("key")));
            let path = path.child("values");
            for (index, value) in values.iter().enumerate() {
                let value = value.as_str().unwrap_or("");
                for why in names::label_value(value) {
                    errors.push(FieldError::invalid_str(&path.index(index), value, why));
                }
            }
        }
    }
    errors
}

/// Metadata may only have the fields of `allowed`, and those set by the server.
fn validate_metadata(review: &Value, allowed: &[&str], why: &str) -> Option<FieldError> {
    let metadata = meta::metadata(review)?;
    let odd = |field: &String| field != "managedFields" && !allowed.contains(&field.as_str());
    metadata
        .keys()
        .any(odd)
        .then(|| FieldError::invalid_shown(&Path::new("metadata"), shown_metadata(&review["metadata"]), why))
}

/// `nonResourceAttributes` as shown in messages.
fn shown_path(attributes: &Value) -> String {
    let text = |field: &str| Value::from(attributes[field].as_str().unwrap_or(""));
    format!(r#"{{"Path":{},"Verb":{}}}"#, text("path"), text("verb"))
}

/// Metadata as shown in messages: fields in declaration order.
fn shown_metadata(metadata: &Value) -> String {
    const METADATA: &[&str] = &[
        "name",
        "generateName",
        "namespace",
        "resourceVersion",
        "generation",
        "labels",
        "annotations",
        "ownerReferences",
        "finalizers",
        "managedFields",
    ];
    const OWNER: &[&str] = &["apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion"];
    const MANAGED: &[&str] =
        &["manager", "operation", "apiVersion", "time", "fieldsType", "fieldsV1", "subresource"];
    in_order(metadata, METADATA, |field, value| {
        let order = match field {
            "ownerReferences" => OWNER,
            "managedFields" => MANAGED,
            _ => return value.to_string(),
        };
        let items = value.as_array().into_iter().flatten();
        let items: Vec<String> =
            items.map(|item| in_order(item, order, |_, value| value.to_string())).collect();
        format!("[{}]", items.join(","))
    })
}

fn in_order(object: &Value, fields: &[&str], show: impl Fn(&str, &Value) -> String) -> String {
    let present = fields.iter().filter(|field| !object[**field].is_null());
    let members: Vec<String> =
        present.map(|field| format!("\"{field}\":{}", show(field, &object[*field]))).collect();
    format!("{{{}}}", members.join(","))
}

/// Evaluation errors about invalid selectors, which are ignored.
fn unreadable_selectors(resource: &Value) -> Vec<String> {
    let raw = |field: &str| resource[field]["rawSelector"].as_str().unwrap_or("");
    let fields = raw("fieldSelector");
    let labels = raw("labelSelector");
    let broken = [
        ("fieldSelector", FieldSelector::parse(fields).is_err(), is_field_requirement as fn(&Value) -> bool),
        ("labelSelector", LabelSelector::parse(labels).is_err(), is_label_requirement),
    ];
    let reported = broken.into_iter().filter_map(|(field, unreadable, is_good)| {
        let requirements = resource[field]["requirements"].as_array().map_or(&[][..], Vec::as_slice);
        let good = requirements.iter().filter(|requirement| is_good(requirement)).count();
        let partially = if good > 0 { "partially " } else { "" };
        (unreadable || good < requirements.len())
            .then(|| format!("spec.resourceAttributes.{field} {partially}ignored due to parse error"))
    });
    reported.collect()
}

fn is_label_requirement(requirement: &Value) -> bool {
    matches!(requirement["operator"].as_str(), Some("In" | "NotIn" | "Exists" | "DoesNotExist"))
}

/// Field requirements have exactly one value.
fn is_field_requirement(requirement: &Value) -> bool {
    matches!(requirement["operator"].as_str(), Some("In" | "NotIn"))
        && requirement["values"].as_array().is_some_and(|values| values.len() == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn review_requirements_reach_authorizers() {
        let resource = json!({
            "fieldSelector": {"requirements": [
                {"key": "spec.nodeName", "operator": "In", "values": ["a,b"]},
                {"key": "x", "operator": "In", "values": ["a", "b"]},
            ]},
            "labelSelector": {"requirements": [
                {"key": "app", "operator": "NotIn", "values": ["a", "b"]}, {"key": "old", "operator": "DoesNotExist"},
            ]},
        });
        let [fields, labels] = selectors(&resource);
        assert_eq!(fields, "spec.nodeName=a\\,b");
        assert_eq!(labels, "app notin (a,b),!old");
        assert!(FieldSelector::parse(&fields).is_ok() && LabelSelector::parse(&labels).is_ok());
    }

    #[test]
    fn metadata_is_shown_in_declaration_order() {
        let metadata = json!({
            "managedFields": [{"apiVersion": "v1", "manager": "m", "operation": "Update"}],
            "labels": {"a": "b"},
            "name": "n",
        });
        assert_eq!(
            shown_metadata(&metadata),
            r#"{"name":"n","labels":{"a":"b"},"managedFields":[{"manager":"m","operation":"Update","apiVersion":"v1"}]}"#
        );
        assert_eq!(shown_path(&json!({"verb": "get"})), r#"{"Path":"","Verb":"get"}"#);
    }

    #[test]
    fn invalid_selectors_are_reported() {
        let reported = |requirements: Value| {
            unreadable_selectors(&json!({"labelSelector": {"requirements": requirements}})).join("; ")
        };
        let (good, bad) = (json!({"key": "a", "operator": "Exists"}), json!({"key": "a", "operator": "5"}));
        assert_eq!(reported(json!([good])), "");
        let ignored = "spec.resourceAttributes.labelSelector ignored due to parse error";
        assert_eq!(reported(json!([bad])), ignored);
        assert_eq!(reported(json!([good, bad])), ignored.replace("ignored", "partially ignored"));
        let fields = json!({"fieldSelector": {"requirements": [{"key": "a", "operator": "Exists"}]}});
        assert_eq!(unreadable_selectors(&fields).len(), 1);
    }
}
