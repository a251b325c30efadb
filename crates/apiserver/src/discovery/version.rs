//! `/version`: which Kubernetes this server is.

use serde_json::{Value, json};

/// The release of Kubernetes whose API this server speaks.
pub const GIT_VERSION: &str = "v1.36.4";

/// The answer to `/version`: that of the Kubernetes release, since clients decide by it what they may use.
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

/// Operating system and machine in Kubernetes' words.
fn platform() -> String {
    let machine = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        other => other,
    };
    format!("{}/{machine}", std::env::consts::OS)
}
