//! Pod networks by the rules of CNI: the plugins of a configuration list are programs, run in sequence. Without a
//! configuration by the administrator the built-in network is used: this binary, run as a plugin.

mod plugin;

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use plugin::{Command, INTERFACE};

/// Name of the built-in plugin, and its subcommand.
pub const BUILT_IN: &str = "ferry";
pub const SUBCOMMAND: &str = "cni";
const VERSION: &str = "1.1.0";

#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    #[error("no network is configured: no pod CIDR and no file in {0}")]
    NotConfigured(PathBuf),
    #[error("failed to read network configuration {0}: {1}")]
    Configuration(PathBuf, String),
    #[error("failed to run network plugin {0}: {1}")]
    Run(String, io::Error),
    #[error("network plugin {plugin} failed: {message}")]
    Plugin { plugin: String, message: String },
    #[error("network plugin {0} returned no address")]
    NoAddress(String),
}

/// A host port that is forwarded to the pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortMapping {
    pub host_port: u16,
    pub container_port: u16,
    pub protocol: String,
    #[serde(rename = "hostIP", skip_serializing_if = "String::is_empty")]
    pub host_ip: String,
}

/// Bandwidth limits of a pod in bits per second; zero is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Bandwidth {
    pub ingress_rate: u64,
    pub ingress_burst: u64,
    pub egress_rate: u64,
    pub egress_burst: u64,
}

/// The pod to connect.
#[derive(Clone, Debug, Default)]
pub struct Pod {
    pub sandbox: String,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub network_namespace: PathBuf,
    pub ports: Vec<PortMapping>,
    pub bandwidth: Bandwidth,
}

/// Network attachment of a pod, stored in order to undo it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Attachment {
    /// The configuration that was used.
    pub configuration: Value,
    pub result: Value,
    pub addresses: Vec<IpAddr>,
}

/// Locations of configurations and plugins.
#[derive(Clone, Debug)]
pub struct Plugins {
    pub configurations: PathBuf,
    pub programs: Vec<PathBuf>,
    /// The binary that contains the built-in plugin.
    pub built_in: PathBuf,
    /// Directory in which the built-in plugin records addresses.
    pub state: PathBuf,
    /// The bridge of the built-in network.
    pub bridge: String,
    /// Pod address ranges of the whole cluster; traffic to other destinations is masqueraded with the node's address.
    pub cluster_ranges: Vec<String>,
}

impl Plugins {
    /// Returns the first configuration in the directory, or the built-in one for these address ranges.
    pub fn configuration(&self, ranges: &[String]) -> Result<Value, NetworkError> {
        let mut files: Vec<PathBuf> = match std::fs::read_dir(&self.configurations) {
            Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
            Err(_) => Vec::new(),
        };
        files.retain(|path| {
            path.extension()
                .is_some_and(|extension| ["conflist", "conf", "json"].iter().any(|known| extension == *known))
        });
        files.sort();
        if let Some(file) = files.first() {
            let wrong = |reason: String| NetworkError::Configuration(file.clone(), reason);
            let text = std::fs::read(file).map_err(|error| wrong(error.to_string()))?;
            let parsed: Value = serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
            return match parsed["plugins"].as_array() {
                Some(plugins) if !plugins.is_empty() => Ok(parsed),
                Some(_) => Err(wrong("it has no plugins".to_owned())),
                // A single plugin, the format of older files.
                None if parsed["type"].is_string() => Ok(
                    json!({"name": parsed["name"], "cniVersion": parsed["cniVersion"], "plugins": [parsed]}),
                ),
                None => Err(wrong("it has no plugins".to_owned())),
            };
        }
        if ranges.is_empty() {
            return Err(NetworkError::NotConfigured(self.configurations.clone()));
        }
        Ok(json!({"name": BUILT_IN, "cniVersion": VERSION, "plugins": [{
            "type": BUILT_IN, "bridge": self.bridge, "subnets": ranges, "dataDir": self.state,
            "clusterSubnets": self.cluster_ranges, "capabilities": {"portMappings": true, "bandwidth": true},
        }]}))
    }

    /// Connects a pod. A failure undoes the completed steps.
    pub fn attach(&self, configuration: Value, pod: &Pod) -> Result<Attachment, NetworkError> {
        let mut attached = Attachment { configuration, ..Attachment::default() };
        let plugins = attached.configuration["plugins"].as_array().cloned().unwrap_or_default();
        for plugin in &plugins {
            match self.run(Command::Add, &attached, plugin, Some(pod)) {
                Ok(result) => attached.result = result,
                Err(error) => {
                    let _ = self.detach(&attached, pod);
                    return Err(error);
                }
            }
        }
        let ips = attached.result["ips"].as_array().cloned().unwrap_or_default();
        attached.addresses =
            ips.iter().filter_map(|ip| ip["address"].as_str()?.split('/').next()?.parse().ok()).collect();
        if attached.addresses.is_empty() {
            let _ = self.detach(&attached, pod);
            return Err(NetworkError::NoAddress(attached.configuration["name"].to_string()));
        }
        Ok(attached)
    }

    /// Disconnects a pod. Idempotent, also without the network namespace.
    pub fn detach(&self, attached: &Attachment, pod: &Pod) -> Result<(), NetworkError> {
        let plugins = attached.configuration["plugins"].as_array().cloned().unwrap_or_default();
        let mut outcome = Ok(());
        for plugin in plugins.iter().rev() {
            if let Err(error) = self.run(Command::Delete, attached, plugin, Some(pod)) {
                outcome = Err(error);
            }
        }
        outcome
    }

    /// Runs CHECK: compares a pod's attachment with its recorded state.
    pub fn check(&self, attached: &Attachment, pod: &Pod) -> Result<(), NetworkError> {
        if attached.configuration["disableCheck"] == true {
            return Ok(());
        }
        self.run_all(Command::Check, attached, Some(pod))
    }

    /// Runs STATUS: reports whether the plugins can connect pods. Older plugins do not support it and count as ready.
    pub fn status(&self, configuration: &Value) -> Result<(), NetworkError> {
        self.run_all(Command::Status, &configuration_only(configuration), None)
    }

    /// Runs GC: the plugins remove resources of pods that are not in `sandboxes`, such as remains of a crash.
    pub fn collect(&self, configuration: &Value, sandboxes: &[String]) -> Result<(), NetworkError> {
        if configuration["disableGC"] == true {
            return Ok(());
        }
        let valid: Vec<Value> =
            sandboxes.iter().map(|id| json!({"containerID": id, "ifname": INTERFACE})).collect();
        let mut configuration = configuration.clone();
        for plugin in configuration["plugins"].as_array_mut().into_iter().flatten() {
            plugin["cni.dev/valid-attachments"] = json!(valid);
        }
        self.run_all(Command::Collect, &configuration_only(&configuration), None)
    }

    /// Runs all plugins in order, if their version supports the command.
    fn run_all(
        &self,
        command: Command,
        attached: &Attachment,
        pod: Option<&Pod>,
    ) -> Result<(), NetworkError> {
        if !command.is_supported_by(&attached.configuration["cniVersion"]) {
            return Ok(());
        }
        for plugin in attached.configuration["plugins"].as_array().into_iter().flatten() {
            self.run(command, attached, plugin, pod)?;
        }
        Ok(())
    }
}

fn configuration_only(configuration: &Value) -> Attachment {
    Attachment { configuration: configuration.clone(), ..Attachment::default() }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn plugins(dir: &Path) -> Plugins {
        Plugins {
            configurations: dir.join("net.d"),
            programs: vec![dir.join("bin")],
            built_in: "/proc/self/exe".into(),
            state: dir.join("state"),
            bridge: "ferry0".to_owned(),
            cluster_ranges: Vec::new(),
        }
    }

    fn script(dir: &Path, name: &str, body: &str) {
        use std::os::unix::fs::PermissionsExt as _;
        let path = dir.join("bin").join(name);
        std::fs::create_dir_all(dir.join("bin")).unwrap();
        let draft = path.with_extension("draft");
        std::fs::write(&draft, format!("#!/bin/sh\n{body}\n")).unwrap();
        std::fs::set_permissions(&draft, std::fs::Permissions::from_mode(0o755)).unwrap();
        // Copied by another process: a file that this process has open for writing may be inherited by the child of
        // another test for a moment, and cannot be executed then.
        let copied = std::process::Command::new("cp").arg("-p").arg(&draft).arg(&path).status().unwrap();
        assert!(copied.success());
    }

    #[test]
    fn configuration_first_file_or_built_in_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let plugins = plugins(dir.path());
        assert!(matches!(plugins.configuration(&[]), Err(NetworkError::NotConfigured(_))));
        let built_in = plugins.configuration(&["10.1.0.0/24".to_owned()]).unwrap();
        assert_eq!(built_in["plugins"][0]["type"], BUILT_IN);
        std::fs::create_dir(dir.path().join("net.d")).unwrap();
        std::fs::write(dir.path().join("net.d/20-b.conflist"), r#"{"name":"b","plugins":[]}"#).unwrap();
        assert!(matches!(plugins.configuration(&[]), Err(NetworkError::Configuration(..))));
        std::fs::write(dir.path().join("net.d/10-a.conf"), r#"{"name":"a","type":"x"}"#).unwrap();
        assert_eq!(plugins.configuration(&[]).unwrap()["plugins"][0]["type"], "x");
    }

    #[test]
    fn plugins_run_in_order_and_are_undone_in_reverse() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let note = format!("read -r input; echo \"$CNI_COMMAND {{}} $input\" >> {}", log.display());
        let answer = r#"echo '{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.7/24"}]}'"#;
        script(dir.path(), "first", &format!("{}; {answer}", note.replace("{}", "first")));
        script(dir.path(), "second", &format!("{}; {answer}", note.replace("{}", "second")));
        let plugins = plugins(dir.path());
        let configuration = json!({"name": "net", "cniVersion": "1.0.0", "plugins": [
            {"type": "first", "capabilities": {"portMappings": true}},
            {"type": "second", "capabilities": {"bandwidth": true}}]});
        let ports = vec![PortMapping {
            host_port: 80,
            container_port: 8080,
            protocol: "tcp".into(),
            host_ip: String::new(),
        }];
        let bandwidth = Bandwidth { egress_rate: 8, ..Bandwidth::default() };
        let pod = Pod { sandbox: "s1".into(), ports, bandwidth, ..Pod::default() };
        let attached = plugins.attach(configuration, &pod).unwrap();
        assert_eq!(attached.addresses, ["10.1.0.7".parse::<IpAddr>().unwrap()]);
        plugins.detach(&attached, &pod).unwrap();
        let text = std::fs::read_to_string(&log).unwrap();
        let verbs: Vec<String> =
            text.lines().map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(verbs, ["ADD first", "ADD second", "DEL second", "DEL first"]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].contains("\"hostPort\":80") && !lines[0].contains("prevResult"));
        assert!(!lines[1].contains("hostPort") && lines[1].contains("prevResult"));
        assert!(!lines[0].contains("egressRate") && lines[1].contains("\"egressRate\":8"));
    }

    #[test]
    fn plugin_of_old_version_skips_newer_commands() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let note = format!("read -r input; echo \"$CNI_COMMAND $input\" >> {}", log.display());
        script(dir.path(), "one", &note);
        let plugins = plugins(dir.path());
        let list =
            |version: &str| json!({"name": "net", "cniVersion": version, "plugins": [{"type": "one"}]});
        for version in ["0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
            plugins.status(&list(version)).unwrap();
            plugins.collect(&list(version), &["s1".to_owned()]).unwrap();
            plugins.check(&configuration_only(&list(version)), &Pod::default()).unwrap();
        }
        let text = std::fs::read_to_string(&log).unwrap();
        let commands: Vec<&str> = text.lines().filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(commands, ["CHECK", "CHECK", "STATUS", "GC", "CHECK"]);
        let valid = r#""cni.dev/valid-attachments":[{"containerID":"s1","ifname":"eth0"}]"#;
        assert!(text.lines().any(|line| line.starts_with("GC") && line.contains(valid)), "{text}");
        script(dir.path(), "one", r#"echo '{"code":50,"msg":"not yet"}'; exit 1"#);
        assert!(plugins.status(&list("1.1.0")).unwrap_err().to_string().contains("not yet"));
    }

    #[test]
    fn plugin_failure_is_undone_and_reported() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        script(dir.path(), "good", &format!("echo $CNI_COMMAND >> {}; echo '{{}}'", log.display()));
        script(
            dir.path(),
            "bad",
            r#"[ $CNI_COMMAND = DEL ] || { echo '{"code":7,"msg":"no luck"}'; exit 1; }"#,
        );
        let configuration = json!({"name": "net", "plugins": [{"type": "good"}, {"type": "bad"}]});
        let error = plugins(dir.path()).attach(configuration, &Pod::default()).unwrap_err();
        assert!(error.to_string().contains("no luck"), "{error}");
        assert_eq!(std::fs::read_to_string(&log).unwrap(), "ADD\nDEL\n");
        let escape = json!({"name": "net", "plugins": [{"type": "../bin/good"}]});
        assert!(matches!(plugins(dir.path()).attach(escape, &Pod::default()), Err(NetworkError::Run(..))));
    }
}
