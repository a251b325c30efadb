//! The Kubernetes version that the components implement.

use std::sync::OnceLock;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::metrics::{Metrics, MetricsError};

/// The Kubernetes release whose API and behaviour Ferry implements.
pub const GIT_VERSION: &str = "v1.36.4";

/// Commit of the build, and its date.
#[derive(Clone, Copy, Debug, Default)]
pub struct BuildInfo {
    /// Empty if it is unknown.
    pub commit: &'static str,
    /// In RFC 3339 form.
    pub date: &'static str,
}

static BUILD: OnceLock<BuildInfo> = OnceLock::new();
static REPORTED: OnceLock<String> = OnceLock::new();

/// Sets the build of this process, which `/version` and `kubernetes_build_info` report. The first call counts.
pub fn set_build(build: BuildInfo) {
    let _ = BUILD.set(build);
}

/// Sets the version that is reported instead of [`GIT_VERSION`]. The first call counts.
pub fn set_reported(version: String) {
    let _ = REPORTED.set(version);
}

/// The version that this process reports.
#[must_use]
pub fn git_version() -> &'static str {
    REPORTED.get().map_or(GIT_VERSION, String::as_str)
}

/// Commit, state of the tree and date. Those of an unknown build are those of an unstamped build of Kubernetes.
fn stamp(build: BuildInfo) -> (String, &'static str, String) {
    if build.commit.is_empty() {
        return ("$Format:%H$".to_owned(), "", "1970-01-01T00:00:00Z".to_owned());
    }
    let date = build.date.parse::<Timestamp>().unwrap_or(Timestamp::UNIX_EPOCH);
    (build.commit.to_owned(), "clean", date.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}

/// Response of `/version`: that of the Kubernetes release, since clients select features by it.
#[must_use]
pub fn version() -> Value {
    let (commit, tree_state, date) = stamp(BUILD.get().copied().unwrap_or_default());
    json!({
        "major": "1",
        "minor": "36",
        "emulationMajor": "1",
        "emulationMinor": "36",
        "minCompatibilityMajor": "1",
        "minCompatibilityMinor": "35",
        "gitVersion": git_version(),
        "gitCommit": commit,
        "gitTreeState": tree_state,
        "buildDate": date,
        "goVersion": "go1.26.6",
        "compiler": "gc",
        "platform": platform(),
    })
}

/// User-Agent of a component's client, in client-go's form; the part before the slash is the name of its field manager.
#[must_use]
pub fn user_agent(component: &str) -> String {
    let (commit, _, _) = stamp(BUILD.get().copied().unwrap_or_default());
    let commit = commit.get(..7).unwrap_or(&commit);
    format!("{component}/{GIT_VERSION} ({}) kubernetes/{commit}", platform())
}

/// User-Agent of one of several clients of a component.
#[must_use]
pub fn user_agent_of(component: &str, client: &str) -> String {
    format!("{}/{client}", user_agent(component))
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
#[must_use]
pub fn platform() -> String {
    let machine = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        other => other,
    };
    format!("{}/{machine}", std::env::consts::OS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_build_is_reported_in_utc() {
        let build = BuildInfo { commit: "0123abc", date: "2026-11-18T22:00:00+02:00" };
        let want = ("0123abc".to_owned(), "clean", "2026-11-18T20:00:00Z".to_owned());
        assert_eq!(stamp(build), want);
        let want = ("$Format:%H$".to_owned(), "", "1970-01-01T00:00:00Z".to_owned());
        assert_eq!(stamp(BuildInfo::default()), want);
    }

    #[test]
    fn user_agent_has_the_form_of_client_go() {
        let platform = platform();
        let want = format!("kubelet/v1.36.4 ({platform}) kubernetes/$Format");
        assert_eq!(user_agent("kubelet"), want);
        assert_eq!(user_agent_of("kubelet", "simulated"), format!("{want}/simulated"));
    }
}
