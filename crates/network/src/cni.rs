//! CNI plugin commands: ADD, DEL, CHECK, GC, STATUS, VERSION. Runs as a single-threaded process.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::ExitCode;

use ipnet::IpNet;
use serde::Deserialize;
use serde_json::{Value, json};
use sys::netlink::Netlink;
use sys::process::{self, Namespace};

use crate::addresses::{AddressBook, AddressError, PodRange};
use crate::link;
use crate::ports::{Mapping, PortError, Ports};
use crate::rules::Rules;
use crate::sources;

const VERSIONS: &[&str] = &["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Configuration {
    #[serde(default)]
    cni_version: String,
    #[serde(default = "default_bridge")]
    pub(crate) bridge: String,
    #[serde(default)]
    subnets: Vec<String>,
    data_dir: PathBuf,
    #[serde(default = "default_mtu")]
    pub(crate) mtu: u32,
    /// Masquerades traffic that leaves the cluster as the node's address.
    #[serde(default = "default_true")]
    masquerade: bool,
    /// Pod ranges of the whole cluster; traffic between them is not masqueraded.
    #[serde(default)]
    cluster_subnets: Vec<String>,
    #[serde(default)]
    runtime_config: RuntimeConfig,
    #[serde(default, rename = "cni.dev/valid-attachments")]
    valid: Vec<ValidAttachment>,
}

#[derive(Debug, Deserialize)]
struct ValidAttachment {
    #[serde(rename = "containerID")]
    container: String,
}

/// Runtime configuration of the pod.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RuntimeConfig {
    port_mappings: Vec<Mapping>,
    bandwidth: Bandwidth,
}

/// In bits per second; zero is no limit.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Bandwidth {
    pub ingress_rate: u64,
    pub ingress_burst: u64,
    pub egress_rate: u64,
    pub egress_burst: u64,
}

fn default_true() -> bool {
    true
}

fn default_bridge() -> String {
    "ferry0".to_owned()
}

fn default_mtu() -> u32 {
    1500
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum PluginError {
    #[error("invalid network configuration: {0}")]
    Configuration(#[from] serde_json::Error),
    #[error("{0} is not set")]
    Missing(&'static str),
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error(transparent)]
    Port(#[from] PortError),
    #[error("failed to apply packet rules: {0}")]
    Rules(String),
    #[error("failed to {0}: {1}")]
    Kernel(&'static str, io::Error),
    #[error("unknown command {0:?}")]
    Command(String),
    #[error("{0}")]
    Check(String),
}

impl From<sys::nftables::NftError> for PluginError {
    fn from(error: sys::nftables::NftError) -> Self {
        match std::error::Error::source(&error) {
            Some(source) => Self::Rules(format!("{error}: {source}")),
            None => Self::Rules(error.to_string()),
        }
    }
}

pub(crate) trait ErrorContext<T> {
    fn doing(self, what: &'static str) -> Result<T, PluginError>;
}

impl<T> ErrorContext<T> for io::Result<T> {
    fn doing(self, what: &'static str) -> Result<T, PluginError> {
        self.map_err(|error| PluginError::Kernel(what, error))
    }
}

/// Runs the plugin: the command is in the environment, the configuration on standard input.
#[must_use]
pub fn main() -> ExitCode {
    // Exit with the runtime: it could not record the result; partial state is found and cleaned up later.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let mut input = String::new();
    // Limits the configuration to one megabyte.
    let read = io::stdin().take(1 << 20).read_to_string(&mut input);
    let version = serde_json::from_str::<Value>(&input).ok().map(|parsed| parsed["cniVersion"].clone());
    match read.doing("read network configuration").and_then(|_| run(&input)) {
        Ok(answer) => {
            if !answer.is_null() {
                println!("{answer}");
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            let code = match error {
                PluginError::Configuration(_) => 7,
                PluginError::Missing(_) | PluginError::Command(_) => 4,
                PluginError::Address(_) | PluginError::Port(_) => 11,
                PluginError::Kernel(..) | PluginError::Rules(_) => 5,
                PluginError::Check(_) => 100,
            };
            println!("{}", json!({"cniVersion": version, "code": code, "msg": error.to_string()}));
            ExitCode::FAILURE
        }
    }
}

fn variable(name: &'static str) -> Result<String, PluginError> {
    std::env::var(name).ok().filter(|value| !value.is_empty()).ok_or(PluginError::Missing(name))
}

fn run(input: &str) -> Result<Value, PluginError> {
    let command = variable("CNI_COMMAND")?;
    if command == "VERSION" {
        return Ok(json!({"cniVersion": "1.1.0", "supportedVersions": VERSIONS}));
    }
    let configuration: Configuration = serde_json::from_str(input)?;
    match command.as_str() {
        "ADD" => add(&configuration),
        "DEL" => delete(&configuration).map(|()| Value::Null),
        "CHECK" => check(&configuration).map(|()| Value::Null),
        "GC" => collect(&configuration).map(|()| Value::Null),
        "STATUS" => ranges(&configuration).map(|_| Value::Null),
        _ => Err(PluginError::Command(command)),
    }
}

fn ranges(configuration: &Configuration) -> Result<Vec<PodRange>, PluginError> {
    if configuration.subnets.is_empty() {
        return Err(PluginError::Missing("subnets"));
    }
    Ok(configuration.subnets.iter().map(|subnet| subnet.parse()).collect::<Result<_, _>>()?)
}

fn add(configuration: &Configuration) -> Result<Value, PluginError> {
    let (container, interface) = (variable("CNI_CONTAINERID")?, variable("CNI_IFNAME")?);
    let namespace_path = variable("CNI_NETNS")?;
    let namespace = File::open(&namespace_path).doing("open network namespace")?;
    let ranges = ranges(configuration)?;
    let mut netlink = Netlink::open().doing("open netlink socket")?;
    link::bridge(&mut netlink, configuration, &ranges)?;
    let taken = reserve(configuration, &container, &ranges)?;
    let bandwidth = configuration.runtime_config.bandwidth;
    let pod = link::Pod { container: &container, interface: &interface, namespace: &namespace, bandwidth };
    let outcome = link::connect(&mut netlink, configuration, &pod, &taken);
    let mac = match outcome {
        Ok(mac) => mac,
        Err(error) => {
            let _ = release(configuration, &container);
            return Err(error);
        }
    };
    let ips: Vec<Value> = taken
        .iter()
        .map(|(address, range)| {
            let alone = if address.is_ipv4() { 32 } else { 128 };
            json!({"interface": 1, "address": format!("{address}/{alone}"), "gateway": range.gateway()})
        })
        .collect();
    let routes: Vec<Value> = ranges
        .iter()
        .map(
            |range| json!({"dst": if range.is_ipv4() { "0.0.0.0/0" } else { "::/0" }, "gw": range.gateway()}),
        )
        .collect();
    Ok(json!({
        "cniVersion": configuration.cni_version,
        "interfaces": [
            {"name": link::veth_name(&container)},
            {"name": interface, "mac": mac, "sandbox": namespace_path},
        ],
        "ips": ips,
        "routes": routes,
    }))
}

/// Allocates addresses and ports of a pod, and updates the packet rules.
fn reserve<'a>(
    configuration: &Configuration,
    container: &str,
    ranges: &'a [PodRange],
) -> Result<Vec<(std::net::IpAddr, &'a PodRange)>, PluginError> {
    let book = AddressBook::open(&configuration.data_dir)?;
    let mut taken = Vec::new();
    for range in ranges {
        taken.push((book.take(range, container)?, range));
    }
    let addresses: Vec<_> = taken.iter().map(|(address, _)| *address).collect();
    let mut ports = Ports::read(&configuration.data_dir)?;
    let opened = ports.open(container, &configuration.runtime_config.port_mappings, &addresses);
    let ready = opened.map_err(PluginError::from).and_then(|()| {
        ports.write()?;
        rules(configuration, ranges, &ports, &book.list()?).apply(Some(container))
    });
    if let Err(error) = ready {
        let _ = ports.close(container).then(|| ports.write());
        let _ = book.release_owner(container);
        return Err(error);
    }
    Ok(taken)
}

fn rules<'a>(
    configuration: &'a Configuration,
    ranges: &'a [PodRange],
    ports: &'a Ports,
    pods: &'a [(std::net::IpAddr, String)],
) -> Rules<'a> {
    let named = configuration.cluster_subnets.iter().filter_map(|range| range.parse::<PodRange>().ok());
    let mut cluster: Vec<IpNet> = named.map(|range| range.cidr()).collect();
    if cluster.is_empty() {
        cluster = ranges.iter().map(PodRange::around).collect();
    }
    Rules {
        bridge: &configuration.bridge,
        subnets: ranges,
        cluster,
        masquerade: configuration.masquerade,
        ports,
        pods,
    }
}

/// Releases everything of a pod. Idempotent.
fn release(configuration: &Configuration, container: &str) -> Result<(), PluginError> {
    let mut netlink = Netlink::open().doing("open netlink socket")?;
    netlink.remove(&link::veth_name(container)).doing("remove veth pair")?;
    let book = AddressBook::open(&configuration.data_dir)?;
    link::forget(&mut netlink, &configuration.bridge, &book.of(container)?)?;
    let mut pods = book.list()?;
    sources::forget(&crate::rules::table(&configuration.bridge), &pods, container);
    pods.retain(|(_, owner)| owner != container);
    let mut ports = Ports::read(&configuration.data_dir)?;
    if ports.close(container) {
        // Rules first: if that fails, the file still records what to remove.
        rules(configuration, &ranges(configuration)?, &ports, &pods).apply(None)?;
        ports.write()?;
    }
    Ok(book.release_owner(container)?)
}

fn delete(configuration: &Configuration) -> Result<(), PluginError> {
    release(configuration, &variable("CNI_CONTAINERID")?)
}

fn check(configuration: &Configuration) -> Result<(), PluginError> {
    let (container, interface) = (variable("CNI_CONTAINERID")?, variable("CNI_IFNAME")?);
    let wanted = {
        let book = AddressBook::open(&configuration.data_dir)?;
        let ports = Ports::read(&configuration.data_dir)?;
        if !rules(configuration, &ranges(configuration)?, &ports, &[]).is_applied()? {
            return Err(PluginError::Check("packet rules are missing".to_owned()));
        }
        book.of(&container)?
    };
    let mut netlink = Netlink::open().doing("open netlink socket")?;
    if netlink.link(&link::veth_name(&container)).doing("get veth interface")?.is_none() {
        return Err(PluginError::Check(format!("veth interface of {container} is missing")));
    }
    let namespace = File::open(variable("CNI_NETNS")?).doing("open network namespace")?;
    process::enter(namespace.as_fd(), Namespace::Network).doing("enter network namespace")?;
    let has = Netlink::open()
        .and_then(|mut netlink| netlink.addresses(&interface))
        .doing("list interface addresses")?;
    match wanted.iter().find(|address| !has.iter().any(|found| found.addr() == **address)) {
        Some(missing) => Err(PluginError::Check(format!("{interface} does not have address {missing}"))),
        None if wanted.is_empty() => Err(PluginError::Check(format!("{container} has no address"))),
        None => Ok(()),
    }
}

/// Removes everything that belongs to no pod known to the runtime.
fn collect(configuration: &Configuration) -> Result<(), PluginError> {
    let valid: Vec<String> = configuration.valid.iter().map(|valid| valid.container.clone()).collect();
    let veth_names: Vec<String> = valid.iter().map(|container| link::veth_name(container)).collect();
    let mut netlink = Netlink::open().doing("open netlink socket")?;
    if let Some(bridge) = netlink.link(&configuration.bridge).doing("get bridge")? {
        for link in netlink.links().doing("list links")? {
            if link.master == Some(bridge.index)
                && link.name.starts_with("fe-")
                && !veth_names.contains(&link.name)
            {
                netlink.remove(&link.name).doing("remove veth pair")?;
            }
        }
    }
    let book = AddressBook::open(&configuration.data_dir)?;
    let mut ports = Ports::read(&configuration.data_dir)?;
    let mut pods = book.list()?;
    for (address, owner) in pods.iter().filter(|(_, owner)| !valid.contains(owner)) {
        link::forget(&mut netlink, &configuration.bridge, &[*address])?;
        sources::forget(&crate::rules::table(&configuration.bridge), &pods, owner);
    }
    pods.retain(|(_, owner)| valid.contains(owner));
    if ports.keep_only(&valid) {
        rules(configuration, &ranges(configuration)?, &ports, &pods).apply(None)?;
        ports.write()?;
    }
    Ok(book.keep_only(&valid)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cni_configuration_parses() {
        let parsed: Configuration =
            serde_json::from_str(r#"{"dataDir":"/x","subnets":["10.0.0.0/24","fd00::/64"]}"#).unwrap();
        assert_eq!((parsed.bridge.as_str(), parsed.mtu), ("ferry0", 1500));
        assert_eq!(ranges(&parsed).unwrap().len(), 2);
        let none: Configuration = serde_json::from_str(r#"{"dataDir":"/x"}"#).unwrap();
        assert!(matches!(ranges(&none), Err(PluginError::Missing("subnets"))));
    }
}
