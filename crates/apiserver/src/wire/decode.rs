//! Request bodies: from bytes in any encoding to a normalised, defaulted object of the expected kind.

use crate::registry::{DecodedInput, Served, WriteRecord};
use crate::wire::negotiate::Encoding;
use crate::wire::options::FieldValidation;
use api::Rules;
use machinery::codec;
use machinery::codec::typed::Report;
use machinery::codec::typed::kind_of;
use machinery::field::{FieldError, Path};
use machinery::gvk::split_api_version;
use machinery::schema::SchemaRef;
use machinery::status::{Result, Status};
use machinery::{Value, meta};

/// Expected type of a body.
#[derive(Clone, Copy)]
pub struct Expected<'a> {
    pub group: &'a str,
    pub version: &'a str,
    pub kind: &'a str,
    pub schema: SchemaRef<'a>,
    /// `None`: only the schema applies.
    pub rules: Option<&'a dyn Rules>,
    /// Other versions of the group with an identical format.
    pub also: &'static [&'static str],
}

impl<'a> Expected<'a> {
    pub fn of(served: &'a Served) -> Self {
        let kind = &served.kind;
        Self {
            group: kind.group(),
            version: kind.version(),
            kind: kind.kind(),
            schema: served.schema(),
            rules: Some(&*served.rules),
            also: &[],
        }
    }

    /// A built-in kind that is not stored: only its schema applies.
    pub fn unstored(group: &'static str, version: &'static str, kind: &'static str) -> Result<Self> {
        let schema = api::schema::schema().kind(group, version, kind);
        let schema = schema.ok_or_else(|| Status::internal(format!("no schema for {kind}")))?;
        Ok(Self { group, version, kind, schema, rules: None, also: &[] })
    }

    fn takes(&self, group: &str, version: &str) -> bool {
        group == self.group && (version == self.version || self.also.contains(&version))
    }

    fn api_version(&self) -> String {
        machinery::gvk::api_version(self.group, self.version)
    }

    fn is_typed(&self) -> bool {
        self.rules.is_none_or(Rules::is_typed)
    }
}

/// Bytes of an invalid body that an error shows.
const SHOWN_BYTES: usize = 30;
/// Prefix of the YAML lines rejected by strict validation.
const YAML_PREFIX: &str = "yaml: unmarshal errors:\n";

/// Decodes a body; unknown and duplicate fields are rejected, warned about or ignored as requested.
pub fn object(
    body: &[u8],
    encoding: Encoding,
    expected: Expected<'_>,
    validation: FieldValidation,
    record: &WriteRecord,
) -> Result<Value> {
    let (mut value, Report { strict: problems, emptied }) = parse(body, encoding, &expected)?;
    if let Some(map) = value.as_object_mut() {
        map.insert("apiVersion".to_owned(), expected.api_version().into());
        map.insert("kind".to_owned(), expected.kind.into());
    }
    if !problems.is_empty() {
        match validation {
            FieldValidation::Ignore => {}
            FieldValidation::Warn => problems.iter().for_each(|problem| warn(problem, record)),
            FieldValidation::Strict => {
                let why = format!("strict decoding error: {}", problems.join(", "));
                return Err(handled(expected.kind, expected.version, expected.kind, &why));
            }
        }
    }
    record.input.record_emptied(emptied);
    if let Some(rules) = expected.rules {
        set_defaults(&mut value, rules, &record.input);
    }
    Ok(value)
}

/// Sets the defaults of a decoded body.
pub(crate) fn set_defaults(object: &mut Value, rules: &dyn Rules, input: &DecodedInput) {
    let has_labels = |object: &Value| meta::metadata(object).is_some_and(|m| m.contains_key("labels"));
    let had_labels = has_labels(object);
    rules.set_defaults(object);
    if !had_labels && has_labels(object) {
        input.record_defaulted_labels();
    }
}

/// Adds a warning for each line of a problem in a YAML document.
pub(crate) fn warn(problem: &str, record: &WriteRecord) {
    match problem.strip_prefix(YAML_PREFIX) {
        Some(lines) => lines.lines().map(str::trim).for_each(|line| record.warn(line)),
        None => record.warn(problem),
    }
}

/// The normalised value and the problems of the body.
fn parse(body: &[u8], encoding: Encoding, expected: &Expected<'_>) -> Result<(Value, Report)> {
    let unrecognized = |error: String| {
        Status::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): {error} ({})",
            expected.kind,
            summary(body)
        ))
    };
    let mut mistyped = None;
    let (mut value, problems) = match encoding {
        Encoding::Json if !expected.is_typed() => {
            let plain = codec::json::decode(body).map_err(|error| {
                unrecognized(format!("couldn't get version/kind; json parse error: {error}"))
            })?;
            (plain.value, plain.strict)
        }
        Encoding::Json => {
            match codec::json::decode_typed(body, expected.schema) {
                Ok(decoded) if is_expected(&decoded.value, expected) => {
                    return Ok((decoded.value, Report { strict: decoded.strict, emptied: decoded.emptied }));
                }
                Err(codec::json::JsonError::Type(error)) => mistyped = Some(error),
                Err(codec::json::JsonError::Budget(error)) => return Err(unrecognized(error.to_string())),
                _ => {}
            }
            // On error, a body of another kind is reported before a field of the wrong type.
            let plain = codec::json::decode(body).map_err(|error| {
                unrecognized(format!("couldn't get version/kind; json parse error: {error}"))
            })?;
            (plain.value, plain.strict)
        }
        Encoding::Yaml => {
            let plain = codec::yaml::decode(body).map_err(|error| unrecognized(error.to_string()))?;
            (plain.value, plain.strict)
        }
        Encoding::Cbor => {
            let value = codec::cbor::decode(body).map_err(|error| {
                let error = if body.is_empty() { "EOF".to_owned() } else { error.to_string() };
                unrecognized(format!("unable to determine group/version/kind: {error}"))
            })?;
            (value, Vec::new())
        }
        Encoding::Protobuf => (protobuf(body, expected)?, Vec::new()),
    };
    if expected.is_typed() {
        check_kind(&value, expected, body)?;
    } else {
        check_custom_kind(&value, expected, body)?;
    }
    if let Some(error) = mistyped {
        return Err(handled(expected.kind, expected.version, expected.kind, &error.to_string()));
    }
    if !value.is_object() {
        value = Value::Object(machinery::Map::new());
    }
    let normalized = match expected.rules {
        Some(rules) => rules.normalize(&mut value, expected.schema),
        None => codec::typed::normalize(&mut value, expected.schema),
    };
    let mut report = normalized
        .map_err(|error| handled(expected.kind, expected.version, expected.kind, &error.to_string()))?;
    report.strict.splice(0..0, problems);
    Ok((value, report))
}

fn is_expected(value: &Value, expected: &Expected<'_>) -> bool {
    let text = |field: &str| value.get(field).and_then(Value::as_str).unwrap_or("");
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    let (group, version) = split_api_version(api_version);
    let version_fits = api_version.is_empty() || expected.takes(group, version);
    (kind.is_empty() || kind == expected.kind) && version_fits
}

fn protobuf(body: &[u8], expected: &Expected<'_>) -> Result<Value> {
    let unrecognized = |error: &str| {
        Status::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): {error} ({})",
            expected.kind,
            summary(body)
        ))
    };
    if body.is_empty() || body == codec::protobuf::MAGIC {
        return Err(unrecognized(if body.is_empty() { "empty data" } else { "empty body" }));
    }
    let envelope = codec::protobuf::unwrap(body).map_err(|error| unrecognized(&error.to_string()))?;
    let (group, version) = split_api_version(&envelope.api_version);
    let kind = if envelope.kind.is_empty() { expected.kind } else { &envelope.kind };
    let same = kind == expected.kind && (envelope.api_version.is_empty() || expected.takes(group, version));
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

/// Scheme that Kubernetes names in errors about unknown kinds.
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

/// The same for custom resources, whose bodies must contain kind and apiVersion.
fn check_custom_kind(value: &Value, expected: &Expected<'_>, body: &[u8]) -> Result<()> {
    let text = |field: &str| value.get(field).and_then(Value::as_str).unwrap_or("");
    if text("kind").is_empty() {
        return Err(Status::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): Object 'Kind' is missing in '{}' ({})",
            expected.kind,
            String::from_utf8_lossy(body),
            summary(body)
        )));
    }
    let (group, version) = split_api_version(text("apiVersion"));
    if !expected.takes(group, version) {
        return Err(Status::bad_request(format!(
            "the API version in the data ({}) does not match the expected API version ({})",
            text("apiVersion"),
            expected.api_version()
        )));
    }
    if text("kind") != expected.kind {
        let why = format!("must be {}", expected.kind);
        let errors = vec![FieldError::invalid_str(&Path::new("kind"), text("kind"), why)];
        return Err(Status::invalid(group, text("kind"), meta::name(value), &errors));
    }
    Ok(())
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
                kind_of(other),
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
    if kind == expected.kind && expected.takes(group, version) {
        return Ok(());
    }
    let full = machinery::gvk::api_version(group, version);
    if api::schema::kind(group, version, kind).is_none() {
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

/// Go package of a group in conversion errors.
pub(crate) fn package(group: &str) -> &str {
    if group.is_empty() { "core" } else { group.split('.').next().unwrap_or(group) }
}

/// Start of a body in an error: text if it begins with a brace, else hexadecimal.
fn summary(body: &[u8]) -> String {
    let shown = &body[..body.len().min(SHOWN_BYTES)];
    let more = if body.len() > SHOWN_BYTES { " ..." } else { "" };
    match body.first() {
        None => "<empty>".to_owned(),
        Some(b'{') => format!("{}{more}", String::from_utf8_lossy(shown)),
        Some(_) => format!("{}{more}", hex::encode(shown)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config_map(body: &[u8], encoding: Encoding) -> (Result<Value>, WriteRecord) {
        let schema = api::schema::schema().kind("", "v1", "ConfigMap").expect("a kind");
        let expected =
            Expected { group: "", version: "v1", kind: "ConfigMap", schema, rules: None, also: &["v0"] };
        let record = WriteRecord::default();
        (object(body, encoding, expected, FieldValidation::Warn, &record), record)
    }

    #[test]
    fn invalid_body_is_truncated_in_error() {
        for (body, shown) in [
            (&b""[..], "<empty>"),
            (b"null", "6e756c6c"),
            (b"{}", "{}"),
            (b"{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\"}", "{\"apiVersion\":\"v1\",\"kind\":\"Con ..."),
            (
                b"\xffapiVersion: v1\nkind: ConfigMap\n",
                "ff61706956657273696f6e3a2076310a6b696e643a20436f6e6669674d61 ...",
            ),
        ] {
            assert_eq!(summary(body), shown);
        }
    }

    #[test]
    fn invalid_body_returns_kubernetes_error() {
        let name = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","generation":N}}"#;
        for (body, encoding, message) in [
            (
                name.replace('N', "1.0").into_bytes(),
                Encoding::Json,
                "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: json: cannot unmarshal number 1.0 into Go struct field ObjectMeta.metadata.generation of type int64",
            ),
            (
                b"a:\n\tb: c\n".to_vec(),
                Encoding::Yaml,
                "the object provided is unrecognized (must be of type ConfigMap): yaml: line 2: found character that cannot start any token (613a0a09623a20630a)",
            ),
            (
                Vec::new(),
                Encoding::Protobuf,
                "the object provided is unrecognized (must be of type ConfigMap): empty data (<empty>)",
            ),
            (
                b"k8s\0".to_vec(),
                Encoding::Protobuf,
                "the object provided is unrecognized (must be of type ConfigMap): empty body (6b387300)",
            ),
            (
                codec::protobuf::wrap("v2", "ConfigMap", &[]),
                Encoding::Protobuf,
                "ConfigMap in version \"v2\" cannot be handled as a ConfigMap: no kind \"ConfigMap\" is registered for version \"v2\" in scheme \"pkg/api/legacyscheme/scheme.go:30\"",
            ),
        ] {
            let refused = config_map(&body, encoding).0.expect_err("a bad body");
            assert_eq!((refused.code, refused.message.as_str()), (400, message));
        }
    }

    #[test]
    fn body_in_equivalent_version_is_accepted() {
        for (version, taken) in [("v1", true), ("v0", true), ("v2", false)] {
            let body =
                format!(r#"{{"apiVersion":"{version}","kind":"ConfigMap","metadata":{{"name":"a"}}}}"#);
            let read = config_map(body.as_bytes(), Encoding::Json).0;
            assert_eq!(read.is_ok(), taken, "{version}");
            let yaml = format!("apiVersion: {version}\nkind: ConfigMap\nmetadata: {{name: a}}\n");
            let read = config_map(yaml.as_bytes(), Encoding::Yaml).0;
            assert_eq!(read.is_ok(), taken, "{version}");
        }
    }

    #[test]
    fn yaml_problem_adds_one_warning_per_line() {
        let body = b"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n  name: b\ndata: {x: y, x: z}\n";
        let (read, record) = config_map(body, Encoding::Yaml);
        assert!(read.is_ok());
        assert_eq!(
            record.take_warnings(),
            ["line 5: key \"name\" already set in map", "line 6: key \"x\" already set in map"]
        );
    }
}
