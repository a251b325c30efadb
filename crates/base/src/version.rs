//! The Kubernetes version that the components implement.

use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::metrics::{Metrics, MetricsError};

/// The Kubernetes release whose API and behaviour Ferry implements.
pub const GIT_VERSION: &str = "v1.36.4";

/// Commit and date of the build.
static BUILD: OnceLock<(&str, &str)> = OnceLock::new();

/// Sets the commit and its date that `/version` and metrics report; empty ones are unknown. The first call counts.
pub fn set_build(commit: &'static str, date: &'static str) {
    let _ = BUILD.set((commit, date));
}

/// Commit and date; those of an unstamped build of Kubernetes if unknown.
fn build() -> (&'static str, &'static str) {
    let (commit, date) = BUILD.get().copied().unwrap_or_default();
    let known = |text: &'static str, otherwise| if text.is_empty() { otherwise } else { text };
    (known(commit, "$Format:%H$"), known(date, "1970-01-01T00:00:00Z"))
}

/// Response of `/version`: that of the Kubernetes release, since clients select features by it.
#[must_use]
pub fn version() -> Value {
    let (commit, date) = build();
    json!({
        "major": "1",
        "minor": "36",
        "emulationMajor": "1",
        "emulationMinor": "36",
        "minCompatibilityMajor": "1",
        "minCompatibilityMinor": "35",
        "gitVersion": GIT_VERSION,
        "gitCommit": commit,
        "gitTreeState": "",
        "buildDate": date,
        "goVersion": "go1.26.6",
        "compiler": "gc",
        "platform": platform(),
    })
}

/// Registers `kubernetes_build_info`.
pub fn register_build_info(metrics: &Metrics) -> Result<(), MetricsError> {
    let info = version();
    let fields = [
        ("major", "major"),
        ("minor", "minor"),
        ("git_version", "gitVersion"),
        ("git_commit", "gitCommit"),
        ("git_tree_state", "gitTreeState"),
        ("build_date", "buildDate"),
        ("go_version", "goVersion"),
        ("compiler", "compiler"),
        ("platform", "platform"),
    ];
    let build_info = metrics.gauges(
        "kubernetes_build_info",
        "A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.",
        &fields.map(|(label, _)| label),
    )?;
    build_info.with_label_values(&fields.map(|(_, field)| info[field].as_str().unwrap_or_default())).set(1);
    Ok(())
}

/// Operating system and architecture in Go's terms.
fn platform() -> String {
    let machine = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        other => other,
    };
    format!("{}/{machine}", std::env::consts::OS)
}
