//! Policy of a namespace, from its labels.

use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, meta};
use std::fmt;

pub const PREFIX: &str = "pod-security.kubernetes.io/";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    #[default]
    Privileged,
    Baseline,
    Restricted,
}

/// A minor version of the standards, or the latest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    #[default]
    Latest,
    Minor(u32),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LevelVersion {
    pub level: Level,
    pub version: Version,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    pub enforce: LevelVersion,
    pub audit: LevelVersion,
    pub warn: LevelVersion,
}

impl Level {
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        match text {
            "privileged" => Ok(Self::Privileged),
            "baseline" => Ok(Self::Baseline),
            "restricted" => Ok(Self::Restricted),
            _ => Err("must be one of privileged, baseline, restricted"),
        }
    }
}

impl Version {
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        if text == "latest" {
            return Ok(Self::Latest);
        }
        let digits = text.strip_prefix("v1.").filter(|d| d.bytes().all(|b| b.is_ascii_digit()));
        digits
            .filter(|digits| *digits == "0" || !digits.starts_with('0'))
            .and_then(|digits| digits.parse().ok())
            .map(Self::Minor)
            .ok_or(r#"must be "latest" or "v1.x""#)
    }

    /// Reports whether these standards include a check of this minor version.
    pub fn includes(self, minor: u32) -> bool {
        match self {
            Self::Latest => true,
            Self::Minor(own) => own >= minor,
        }
    }
}

/// Newest minor version of the standards.
const NEWEST: u32 = 36;

impl LevelVersion {
    /// Level and version as labels of metrics. All privileged versions are the same.
    pub fn labels(self) -> [std::borrow::Cow<'static, str>; 2] {
        let level = match self.level {
            Level::Privileged => "privileged",
            Level::Baseline => "baseline",
            Level::Restricted => "restricted",
        };
        let version = match self.version {
            Version::Minor(minor) if self.level != Level::Privileged => match minor {
                0..=NEWEST => format!("v1.{minor}").into(),
                _ => "future".into(),
            },
            _ => "latest".into(),
        };
        [level.into(), version]
    }

    #[cfg(test)]
    pub fn parse(text: &str) -> Option<Self> {
        let (level, version) = text.split_once(':')?;
        Some(Self { level: Level::parse(level).ok()?, version: Version::parse(version).ok()? })
    }
}

impl fmt::Display for LevelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.level {
            Level::Privileged => "privileged:",
            Level::Baseline => "baseline:",
            Level::Restricted => "restricted:",
        })?;
        match self.version {
            Version::Latest => f.write_str("latest"),
            Version::Minor(minor) => write!(f, "v1.{minor}"),
        }
    }
}

impl Policy {
    /// Policy of a namespace and the errors in its labels. An invalid enforce level becomes the strictest one, an
    /// invalid audit or warn level has no effect. `defaults` apply to missing labels.
    pub fn of(namespace: &Value, defaults: &Self) -> (Self, ErrorList) {
        let mut errors = Vec::new();
        let mut read = |name, default, fallback| mode(namespace, name, (default, fallback), &mut errors);
        let (enforce, level) = read("enforce", defaults.enforce, Level::Restricted);
        let (audit, _) = read("audit", defaults.audit, Level::Privileged);
        let (mut warn, warns) = read("warn", defaults.warn, Level::Privileged);
        // Without a warn label, the enforce level is warned of, too.
        if warns == Label::Missing && level == Label::Valid && enforce.level > warn.level {
            warn.level = enforce.level;
            if label(namespace, "warn-version").is_none() {
                warn.version = enforce.version;
            }
        }
        (Self { enforce, audit, warn }, errors)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Label {
    Missing,
    Valid,
    Invalid,
}

fn label<'a>(namespace: &'a Value, name: &str) -> Option<&'a str> {
    meta::labels(namespace)?.get(&format!("{PREFIX}{name}")).and_then(Value::as_str)
}

/// Level and version of one mode, and the state of its level label.
fn mode(
    namespace: &Value,
    name: &str,
    (default, fallback): (LevelVersion, Level),
    errors: &mut ErrorList,
) -> (LevelVersion, Label) {
    let metadata = Path::new("metadata");
    let labels = metadata.child("labels");
    let mut refuse = |name: &str, value: &str, why: &str| {
        errors.push(FieldError::invalid_str(&labels.key(&format!("{PREFIX}{name}")), value, why));
    };
    let mut found = default;
    let mut parsed = Label::Missing;
    if let Some(text) = label(namespace, name) {
        parsed = Label::Valid;
        found.level = Level::parse(text).unwrap_or_else(|why| {
            refuse(name, text, why);
            parsed = Label::Invalid;
            fallback
        });
    }
    let version = format!("{name}-version");
    if let Some(text) = label(namespace, &version) {
        found.version = Version::parse(text).unwrap_or_else(|why| {
            refuse(&version, text, why);
            Version::Latest
        });
    }
    (found, parsed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn namespace_labels_make_a_policy() {
        for (labels, enforce, warn, errors) in [
            (json!({}), "privileged:latest", "privileged:latest", 0),
            (
                json!({"enforce": "baseline", "enforce-version": "v1.20"}),
                "baseline:v1.20",
                "baseline:v1.20",
                0,
            ),
            (json!({"enforce": "restricted", "warn": "baseline"}), "restricted:latest", "baseline:latest", 0),
            (
                json!({"enforce": "x", "warn": "y", "audit-version": "v1.01"}),
                "restricted:latest",
                "privileged:latest",
                3,
            ),
        ] {
            let labels: serde_json::Map<_, _> = labels
                .as_object()
                .into_iter()
                .flatten()
                .map(|(key, value)| (format!("{PREFIX}{key}"), value.clone()))
                .collect();
            let (policy, found) = Policy::of(&json!({"metadata": {"labels": labels}}), &Policy::default());
            assert_eq!(
                (policy.enforce.to_string(), policy.warn.to_string()),
                (enforce.to_owned(), warn.to_owned())
            );
            assert_eq!(found.len(), errors, "{found:?}");
        }
    }
}
