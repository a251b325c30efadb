//! Credentials from a program that a kubeconfig names (`exec`).

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use machinery::codec::time;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};

use crate::KubeconfigError;

/// Time limit of a program.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Output limit of a program.
const MAX_OUTPUT: u64 = 1 << 20;
/// The part of its error output that is reported.
const MAX_ERRORS: u64 = 4 << 10;
const VERSIONS: [&str; 2] = ["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"];

/// A program that prints an ExecCredential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exec {
    command: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    api_version: String,
    /// Cluster information for the program, passed if `provideClusterInfo` is set.
    cluster: Option<Value>,
    hint: String,
    limit: Duration,
}

/// Output of a program. Its values are secret: `Debug` leaves them out.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ExecCredential {
    pub token: Option<String>,
    /// Certificate and key, in PEM.
    pub certificate: Option<(String, String)>,
    /// Expiry in seconds since the epoch; credentials without one are cached while the process runs.
    pub expires: Option<i64>,
}

impl std::fmt::Debug for ExecCredential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExecCredential").field("expires", &self.expires).finish_non_exhaustive()
    }
}

impl Exec {
    /// Parses the `exec` of a user. A command with a slash is relative to the kubeconfig's directory.
    pub fn parse(exec: &Value, cluster: &Value, directory: &Path) -> Result<Self, KubeconfigError> {
        let unusable = |reason: String| KubeconfigError::Unusable { what: "exec", reason };
        let text = |key: &str| exec.get(key).and_then(Value::as_str).unwrap_or_default();
        let command = text("command");
        if command.is_empty() {
            return Err(unusable("command must be specified".to_owned()));
        }
        if !VERSIONS.contains(&text("apiVersion")) {
            return Err(unusable(format!("apiVersion {:?} is not supported", text("apiVersion"))));
        }
        if text("interactiveMode") == "Always" {
            return Err(unusable("interactiveMode Always: there is no terminal".to_owned()));
        }
        let list = |key: &str| exec.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
        let owned = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let environment =
            list("env").iter().map(|pair| (owned(&pair["name"]), owned(&pair["value"]))).collect();
        let provides_cluster_info = exec.get("provideClusterInfo").and_then(Value::as_bool) == Some(true);
        Ok(Self {
            command: match command.contains('/') {
                true => directory.join(command),
                false => command.into(),
            },
            arguments: list("args").iter().map(owned).collect(),
            environment,
            api_version: text("apiVersion").to_owned(),
            cluster: provides_cluster_info.then(|| cluster_info(cluster)),
            hint: text("installHint").to_owned(),
            limit: TIMEOUT,
        })
    }

    /// Runs the program.
    pub async fn run(&self) -> Result<ExecCredential, KubeconfigError> {
        let failed = |reason: String| {
            let hint = if self.hint.is_empty() { String::new() } else { format!("; {}", self.hint) };
            KubeconfigError::Exec { command: self.command.clone(), reason: format!("{reason}{hint}") }
        };
        let mut spec = json!({"interactive": false});
        if let Some(cluster) = &self.cluster {
            spec["cluster"] = cluster.clone();
        }
        let info =
            json!({"apiVersion": self.api_version, "kind": "ExecCredential", "spec": spec}).to_string();
        let mut child = Command::new(&self.command)
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .env("KUBERNETES_EXEC_INFO", info)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| failed(error.to_string()))?;
        let mut group = ProcessGroup::of(&child);
        let (mut output, mut errors) = (Vec::new(), Vec::new());
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let text = |error: std::io::Error| error.to_string();
        let printing = async {
            if let Some(stdout) = stdout {
                stdout.take(MAX_OUTPUT + 1).read_to_end(&mut output).await.map_err(text)?;
            }
            let is_complete = u64::try_from(output.len()).is_ok_and(|length| length <= MAX_OUTPUT);
            is_complete.then_some(()).ok_or_else(|| format!("it printed more than {MAX_OUTPUT} bytes"))
        };
        let complaining = async {
            let Some(mut stderr) = stderr else { return Ok(()) };
            (&mut stderr).take(MAX_ERRORS).read_to_end(&mut errors).await.map_err(text)?;
            // Excess output does not make the program fail.
            tokio::io::copy(&mut stderr, &mut tokio::io::sink()).await.map(drop).map_err(text)
        };
        let ending = async { child.wait().await.map_err(text) };
        let running = async { tokio::try_join!(printing, complaining, ending) };
        let outcome = tokio::time::timeout(self.limit, running).await;
        let errors = String::from_utf8_lossy(&errors);
        let errors = if errors.trim().is_empty() { String::new() } else { format!(": {}", errors.trim()) };
        let outcome =
            outcome.map_err(|_| failed(format!("it did not end within {:?}{errors}", self.limit)))?;
        let ((), (), status) = outcome.map_err(failed)?;
        group.has_ended();
        if !status.success() {
            return Err(failed(format!("it failed with {status}{errors}")));
        }
        if !errors.is_empty() {
            tracing::info!(command = %self.command.display(), "credential plugin printed{errors}");
        }
        self.read(&output).map_err(failed)
    }

    fn read(&self, output: &[u8]) -> Result<ExecCredential, String> {
        let printed: Value =
            serde_json::from_slice(output).map_err(|error| format!("its output: {error}"))?;
        if printed["kind"] != "ExecCredential" || printed["apiVersion"] != self.api_version.as_str() {
            return Err(format!("it must print an ExecCredential of {}", self.api_version));
        }
        let status = &printed["status"];
        let text = |key: &str| {
            status.get(key).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
        };
        let (token, certificate, key) = (text("token"), text("clientCertificateData"), text("clientKeyData"));
        if certificate.is_some() != key.is_some() {
            return Err("it must print both a certificate and its key, or none".to_owned());
        }
        if token.is_none() && certificate.is_none() {
            return Err("it printed neither a token nor a certificate".to_owned());
        }
        let expires = text("expirationTimestamp").map(|end| time::parse(&end, false)).transpose()?;
        let expires = expires.map(|end| end.seconds);
        Ok(ExecCredential { token, certificate: certificate.zip(key), expires })
    }
}

/// The program and its children, killed unless it has exited before.
struct ProcessGroup(Option<Pid>);

impl ProcessGroup {
    fn of(child: &Child) -> Self {
        Self(child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)))
    }

    fn has_ended(&mut self) {
        self.0 = None;
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(leader) = self.0 {
            // The process group may have exited meanwhile.
            let _ = kill_process_group(leader, Signal::KILL);
        }
    }
}

/// The cluster in the form of the protocol.
fn cluster_info(cluster: &Value) -> Value {
    let mut cluster_json = json!({});
    let extension = cluster["extensions"].as_array().into_iter().flatten();
    let config = extension.clone().find(|one| one["name"] == "client.authentication.k8s.io/exec");
    for key in
        ["server", "tls-server-name", "insecure-skip-tls-verify", "certificate-authority-data", "proxy-url"]
    {
        if let Some(value) = cluster.get(key).filter(|value| !value.is_null()) {
            cluster_json[key] = value.clone();
        }
    }
    if let Some(config) = config {
        cluster_json["config"] = config["extension"].clone();
    }
    cluster_json
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn exec(command: &str, directory: &Path) -> Exec {
        let exec = json!({
            "apiVersion": VERSIONS[0], "command": command, "args": ["x"], "provideClusterInfo": true,
            "env": [{"name": "WHO", "value": "me"}],
        });
        Exec::parse(&exec, &json!({"server": "https://h"}), directory).expect("usable")
    }

    fn script(directory: &Path, body: &str) {
        let path = directory.join("plugin");
        std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("executable");
    }

    #[tokio::test]
    async fn exec_token_with_expiry_is_used() {
        let directory = tempfile::tempdir().expect("a directory");
        script(
            directory.path(),
            r#"case "$KUBERNETES_EXEC_INFO" in *https://h*) ;; *) exit 3;; esac
printf '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"%s-%s","expirationTimestamp":"2026-01-01T00:00:00Z"}}' "$WHO" "$1""#,
        );
        let credential = exec("./plugin", directory.path()).run().await.expect("a credential");
        assert_eq!(credential.token.as_deref(), Some("me-x"));
        assert_eq!(credential.expires, Some(1_767_225_600));
        assert!(!format!("{credential:?}").contains("me-x"));
    }

    #[tokio::test]
    async fn exec_failure_or_invalid_output_is_an_error() {
        let directory = tempfile::tempdir().expect("a directory");
        for (body, want) in [
            ("exit 7", "exit status: 7"),
            ("echo nonsense", "its output"),
            (
                r#"echo '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential"}'"#,
                "neither a token",
            ),
            (r#"echo '{"apiVersion":"v1","kind":"ExecCredential"}'"#, "must print an ExecCredential"),
        ] {
            script(directory.path(), body);
            let error = exec("./plugin", directory.path()).run().await.expect_err(body).to_string();
            assert!(error.contains(want), "{body}: {error}");
        }
        assert!(exec("./gone", directory.path()).run().await.is_err());
    }

    #[tokio::test]
    async fn exec_time_and_output_are_bounded() {
        let directory = tempfile::tempdir().expect("a directory");
        let printed = r#"printf '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"t"}}'"#;
        for (body, want) in [
            ("echo waiting >&2; sleep 1000", Err("it did not end within 500ms: waiting")),
            ("sleep 1000 & wait", Err("it did not end within 500ms")),
            ("trap '' PIPE; exec yes", Err("it printed more than 1048576 bytes")),
            ("yes >&2 & exit 5", Err("it did not end within 500ms: y\ny")),
            (&format!("head -c 3000000 /dev/zero >&2; {printed}"), Ok("t")),
            ("head -c 100000 /dev/urandom", Err("its output")),
            (r"printf '%0100000d' 0 | tr 0 [", Err("its output")),
        ] {
            script(directory.path(), body);
            let mut plugin = exec("./plugin", directory.path());
            plugin.limit = Duration::from_millis(500);
            match (plugin.run().await, want) {
                (Ok(credential), Ok(token)) => assert_eq!(credential.token.as_deref(), Some(token)),
                (Err(error), Err(want)) => {
                    let text = error.to_string();
                    assert!(text.contains(want) && text.len() < 10_000, "{body}: {text:.300}");
                }
                (got, _) => panic!("{body}: {got:?}"),
            }
        }
    }

    #[test]
    fn exec_invalid_configuration_is_rejected() {
        for exec in [
            json!({"apiVersion": VERSIONS[0]}),
            json!({"apiVersion": "v1alpha1", "command": "x"}),
            json!({"apiVersion": VERSIONS[0], "command": "x", "interactiveMode": "Always"}),
        ] {
            assert!(Exec::parse(&exec, &Value::Null, Path::new("/")).is_err(), "{exec}");
        }
    }
}
