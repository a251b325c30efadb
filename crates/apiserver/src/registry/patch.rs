//! Patch: four patch types, each turning the current object into the desired one.

use super::create::CreateAccess;
use super::metadata::{check_size, ensure_namespace};
use super::scale::Wanted;
use super::update::{Change, UpdateStrategy};
use super::{Registry, Served, WriteContext, Written};
use crate::wire::decode;
use crate::wire::options::{FieldValidation, WriteOptions};
use api::Rules;
use machinery::codec;
use machinery::field::{FieldError, Path};
use machinery::gvk;
use machinery::patch;
use machinery::schema::SchemaRef;
use machinery::status::{Result, Status};
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

/// A patch whose body is parsed once, however often it is applied.
struct PreparedPatch {
    kind: PatchKind,
    patch: Value,
    /// Strict validation errors of the patch itself.
    problems: Vec<String>,
}

/// Type of a patched value: the object itself, or a view of it such as its scale.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub schema: SchemaRef<'a>,
    /// `None`: only the schema applies.
    pub rules: Option<&'a dyn Rules>,
}

impl Registry {
    /// Applies a patch; the flag is true if it created the object.
    #[expect(clippy::too_many_arguments, reason = "the parameters of a patch request")]
    pub async fn patch(
        &self,
        served: &Served,
        name: &str,
        strategy: UpdateStrategy<'_>,
        kind: PatchKind,
        body: &[u8],
        options: &WriteOptions,
        context: &WriteContext<'_>,
    ) -> Result<(Written, bool)> {
        if kind.is_apply() {
            return self.apply(served, name, strategy, kind, body, options, context).await;
        }
        let view = View::of(served);
        // The body is parsed only if the object exists: 404 takes precedence over an invalid patch.
        let mut read = None;
        let written = self
            .update(served, name, strategy, true, context, |old| {
                let prepared = match read.take() {
                    Some(prepared) => prepared,
                    None => prepare(kind, body, options.field_validation)?,
                };
                let mut new = view.patched(&prepared, old, options.field_validation, context)?;
                read = Some(prepared);
                ensure_namespace(&mut new, served, context.namespace)?;
                check_name(&new, name)?;
                Ok(Change::Patched(new))
            })
            .await?;
        Ok((written, false))
    }

    #[expect(clippy::too_many_arguments, reason = "the arguments of a patch, passed on")]
    async fn apply(
        &self,
        served: &Served,
        name: &str,
        strategy: UpdateStrategy<'_>,
        kind: PatchKind,
        body: &[u8],
        options: &WriteOptions,
        context: &WriteContext<'_>,
    ) -> Result<(Written, bool)> {
        let (wanted, duplicates) = read_applied(kind, body)?;
        check_size(&wanted)?;
        for duplicate in &duplicates {
            match options.field_validation {
                FieldValidation::Strict => {
                    let why =
                        format!("error strict decoding YAML: error converting YAML to JSON: {duplicate}");
                    return Err(Status::bad_request(why));
                }
                FieldValidation::Warn => crate::wire::decode::warn(duplicate, context.record),
                FieldValidation::Ignore => {}
            }
        }
        let strict = |new: &mut Value| -> Result<()> {
            let kind = &served.kind;
            let shown = format!("{}/{}, Kind={}", kind.group(), kind.version(), kind.kind());
            let report = restore(new, View::of(served), &wanted, &shown)?;
            context.record.input.record_emptied(report.emptied);
            crate::wire::decode::set_defaults(new, &*served.rules, &context.record.input);
            ensure_namespace(new, served, context.namespace)?;
            check_name(new, name)
        };
        let outcome = self
            .update(served, name, strategy, true, context, |_| {
                Ok(Change::Apply { wanted: &wanted, force: options.force, complete: &strict })
            })
            .await;
        match outcome {
            Err(status) if status.code == 404 && context.subresource.is_empty() => {
                let mut new = served.apply(None, &wanted, options.force, context).await?;
                let uid = meta::uid(&new);
                if !uid.is_empty() {
                    let why = format!(
                        "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
                    );
                    return Err(served.conflict(name, why));
                }
                strict(&mut new)?;
                self.admit_create(served, name, &mut new, context).await?;
                Ok((self.insert(served, new, context, CreateAccess::Unchecked).await?, true))
            }
            outcome => outcome.map(|written| (written, false)),
        }
    }
}

/// Normalizes the result of an apply to its type.
pub(super) fn restore(
    new: &mut Value,
    view: View<'_>,
    wanted: &Value,
    type_: &str,
) -> Result<codec::typed::Report> {
    view.restore(new).and_then(|()| view.normalize(new)).map_err(|why| {
        let (namespace, name) = (meta::namespace(wanted), meta::name(wanted));
        let message = format!(
            "failed to convert new object ({namespace}/{name}; {type_}) to proper version: unable to convert unstructured object to {type_}: {why}"
        );
        Status::new(500, "", message)
    })
}

/// Parses the body of an apply, with its duplicate fields.
fn read_applied(kind: PatchKind, body: &[u8]) -> Result<(Value, Vec<String>)> {
    let (mut wanted, duplicates) = if kind == PatchKind::ApplyCbor {
        // As in Kubernetes, the error names YAML even for CBOR.
        let value = codec::cbor::decode(body)
            .map_err(|error| Status::bad_request(format!("error decoding YAML: {error}")))?;
        (value, Vec::new())
    } else {
        let decoded = codec::yaml::decode(body).map_err(|error| {
            Status::bad_request(format!("error decoding YAML: error converting YAML to JSON: {error}"))
        })?;
        (decoded.value, decoded.strict)
    };
    if wanted.is_null() {
        wanted = Value::Object(machinery::Map::new());
    }
    Ok((wanted, duplicates))
}

fn prepare(kind: PatchKind, body: &[u8], validation: FieldValidation) -> Result<PreparedPatch> {
    let strict = validation != FieldValidation::Ignore;
    let prefix = if strict && kind != PatchKind::Strategic { "error decoding patch: " } else { "" };
    let decoded =
        codec::json::decode(body).map_err(|error| Status::bad_request(format!("{prefix}{error}")))?;
    let mut problems = decoded.strict;
    if kind == PatchKind::Json {
        problems.iter_mut().for_each(|problem| problem.insert_str(0, "json patch "));
        if strict {
            problems.extend(patch::json_patch::validate(&decoded.value)?);
        }
    } else if !decoded.value.is_object() && !decoded.value.is_null() {
        return Err(Status::bad_request(format!(
            "{prefix}json: cannot unmarshal {} into Go value of type map[string]interface {{}}",
            json_type(&decoded.value)
        )));
    }
    Ok(PreparedPatch { kind, patch: decoded.value, problems })
}

impl PreparedPatch {
    /// Applies the patch to a value.
    fn applied(&self, old: &Value, schema: SchemaRef<'_>) -> Result<Value> {
        let mut new = old.clone();
        match self.kind {
            PatchKind::Json => patch::json_patch::apply(&mut new, &self.patch)?,
            PatchKind::Strategic => patch::strategic::apply(&mut new, &self.patch, schema)?,
            _ => patch::merge::apply(&mut new, &self.patch)?,
        }
        Ok(new)
    }
}

impl<'a> View<'a> {
    fn of(served: &'a Served) -> Self {
        Self { schema: served.schema(), rules: Some(&*served.rules) }
    }

    /// Converts a merged value back to the form of its type.
    fn restore(&self, value: &mut Value) -> std::result::Result<(), codec::typed::TypeError> {
        let is_typed = self.rules.is_none_or(Rules::is_typed);
        if is_typed { codec::restore::restore(value, self.schema) } else { Ok(()) }
    }

    fn normalize(
        &self,
        value: &mut Value,
    ) -> std::result::Result<codec::typed::Report, codec::typed::TypeError> {
        match self.rules {
            Some(rules) => rules.normalize(value, self.schema),
            None => codec::typed::normalize(value, self.schema),
        }
    }

    /// Patches a view; an apply yields only its fields.
    pub fn wanted(
        &self,
        kind: PatchKind,
        body: &[u8],
        present: &Value,
        options: &WriteOptions,
        context: &WriteContext<'_>,
    ) -> Result<Wanted> {
        if kind.is_apply() {
            let (fields, _) = read_applied(kind, body)?;
            return Ok(Wanted::Applied { fields, force: options.force });
        }
        let prepared = prepare(kind, body, options.field_validation)?;
        self.patched(&prepared, present, options.field_validation, context).map(Wanted::Whole)
    }

    /// Applies the patch to the current value; decodes and defaults the result.
    fn patched(
        &self,
        prepared: &PreparedPatch,
        old: &Value,
        validation: FieldValidation,
        context: &WriteContext<'_>,
    ) -> Result<Value> {
        let mut new = prepared.applied(old, self.schema)?;
        let invalid = |why: &str| {
            let shown = match prepared.kind {
                PatchKind::Strategic => patch::show_plain(&prepared.patch),
                // The value before normalization dropped mistyped parts.
                _ => prepared.applied(old, self.schema).map_or_else(|_| String::new(), |new| new.to_string()),
            };
            let errors = vec![FieldError::invalid_str(&Path::new("patch"), &shown, why)];
            Status::invalid("", "", "", &errors)
        };
        if prepared.kind != PatchKind::Strategic
            && let Some(why) = other_kind(old, &new)
        {
            return Err(invalid(&why));
        }
        // Normalization drops empty lists, but an empty managedFields removes all managers.
        let forgets = new["metadata"]["managedFields"].as_array().is_some_and(Vec::is_empty);
        let restored = match prepared.kind {
            PatchKind::Strategic => self.restore(&mut new),
            _ => Ok(()),
        };
        let report = match restored.and_then(|()| self.normalize(&mut new)) {
            Ok(report) if forgets => {
                meta::metadata_mut(&mut new).insert("managedFields".to_owned(), Value::Array(Vec::new()));
                report
            }
            Ok(report) => report,
            Err(error) => return Err(invalid(&error.to_string())),
        };
        context.record.input.record_emptied(report.emptied);
        if validation != FieldValidation::Ignore {
            let mut all = prepared.problems.clone();
            all.extend(report.strict);
            if !all.is_empty() {
                if validation == FieldValidation::Strict {
                    return Err(invalid(&format!("strict decoding error: {}", all.join(", "))));
                }
                all.into_iter().for_each(|problem| context.record.warn(problem));
            }
        }
        if let Some(rules) = self.rules {
            rules.set_defaults(&mut new);
        }
        Ok(new)
    }
}

/// Kubernetes' error for a patch that changes the kind: the result is first decoded as its new kind.
fn other_kind(old: &Value, new: &Value) -> Option<String> {
    let text = |field: &str| {
        let of = |value: &'_ Value| value[field].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        of(new).or_else(|| of(old)).unwrap_or_default()
    };
    let (kind, api_version) = (text("kind"), text("apiVersion"));
    let (group, version) = gvk::split_api_version(&api_version);
    let old_kind = old["kind"].as_str().unwrap_or_default();
    let (old_group, old_version) = gvk::split_api_version(old["apiVersion"].as_str().unwrap_or_default());
    if (group, kind.as_str()) == (old_group, old_kind) {
        return None;
    }
    api::schema::kind(old_group, old_version, old_kind)?;
    let Some(schema) = api::schema::kind(group, version, &kind) else {
        let scheme = decode::scheme(old_group);
        return Some(format!(
            "no kind {kind:?} is registered for version {api_version:?} in scheme {scheme:?}"
        ));
    };
    match codec::typed::normalize(&mut new.clone(), schema) {
        Err(error) => Some(error.to_string()),
        Ok(_) => {
            let package = decode::package(old_group);
            Some(format!("converting ({version}.{kind}) to ({package}.{old_kind}): unknown conversion"))
        }
    }
}

/// Checks that the object has the name of the request's path.
pub fn check_name(new: &Value, name: &str) -> Result<()> {
    let submitted = meta::name(new);
    if submitted == name {
        return Ok(());
    }
    if submitted.is_empty() {
        return Err(Status::bad_request(format!(
            "the name of the object ({name} based on URL) was undeterminable: name must be provided"
        )));
    }
    Err(Status::bad_request(format!(
        "the name of the object ({submitted}) does not match the name on the URL ({name})"
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn apply_with_invalid_body_is_rejected() {
        for (kind, body, message) in [
            (
                PatchKind::ApplyYaml,
                &b"a: b: c\n"[..],
                "error decoding YAML: error converting YAML to JSON: yaml: mapping values are not allowed in this context",
            ),
            (PatchKind::ApplyCbor, b"\xd9\xd9\xf7", "error decoding YAML: unexpected EOF"),
        ] {
            assert_eq!(read_applied(kind, body).expect_err("a bad body").message, message);
        }
        let (_, duplicates) = read_applied(PatchKind::ApplyYaml, b"a: 1\na: 2\n").expect("read");
        assert_eq!(duplicates, ["yaml: unmarshal errors:\n  line 2: key \"a\" already set in map"]);
    }

    #[test]
    fn patch_with_other_name_is_rejected() {
        let message_of = |object: Value| check_name(&object, "x").map_err(|status| status.message);
        assert_eq!(message_of(json!({"metadata": {"name": "x"}})), Ok(()));
        assert!(
            message_of(json!({"metadata": {"name": "y"}}))
                .is_err_and(|message_of| message_of.contains("does not match"))
        );
        assert!(
            message_of(json!({}))
                .is_err_and(|message_of| message_of.ends_with("undeterminable: name must be provided"))
        );
    }

    #[test]
    fn patch_that_changes_kind_is_rejected() {
        let old =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": {"a": "2"}});
        let with = |field: &str, value: &str| {
            let mut new = old.clone();
            new[field] = value.into();
            other_kind(&old, &new)
        };
        assert_eq!(with("kind", "ConfigMap"), None);
        assert_eq!(with("kind", ""), None);
        assert_eq!(with("kind", "Secret").as_deref(), Some("illegal base64 data at input byte 0"));
        assert_eq!(
            with("kind", "Service").as_deref(),
            Some("converting (v1.Service) to (core.ConfigMap): unknown conversion")
        );
        assert_eq!(
            with("apiVersion", "v2").as_deref(),
            None,
            "another version of the same kind is not another kind"
        );
        let unknown = with("kind", "Nonsense").unwrap_or_default();
        assert!(unknown.starts_with("no kind \"Nonsense\" is registered for version \"v1\""), "{unknown}");
    }
}
