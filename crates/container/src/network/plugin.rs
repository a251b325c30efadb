//! Runs one plugin: a program that takes its command from the environment and its configuration from stdin.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::Stdio;

use serde_json::{Value, json};

use super::{Attachment, BUILT_IN, Bandwidth, NetworkError, Plugins, Pod, SUBCOMMAND};

/// Name of the interface in the pod.
pub(super) const INTERFACE: &str = "eth0";

/// CNI commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Add,
    Delete,
    Check,
    Status,
    Collect,
}

impl Command {
    fn name(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Delete => "DEL",
            Self::Check => "CHECK",
            Self::Status => "STATUS",
            Self::Collect => "GC",
        }
    }

    /// Reports whether plugins of this version of the specification support the command.
    pub(super) fn is_supported_by(self, version: &Value) -> bool {
        let mut numbers =
            version.as_str().unwrap_or("0.1.0").split('.').map(|part| part.parse::<u32>().unwrap_or(0));
        let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        match self {
            Self::Add | Self::Delete => true,
            Self::Check => version >= (0, 4),
            Self::Status | Self::Collect => version >= (1, 1),
        }
    }
}

impl Plugins {
    fn program(&self, kind: &str) -> Option<(PathBuf, Vec<&'static str>)> {
        if kind == BUILT_IN {
            return Some((self.built_in.clone(), vec![SUBCOMMAND]));
        }
        if kind.is_empty() || kind.contains('/') || kind.starts_with('.') {
            return None;
        }
        let found = self.programs.iter().map(|directory| directory.join(kind)).find(|path| path.is_file());
        found.map(|path| (path, Vec::new()))
    }

    /// Runs one plugin of a list, for a pod or for the plugin itself.
    pub(super) fn run(
        &self,
        command: Command,
        attached: &Attachment,
        plugin: &Value,
        pod: Option<&Pod>,
    ) -> Result<Value, NetworkError> {
        let kind = plugin["type"].as_str().unwrap_or_default().to_owned();
        let missing = || NetworkError::Run(kind.clone(), io::Error::from(io::ErrorKind::NotFound));
        let (program, arguments) = self.program(&kind).ok_or_else(missing)?;
        let input = request(attached, plugin, pod);
        let path: Vec<String> = self.programs.iter().map(|path| path.display().to_string()).collect();
        // Plugins inherit the runtime's environment, as in other container runtimes.
        let mut process = std::process::Command::new(&program);
        if let Some(pod) = pod {
            let about = format!(
                "IgnoreUnknown=1;K8S_POD_NAMESPACE={};K8S_POD_NAME={};K8S_POD_INFRA_CONTAINER_ID={};K8S_POD_UID={}",
                pod.namespace, pod.name, pod.sandbox, pod.uid
            );
            process
                .env("CNI_CONTAINERID", &pod.sandbox)
                .env("CNI_IFNAME", INTERFACE)
                .env("CNI_ARGS", about)
                .env("CNI_NETNS", &pod.network_namespace);
        } else {
            for name in ["CNI_CONTAINERID", "CNI_IFNAME", "CNI_ARGS", "CNI_NETNS"] {
                process.env_remove(name);
            }
        }
        process
            .args(arguments)
            .env("CNI_COMMAND", command.name())
            .env("CNI_PATH", path.join(":"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let failed = |error| NetworkError::Run(kind.clone(), error);
        let mut child = process.spawn().map_err(failed)?;
        if let Some(mut stdin) = child.stdin.take() {
            // A plugin that does not read stdin reports its error on stdout.
            let _ = stdin.write_all(input.to_string().as_bytes());
        }
        let output = child.wait_with_output().map_err(failed)?;
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
        if !output.status.success() {
            let mut message = answer["msg"].as_str().unwrap_or_default().to_owned();
            if let Some(details) = answer["details"].as_str().filter(|details| !details.is_empty()) {
                message = format!("{message}: {details}");
            }
            if message.is_empty() {
                let stderr = String::from_utf8_lossy(&output.stderr);
                message = stderr.chars().take(1000).collect();
            }
            return Err(NetworkError::Plugin { plugin: kind, message });
        }
        Ok(answer)
    }
}

/// Input of a plugin: its configuration, the network's name, the previous result, and the capabilities it requested.
fn request(attached: &Attachment, plugin: &Value, pod: Option<&Pod>) -> Value {
    let mut input = plugin.clone();
    input["name"] = attached.configuration["name"].clone();
    input["cniVersion"] = match &attached.configuration["cniVersion"] {
        Value::String(version) => json!(version),
        _ => json!("0.4.0"),
    };
    if !attached.result.is_null() {
        input["prevResult"] = attached.result.clone();
    }
    if let Some(pod) = pod {
        let can = |what: &str| plugin["capabilities"][what] == true;
        if can("portMappings") && !pod.ports.is_empty() {
            input["runtimeConfig"]["portMappings"] = json!(pod.ports);
        }
        if can("bandwidth") && pod.bandwidth != Bandwidth::default() {
            input["runtimeConfig"]["bandwidth"] = json!(pod.bandwidth);
        }
    }
    if let Some(object) = input.as_object_mut() {
        object.remove("capabilities");
    }
    input
}
