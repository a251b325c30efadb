//! `--version` of Kubernetes' components: prints the version and exits, or sets the version that is reported.

use std::ffi::OsString;

use base::version::{GIT_VERSION, platform, version};
use serde_json::Value;

/// Effect of `--version` on a command line.
#[derive(Debug, PartialEq, Eq)]
pub enum VersionRequest {
    /// The text is printed and the process exits.
    Print(String),
    /// `/version` and `kubernetes_build_info` report this version.
    Report(String),
}

/// Removes `--version` from the arguments of a component; the last one counts.
pub fn take(command: &str, words: &mut Vec<OsString>) -> Result<Option<VersionRequest>, String> {
    let mut request = None;
    let mut error = None;
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let mut index = 0;
    words.retain(|word| {
        index += 1;
        let Some(value) = word.to_str().filter(|_| index <= end).and_then(value_of) else { return true };
        match parse(command, value) {
            Ok(parsed) => request = parsed,
            Err(text) => error = Some(text),
        }
        false
    });
    error.map_or(Ok(request), Err)
}

/// Value of a `--version` argument; the flag alone is `true`.
fn value_of(word: &str) -> Option<&str> {
    let rest = word.strip_prefix("--version")?;
    if rest.is_empty() { Some("true") } else { rest.strip_prefix('=') }
}

fn parse(command: &str, value: &str) -> Result<Option<VersionRequest>, String> {
    match value {
        "true" | "1" | "t" | "T" | "TRUE" | "True" => Ok(Some(VersionRequest::Print(short(command)))),
        "false" | "0" | "f" | "F" | "FALSE" | "False" => Ok(None),
        "raw" if command != "etcd" => Ok(Some(VersionRequest::Print(raw(&version())))),
        _ if command != "etcd" && is_build_of(GIT_VERSION, value) => {
            Ok(Some(VersionRequest::Report(value.to_owned())))
        }
        _ => Err(format!(
            "--version: {value:?} must be true, false, raw or match major/minor/patch of default version {GIT_VERSION:?}"
        )),
    }
}

/// First line as in Kubernetes, or all lines as in etcd.
fn short(command: &str) -> String {
    if command != "etcd" {
        return format!("Kubernetes {GIT_VERSION}");
    }
    let build = version();
    let field = |name: &str| build[name].as_str().unwrap_or_default().to_owned();
    format!(
        "etcd Version: {}\nGit SHA: {}\nGo Version: {}\nGo OS/Arch: {}",
        cluster::ETCD_VERSION,
        field("gitCommit"),
        field("goVersion"),
        platform()
    )
}

/// Build information in the form of Go's `%#v`.
fn raw(build: &Value) -> String {
    const FIELDS: [(&str, &str); 13] = [
        ("Major", "major"),
        ("Minor", "minor"),
        ("EmulationMajor", "emulationMajor"),
        ("EmulationMinor", "emulationMinor"),
        ("MinCompatibilityMajor", "minCompatibilityMajor"),
        ("MinCompatibilityMinor", "minCompatibilityMinor"),
        ("GitVersion", "gitVersion"),
        ("GitCommit", "gitCommit"),
        ("GitTreeState", "gitTreeState"),
        ("BuildDate", "buildDate"),
        ("GoVersion", "goVersion"),
        ("Compiler", "compiler"),
        ("Platform", "platform"),
    ];
    let fields = FIELDS.map(|(name, key)| format!("{name}:{}", build[key]));
    format!("version.Info{{{}}}", fields.join(", "))
}

/// Semantic versions with the numbers of `release`: itself, pre-releases and builds of it.
fn is_build_of(release: &str, value: &str) -> bool {
    let Some(rest) = value.strip_prefix(release) else { return false };
    let Some(first) = rest.chars().next() else { return true };
    let identifiers = |text: &str| {
        text.split('.')
            .all(|part| !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '-'))
    };
    let parts: Vec<&str> = rest[1..].splitn(2, '+').collect();
    match first {
        '-' => parts.iter().all(|part| identifiers(part)),
        '+' => identifiers(&rest[1..]),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(command: &str, words: &[&str]) -> (Vec<OsString>, Result<Option<VersionRequest>, String>) {
        let mut words: Vec<OsString> = words.iter().map(OsString::from).collect();
        let request = take(command, &mut words);
        (words, request)
    }

    #[test]
    fn version_flag_prints_release() {
        let print = |text: &str| Ok(Some(VersionRequest::Print(text.to_owned())));
        assert_eq!(taken("kubelet", &["kubelet", "--version"]).1, print("Kubernetes v1.36.4"));
        assert_eq!(taken("kubelet", &["kubelet", "--version=false"]), (vec!["kubelet".into()], Ok(None)));
        let (_, request) = taken("etcd", &["etcd", "--version"]);
        let Ok(Some(VersionRequest::Print(text))) = request else { panic!("{request:?}") };
        assert!(text.starts_with("etcd Version: 3."), "{text}");
        let (_, request) = taken("scheduler", &["--version=raw"]);
        let Ok(Some(VersionRequest::Print(text))) = request else { panic!("{request:?}") };
        assert!(text.starts_with("version.Info{Major:\"1\", Minor:\"36\""), "{text}");
    }

    #[test]
    fn version_of_another_release_is_error() {
        let (words, request) = taken("apiserver", &["a", "--version=v1.36.4-custom.1+b", "--v=1"]);
        assert_eq!(words, ["a", "--v=1"]);
        assert_eq!(request, Ok(Some(VersionRequest::Report("v1.36.4-custom.1+b".to_owned()))));
        for wrong in ["v1.36.5", "v1.36.40", "v1.36.4-", "v1.36.4-a b", "v1.36.4~1", "1.36.4", "v2", "yes"] {
            assert!(taken("apiserver", &[&format!("--version={wrong}")]).1.is_err(), "{wrong}");
        }
        assert_eq!(taken("apiserver", &["a", "--", "--version"]).0, ["a", "--", "--version"]);
    }
}
