//! Patch: four kinds of it, each turning the present object into the wanted one.

use super::create::tracking;
use super::update::{Change, Door};
use super::{Registry, Served, WriteContext, Written};
use crate::admission::{Attributes, Operation};
use crate::decode::strict_problems;
use crate::options::{FieldValidation, WriteOptions};
use machinery::apply;
use machinery::codec;
use machinery::field::{FieldError, Path, show_str};
use machinery::patch::{self, PatchError};
use machinery::status::{Details, Result, Status};
use machinery::{Value, meta};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchKind {
    Json,
    Merge,
    Strategic,
    ApplyYaml,
    ApplyCbor,
}

impl PatchKind {
    pub const ALL: [(&'static str, PatchKind); 5] = [
        ("application/json-patch+json", PatchKind::Json),
        ("application/merge-patch+json", PatchKind::Merge),
        ("application/strategic-merge-patch+json", PatchKind::Strategic),
        ("application/apply-patch+yaml", PatchKind::ApplyYaml),
        ("application/apply-patch+cbor", PatchKind::ApplyCbor),
    ];

    pub fn is_apply(self) -> bool {
        matches!(self, Self::ApplyYaml | Self::ApplyCbor)
    }
}

/// A patch whose body has been read once, however often it is applied.
enum Prepared {
    Json(patch::json_patch::Patch, Vec<String>),
    Merge(Value, Vec<String>),
    Strategic(Value, Vec<String>),
}

impl Registry {
    /// Applies a patch; the flag says that the object was created by it.
    pub async fn patch(
        &self,
        served: &Served,
        name: &str,
        door: Door,
        kind: PatchKind,
        body: &[u8],
        options: &WriteOptions,
        context: &WriteContext<'_>,
    ) -> Result<(Written, bool)> {
        if kind.is_apply() {
            return self.apply(served, name, door, kind, body, options, context).await;
        }
        let prepared = prepare(kind, body, options.field_validation)?;
        let written = self
            .update(served, name, door, true, context, |old| {
                let new = patched(&prepared, old, served, options.field_validation, context)?;
                check_name(&new, name)?;
                Ok(Change::Replace(new))
            })
            .await?;
        Ok((written, false))
    }

    #[expect(clippy::too_many_arguments, reason = "the arguments of a patch, passed on")]
    async fn apply(
        &self,
        served: &Served,
        name: &str,
        door: Door,
        kind: PatchKind,
        body: &[u8],
        options: &WriteOptions,
        context: &WriteContext<'_>,
    ) -> Result<(Written, bool)> {
        let (mut wanted, duplicates) = if kind == PatchKind::ApplyCbor {
            let value = codec::cbor::decode(body)
                .map_err(|error| Status::bad_request(format!("error decoding CBOR: {error}")))?;
            (value, Vec::new())
        } else {
            let decoded = codec::yaml::decode(body)
                .map_err(|error| Status::bad_request(format!("error decoding YAML: {error}")))?;
            (decoded.value, decoded.duplicates)
        };
        if wanted.is_null() {
            wanted = Value::Object(machinery::Map::new());
        }
        let strict = |new: &mut Value| -> Result<()> {
            codec::typed::normalize(new, served.schema)
                .map_err(|error| Status::bad_request(error.to_string()))?;
            (served.kind.default)(new);
            check_name(new, name)?;
            for duplicate in &duplicates {
                match options.field_validation {
                    FieldValidation::Strict => {
                        return Err(Status::bad_request(format!(
                            "error strict decoding YAML: error converting YAML to JSON: key {duplicate:?} already set in map"
                        )));
                    }
                    FieldValidation::Warn => {
                        context.warnings.add(format!("key {duplicate:?} already set in map"));
                    }
                    FieldValidation::Ignore => {}
                }
            }
            Ok(())
        };
        let outcome = self
            .update(served, name, door, true, context, |old| {
                let tracking = tracking(served, context);
                let mut new = apply::apply(Some(old), &wanted, &tracking, options.force).map_err(apply_error)?;
                strict(&mut new)?;
                Ok(Change::Applied(new))
            })
            .await;
        match outcome {
            Err(status) if status.code == 404 && context.subresource.is_empty() => {
                let mut new = apply::apply(None, &wanted, &tracking(served, context), options.force)
                    .map_err(apply_error)?;
                let uid = meta::uid(&new);
                if !uid.is_empty() {
                    let why = format!(
                        "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
                    );
                    return Err(served.conflict(name, why));
                }
                strict(&mut new)?;
                super::metadata::ensure_namespace(&mut new, served, context.namespace)?;
                let attributes = Attributes::new(served, context, Operation::Create).named(name);
                self.admission.mutate(self, &attributes, Some(&mut new), None).await?;
                Ok((self.insert(served, new, context).await?, true))
            }
            outcome => outcome.map(|written| (written, false)),
        }
    }
}

fn apply_error(error: apply::ApplyError) -> Status {
    error.into_status()
}

fn prepare(kind: PatchKind, body: &[u8], validation: FieldValidation) -> Result<Prepared> {
    let strict = validation != FieldValidation::Ignore;
    let value = |prefix: &str| -> Result<(Value, Vec<String>)> {
        let decoded = codec::json::decode(body)
            .map_err(|error| Status::bad_request(format!("{prefix}{error}")))?;
        if !decoded.value.is_object() {
            let found = json_type(&decoded.value);
            return Err(Status::bad_request(format!(
                "{prefix}json: cannot unmarshal {found} into Go value of type map[string]interface {{}}"
            )));
        }
        Ok((decoded.value, strict_problems(decoded.duplicates, Vec::new())))
    };
    Ok(match kind {
        PatchKind::Json => {
            let (patch, problems) = patch::json_patch::parse(body, strict).map_err(patch_error)?;
            Prepared::Json(patch, problems)
        }
        PatchKind::Merge => {
            let (value, problems) = value(if strict { "error decoding patch: " } else { "" })?;
            Prepared::Merge(value, problems)
        }
        _ => {
            let (value, problems) = value("")?;
            Prepared::Strategic(value, problems)
        }
    })
}

/// The object the patch makes of the present one, decoded and defaulted.
fn patched(
    prepared: &Prepared,
    old: &Value,
    served: &Served,
    validation: FieldValidation,
    context: &WriteContext<'_>,
) -> Result<Value> {
    let mut new = old.clone();
    let problems = match prepared {
        Prepared::Json(patch, problems) => {
            patch::json_patch::apply(&mut new, patch).map_err(patch_error)?;
            problems
        }
        Prepared::Merge(value, problems) => {
            patch::merge::apply(&mut new, value);
            problems
        }
        Prepared::Strategic(value, problems) => {
            patch::strategic::apply(&mut new, value, served.schema).map_err(patch_error)?;
            problems
        }
    };
    let shown = || match prepared {
        Prepared::Strategic(value, _) => show_str(&go_map(value)),
        _ => show_str(&new.to_string()),
    };
    let invalid = |shown: String, why: &str| {
        let errors = vec![FieldError::invalid_shown(&Path::new("patch"), shown, why)];
        Status::invalid("", "", "", &errors)
    };
    let mut checked = new.clone();
    let report = codec::typed::normalize(&mut checked, served.schema)
        .map_err(|error| invalid(shown(), &error.to_string()))?;
    if validation != FieldValidation::Ignore {
        let mut all = problems.clone();
        all.extend(strict_problems(Vec::new(), report.unknown));
        if !all.is_empty() {
            if validation == FieldValidation::Strict {
                return Err(invalid(shown(), &format!("strict decoding error: {}", all.join(", "))));
            }
            all.into_iter().for_each(|problem| context.warnings.add(problem));
        }
    }
    (served.kind.default)(&mut checked);
    Ok(checked)
}

fn patch_error(error: PatchError) -> Status {
    match &error {
        PatchError::TooManyOperations { .. } => Status::too_large(error.to_string()),
        PatchError::BadRequest(_) => Status::bad_request(error.to_string()),
        PatchError::Unprocessable(_) => {
            tracing::debug!(%error, "patch does not fit the object");
            Status::new(422, "Invalid", "the server rejected our request due to an error in our request")
                .with_details(Details::default())
        }
    }
}

/// A patch may not rename the object it was sent to.
pub fn check_name(new: &Value, name: &str) -> Result<()> {
    let given = meta::name(new);
    if given == name {
        return Ok(());
    }
    Err(Status::bad_request(format!(
        "the name of the object ({given}) does not match the name on the URL ({name})"
    )))
}

fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Array(_) => "array",
        Value::String(_) => "string",
        Value::Number(_) => "number",
        Value::Bool(_) => "bool",
        _ => "object",
    }
}

/// A map as Go prints it: what the message about a bad strategic patch shows.
fn go_map(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let inner: Vec<String> = map.iter().map(|(k, v)| format!("{k}:{}", go_map(v))).collect();
            format!("map[{}]", inner.join(" "))
        }
        Value::Array(items) => {
            let inner: Vec<String> = items.iter().map(go_map).collect();
            format!("[{}]", inner.join(" "))
        }
        Value::String(text) => text.clone(),
        Value::Null => "<nil>".to_owned(),
        other => other.to_string(),
    }
}
