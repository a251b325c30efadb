//! Configuration files in Kubernetes' format: YAML or JSON with apiVersion and kind, without unknown fields.

use machinery::Value;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};

/// Error of reading a configuration file.
#[derive(Debug, thiserror::Error)]
pub enum ConfigurationError {
    #[error("failed to read {}", .path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("invalid configuration file {}: {reason}", .path.display())]
    Invalid { path: PathBuf, reason: String },
}

impl ConfigurationError {
    pub fn invalid(path: &Path, reason: impl ToString) -> Self {
        Self::Invalid { path: path.to_owned(), reason: reason.to_string() }
    }
}

/// Reads a configuration of this kind, in one of the given versions.
pub fn read<T: DeserializeOwned>(
    path: &Path,
    group: &str,
    versions: &[&str],
    kind: &str,
) -> Result<T, ConfigurationError> {
    let text =
        std::fs::read(path).map_err(|source| ConfigurationError::Read { path: path.to_owned(), source })?;
    parse(&text, group, versions, kind).map_err(|reason| ConfigurationError::invalid(path, reason))
}

/// As [`read`], from the file's content.
pub fn parse<T: DeserializeOwned>(
    text: &[u8],
    group: &str,
    versions: &[&str],
    kind: &str,
) -> Result<T, String> {
    let decoded = machinery::codec::yaml::decode(text).map_err(|error| error.to_string())?;
    if let Some(objection) = decoded.strict.first() {
        return Err(format!("strict decoding error: {objection}"));
    }
    let mut value = decoded.value;
    let Value::Object(fields) = &mut value else { return Err(format!("not a {kind}")) };
    let mut take = |field: &str| fields.remove(field).and_then(|value| value.as_str().map(str::to_owned));
    let (api_version, given) = (take("apiVersion").unwrap_or_default(), take("kind").unwrap_or_default());
    let known = versions.iter().any(|version| api_version == format!("{group}/{version}"));
    if given != kind || !known {
        return Err(format!(
            "no kind {given:?} is registered for version {api_version:?}; wanted is {kind} of {group}/{}",
            versions.first().unwrap_or(&"")
        ));
    }
    serde_json::from_value(value).map_err(|error| format!("strict decoding error: {error}"))
}

/// Parses a duration in Kubernetes' format.
pub fn duration(text: &str) -> Option<std::time::Duration> {
    let nanoseconds = machinery::codec::time::parse_duration(text).ok()?;
    u64::try_from(nanoseconds).ok().map(std::time::Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Thing {
        size: i64,
    }

    #[test]
    fn configuration_is_parsed_strictly() {
        let parsed = |text: &str| parse::<Thing>(text.as_bytes(), "g.io", &["v1", "v1beta1"], "Thing");
        assert_eq!(parsed("apiVersion: g.io/v1\nkind: Thing\nsize: 3\n"), Ok(Thing { size: 3 }));
        assert_eq!(parsed("apiVersion: g.io/v1beta1\nkind: Thing\nsize: 3\n"), Ok(Thing { size: 3 }));
        for (text, want) in [
            (
                "apiVersion: g.io/v2\nkind: Thing\nsize: 3\n",
                "no kind \"Thing\" is registered for version \"g.io/v2\"",
            ),
            ("apiVersion: g.io/v1\nkind: Other\n", "wanted is Thing of g.io/v1"),
            ("apiVersion: g.io/v1\nkind: Thing\nsize: 3\nsize: 4\n", "strict decoding error"),
            ("apiVersion: g.io/v1\nkind: Thing\nsize: 3\ncolour: red\n", "unknown field `colour`"),
            ("- 1", "not a Thing"),
            ("{", "yaml"),
        ] {
            let error = parsed(text).expect_err(text);
            assert!(error.contains(want), "{error}");
        }
    }
}
