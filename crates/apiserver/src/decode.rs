//! Request bodies: from bytes in any encoding to a normalised, defaulted object of the expected kind.

use crate::negotiate::Encoding;
use crate::options::FieldValidation;
use crate::registry::{Served, Warnings};
use machinery::Value;
use machinery::codec;
use machinery::codec::typed::Report;
use machinery::gvk::split_api_version;
use machinery::schema::SchemaRef;
use machinery::status::{Result, Status};

/// What a body is expected to hold.
#[derive(Clone, Copy)]
pub struct Expected<'a> {
    pub group: &'a str,
    pub version: &'a str,
    pub kind: &'a str,
    pub schema: SchemaRef<'static>,
    pub default: fn(&mut Value),
}

impl<'a> Expected<'a> {
    pub fn of(served: &'a Served) -> Self {
        let kind = served.kind;
        Self {
            group: kind.group,
            version: kind.version,
            kind: kind.kind,
            schema: served.schema,
            default: kind.default,
        }
    }

    fn api_version(&self) -> String {
        machinery::gvk::api_version(self.group, self.version)
    }
}

/// How many bytes of a bad body an error shows.
const SHOWN_BYTES: usize = 1024;

/// Decodes a body; unknown and duplicate fields are refused, warned of or ignored as asked.
pub fn object(
    body: &[u8],
    encoding: Encoding,
    expected: Expected<'_>,
    validation: FieldValidation,
    warnings: &Warnings,
) -> Result<Value> {
    let (mut value, Report { strict: problems, emptied }) = parse(body, encoding, &expected)?;
    if let Some(map) = value.as_object_mut() {
        map.insert("apiVersion".to_owned(), expected.api_version().into());
        map.insert("kind".to_owned(), expected.kind.into());
    }
    if !problems.is_empty() {
        match validation {
            FieldValidation::Ignore => {}
            FieldValidation::Warn => problems.iter().for_each(|problem| warnings.add(problem.clone())),
            FieldValidation::Strict => {
                let why = format!("strict decoding error: {}", problems.join(", "));
                return Err(handled(expected.kind, expected.version, expected.kind, &why));
            }
        }
    }
    warnings.emptied(emptied);
    warnings.set_defaults(&mut value, expected.default);
    Ok(value)
}

/// The normalised value and what was found in it.
fn parse(body: &[u8], encoding: Encoding, expected: &Expected<'_>) -> Result<(Value, Report)> {
    let unrecognized = |error: String| {
        Status::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): couldn't get version/kind; {error} ({})",
            expected.kind,
            summary(body)
        ))
    };
    let (mut value, problems) = match encoding {
        Encoding::Json => {
            let wrong = match codec::json::decode_typed(body, expected.schema) {
                Ok(decoded) if is_expected(&decoded.value, expected) => {
                    return Ok((decoded.value, Report { strict: decoded.strict, emptied: decoded.emptied }));
                }
                typed => typed.err(),
            };
            // Something is wrong: a body of another kind is reported before a field of the wrong type.
            let plain = codec::json::decode(body)
                .map_err(|error| unrecognized(format!("json parse error: {error}")))?;
            if let Some(codec::json::JsonError::Type(error)) = wrong {
                check_kind(&plain.value, expected, body)?;
                return Err(handled(expected.kind, expected.version, expected.kind, &error.to_string()));
            }
            (plain.value, plain.strict)
        }
        Encoding::Yaml => {
            let plain = codec::yaml::decode(body)
                .map_err(|error| unrecognized(format!("yaml parse error: {error}")))?;
            (plain.value, plain.strict)
        }
        Encoding::Cbor => {
            let value = codec::cbor::decode(body)
                .map_err(|error| unrecognized(format!("cbor parse error: {error}")))?;
            (value, Vec::new())
        }
        Encoding::Protobuf => (protobuf(body, expected)?, Vec::new()),
    };
    check_kind(&value, expected, body)?;
    if !value.is_object() {
        value = Value::Object(machinery::Map::new());
    }
    let mut report = codec::typed::normalize(&mut value, expected.schema)
        .map_err(|error| handled(expected.kind, expected.version, expected.kind, &error.to_string()))?;
    report.strict.splice(0..0, problems);
    Ok((value, report))
}

fn is_expected(value: &Value, expected: &Expected<'_>) -> bool {
    let text = |field: &str| value.get(field).and_then(Value::as_str).unwrap_or("");
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    let version_fits =
        api_version.is_empty() || split_api_version(api_version) == (expected.group, expected.version);
    (kind.is_empty() || kind == expected.kind) && version_fits
}

fn protobuf(body: &[u8], expected: &Expected<'_>) -> Result<Value> {
    let envelope = codec::protobuf::unwrap(body).map_err(|error| {
        Status::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): {error} ({})",
            expected.kind,
            summary(body)
        ))
    })?;
    let (group, version) = split_api_version(&envelope.api_version);
    let kind = if envelope.kind.is_empty() { expected.kind } else { &envelope.kind };
    let same = kind == expected.kind && (envelope.api_version.is_empty() || group == expected.group);
    if !same {
        let mut typed = Value::Object(machinery::Map::new());
        typed["apiVersion"] = envelope.api_version.clone().into();
        typed["kind"] = kind.into();
        return Ok(typed);
    }
    let mut value = codec::protobuf::decode_object(envelope.raw, expected.schema).map_err(|error| {
        let version = if version.is_empty() { expected.version } else { version };
        handled(kind, version, expected.kind, &error.to_string())
    })?;
    if let Some(map) = value.as_object_mut() {
        map.insert("apiVersion".to_owned(), expected.api_version().into());
        map.insert("kind".to_owned(), expected.kind.into());
    }
    Ok(value)
}

/// The registry of kinds that Kubernetes names when it does not find one.
pub(crate) fn scheme(group: &str) -> &'static str {
    match group {
        "apiextensions.k8s.io" => "k8s.io/apiextensions-apiserver/pkg/apiserver/apiserver.go:55",
        "apiregistration.k8s.io" => "k8s.io/kube-aggregator/pkg/apiserver/scheme/scheme.go:28",
        _ => "pkg/api/legacyscheme/scheme.go:30",
    }
}

fn handled(kind: &str, version: &str, expected: &str, why: &str) -> Status {
    Status::bad_request(format!("{kind} in version {version:?} cannot be handled as a {expected}: {why}"))
}

/// The body must be of the expected kind, in the version of the request.
fn check_kind(value: &Value, expected: &Expected<'_>, body: &[u8]) -> Result<()> {
    let Some(map) = value.as_object() else {
        let found = match value {
            Value::Array(_) => "array",
            Value::String(_) => "string",
            Value::Number(_) => "number",
            Value::Bool(_) => "bool",
            // An empty document is an object without fields.
            _ => return Ok(()),
        };
        return Err(Status::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): couldn't get version/kind; json parse error: json: cannot unmarshal {found} into Go value of type struct {{ APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }} ({})",
            expected.kind,
            summary(body)
        )));
    };
    for field in ["apiVersion", "kind"] {
        if let Some(other) = map.get(field).filter(|v| !v.is_string() && !v.is_null()) {
            return Err(Status::bad_request(format!(
                "the object provided is unrecognized (must be of type {}): couldn't get version/kind; json parse error: json: cannot unmarshal {} into Go struct field .{field} of type string ({})",
                expected.kind,
                json_type(other),
                summary(body)
            )));
        }
    }
    let api_version = map.get("apiVersion").and_then(Value::as_str).unwrap_or("");
    let kind = map.get("kind").and_then(Value::as_str).filter(|k| !k.is_empty()).unwrap_or(expected.kind);
    let (group, version) = if api_version.is_empty() {
        (expected.group, expected.version)
    } else {
        split_api_version(api_version)
    };
    if (group, version, kind) == (expected.group, expected.version, expected.kind) {
        return Ok(());
    }
    let full = machinery::gvk::api_version(group, version);
    if api::schema::schema().kind(group, version, kind).is_none() {
        return Err(handled(
            kind,
            version,
            expected.kind,
            &format!(
                "no kind {kind:?} is registered for version {full:?} in scheme {:?}",
                scheme(expected.group)
            ),
        ));
    }
    if kind == expected.kind && group == expected.group {
        return Err(Status::bad_request(format!(
            "the API version in the data ({full}) does not match the expected API version ({})",
            expected.api_version()
        )));
    }
    Err(handled(
        kind,
        version,
        expected.kind,
        &format!(
            "converting ({version}.{kind}) to ({}.{}): unknown conversion",
            package(expected.group),
            expected.kind
        ),
    ))
}

/// The word that stands for a group in messages about conversion.
pub(crate) fn package(group: &str) -> &str {
    if group.is_empty() { "core" } else { group.split('.').next().unwrap_or(group) }
}

fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// A body as an error shows it: text, or hexadecimal for what is not text.
fn summary(body: &[u8]) -> String {
    let shown = &body[..body.len().min(SHOWN_BYTES)];
    let more = if body.len() > SHOWN_BYTES { " ..." } else { "" };
    match std::str::from_utf8(shown) {
        Ok(text) => format!("{text}{more}"),
        Err(_) => format!("{}{more}", hex::encode(shown)),
    }
}
