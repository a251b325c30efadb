//! The Kubernetes version that the components implement.

use serde_json::{Value, json};

use crate::metrics::{Metrics, MetricsError};

/// The Kubernetes release whose API and behaviour Ferry implements.
pub const GIT_VERSION: &str = "v1.36.4";

/// Response of `/version`: that of the Kubernetes release, since clients select features by it.
#[must_use]
pub fn version() -> Value {
    json!({
        "major": "1",
        "minor": "36",
        "emulationMajor": "1",
        "emulationMinor": "36",
        "minCompatibilityMajor": "1",
        "minCompatibilityMinor": "35",
        "gitVersion": GIT_VERSION,
        "gitCommit": "$Format:%H$",
        "gitTreeState": "",
        "buildDate": "1970-01-01T00:00:00Z",
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
