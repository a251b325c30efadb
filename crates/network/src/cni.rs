//! The plugin's commands: ADD, DEL, CHECK, GC, STATUS, VERSION. It runs as a process with one thread.

use std::fs::File;
use std::io::{self, Read as _};
use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::ExitCode;

use serde::Deserialize;
use serde_json::{Value, json};
use sys::netlink::Netlink;
use sys::process::{self, Namespace};

use crate::addresses::{AddressError, Book, Range};

const VERSIONS: &[&str] = &["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Configuration {
    #[serde(default)]
    cni_version: String,
    #[serde(default = "default_bridge")]
    bridge: String,
    #[serde(default)]
    subnets: Vec<String>,
    data_dir: PathBuf,
    #[serde(default = "default_mtu")]
    mtu: u32,
    #[serde(default, rename = "cni.dev/valid-attachments")]
    valid: Vec<Valid>,
}

#[derive(Debug, Deserialize)]
struct Valid {
    #[serde(rename = "containerID")]
    container: String,
}

fn default_bridge() -> String {
    "ferry0".to_owned()
}

fn default_mtu() -> u32 {
    1500
}

#[derive(Debug, thiserror::Error)]
enum PluginError {
    #[error("the configuration is not valid: {0}")]
    Configuration(#[from] serde_json::Error),
    #[error("{0} is not set")]
    Missing(&'static str),
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error("{0}: {1}")]
    Kernel(&'static str, io::Error),
    #[error("command {0:?} is not known")]
    Command(String),
    #[error("{0}")]
    Check(String),
}

trait Doing<T> {
    fn doing(self, what: &'static str) -> Result<T, PluginError>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, what: &'static str) -> Result<T, PluginError> {
        self.map_err(|error| PluginError::Kernel(what, error))
    }
}

/// Runs the plugin: commands come in the environment, the configuration on standard input.
#[must_use]
pub fn main() -> ExitCode {
    let mut input = String::new();
    // A configuration of a megabyte is none.
    let read = io::stdin().take(1 << 20).read_to_string(&mut input);
    let version = serde_json::from_str::<Value>(&input).ok().map(|parsed| parsed["cniVersion"].clone());
    match read.doing("read the configuration").and_then(|_| run(&input)) {
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
                PluginError::Address(_) => 11,
                PluginError::Kernel(..) => 5,
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

fn ranges(configuration: &Configuration) -> Result<Vec<Range>, PluginError> {
    if configuration.subnets.is_empty() {
        return Err(PluginError::Missing("subnets"));
    }
    Ok(configuration.subnets.iter().map(|subnet| subnet.parse()).collect::<Result<_, _>>()?)
}

/// The name of the node's end of a pod's cable: short, and the same for the same pod.
fn cable(container: &str) -> String {
    let short: String = container.chars().filter(char::is_ascii_alphanumeric).take(11).collect();
    format!("fe-{short}")
}

fn add(configuration: &Configuration) -> Result<Value, PluginError> {
    let (container, interface) = (variable("CNI_CONTAINERID")?, variable("CNI_IFNAME")?);
    let namespace_path = variable("CNI_NETNS")?;
    let namespace = File::open(&namespace_path).doing("open the network namespace")?;
    let ranges = ranges(configuration)?;
    let mut netlink = Netlink::open().doing("talk to the kernel")?;
    bridge(&mut netlink, configuration, &ranges)?;
    let mut taken = Vec::new();
    {
        let book = Book::open(&configuration.data_dir)?;
        for range in &ranges {
            taken.push((book.take(range, &container)?, range));
        }
    }
    let outcome = connect(&mut netlink, configuration, &container, &interface, &namespace, &taken);
    let mac = match outcome {
        Ok(mac) => mac,
        Err(error) => {
            let _ = netlink.remove(&cable(&container));
            let _ = Book::open(&configuration.data_dir).and_then(|book| book.give_back(&container));
            return Err(error);
        }
    };
    let ips: Vec<Value> = taken
        .iter()
        .map(|(address, range)| {
            json!({"interface": 1, "address": format!("{address}/{}", range.prefix), "gateway": range.gateway()})
        })
        .collect();
    let routes: Vec<Value> = ranges
        .iter()
        .map(|range| json!({"dst": if range.base.is_ipv4() { "0.0.0.0/0" } else { "::/0" }, "gw": range.gateway()}))
        .collect();
    Ok(json!({
        "cniVersion": configuration.cni_version,
        "interfaces": [
            {"name": cable(&container)},
            {"name": interface, "mac": mac, "sandbox": namespace_path},
        ],
        "ips": ips,
        "routes": routes,
    }))
}

/// The bridge that the pods of this node hang on; it is their gateway.
fn bridge(netlink: &mut Netlink, configuration: &Configuration, ranges: &[Range]) -> Result<(), PluginError> {
    let name = &configuration.bridge;
    netlink.add_bridge(name, configuration.mtu).doing("make the bridge")?;
    for range in ranges {
        netlink.add_address(name, range.gateway(), range.prefix).doing("give the bridge an address")?;
        let file = if range.base.is_ipv4() {
            "/proc/sys/net/ipv4/ip_forward"
        } else {
            "/proc/sys/net/ipv6/conf/all/forwarding"
        };
        // Written only where it is not so: many systems have /proc/sys read-only for such as us.
        if std::fs::read_to_string(file).is_ok_and(|value| value.trim() == "0") {
            std::fs::write(file, "1").doing("let packets be forwarded")?;
        }
    }
    netlink.set_up(name).doing("bring up the bridge")
}

fn connect(
    netlink: &mut Netlink,
    configuration: &Configuration,
    container: &str,
    interface: &str,
    namespace: &File,
    addresses: &[(IpAddr, &Range)],
) -> Result<String, PluginError> {
    let name = cable(container);
    // What an interrupted attempt left.
    netlink.remove(&name).doing("remove an old cable")?;
    netlink.add_pair(&name, interface, namespace.as_fd(), configuration.mtu).doing("make the cable")?;
    netlink.plug(&name, &configuration.bridge).doing("plug in the cable")?;
    netlink.set_up(&name).doing("bring up the cable")?;
    let here = File::open("/proc/self/ns/net").doing("find the own network namespace")?;
    process::enter(namespace.as_fd(), Namespace::Network).doing("enter the network namespace")?;
    let inside = inside(interface, addresses);
    process::enter(here.as_fd(), Namespace::Network).doing("leave the network namespace")?;
    inside
}

fn inside(interface: &str, addresses: &[(IpAddr, &Range)]) -> Result<String, PluginError> {
    let mut netlink = Netlink::open().doing("talk to the kernel")?;
    for (address, range) in addresses {
        netlink.add_address(interface, *address, range.prefix).doing("give the pod its address")?;
    }
    netlink.set_up("lo").doing("bring up the pod's loopback")?;
    netlink.set_up(interface).doing("bring up the pod's interface")?;
    for (_, range) in addresses {
        netlink.add_route(None, Some(range.gateway()), interface).doing("give the pod a route")?;
    }
    let link = netlink.link(interface).doing("look at the pod's interface")?.unwrap_or_default();
    Ok(link.address.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":"))
}

fn delete(configuration: &Configuration) -> Result<(), PluginError> {
    let container = variable("CNI_CONTAINERID")?;
    let mut netlink = Netlink::open().doing("talk to the kernel")?;
    netlink.remove(&cable(&container)).doing("remove the cable")?;
    Ok(Book::open(&configuration.data_dir)?.give_back(&container)?)
}

fn check(configuration: &Configuration) -> Result<(), PluginError> {
    let (container, interface) = (variable("CNI_CONTAINERID")?, variable("CNI_IFNAME")?);
    let wanted = Book::open(&configuration.data_dir)?.of(&container)?;
    let mut netlink = Netlink::open().doing("talk to the kernel")?;
    if netlink.link(&cable(&container)).doing("look at the cable")?.is_none() {
        return Err(PluginError::Check(format!("the cable of {container} is gone")));
    }
    let namespace = File::open(variable("CNI_NETNS")?).doing("open the network namespace")?;
    process::enter(namespace.as_fd(), Namespace::Network).doing("enter the network namespace")?;
    let has =
        Netlink::open().and_then(|mut netlink| netlink.addresses(&interface)).doing("look at addresses")?;
    match wanted.iter().find(|address| !has.iter().any(|(found, _)| found == *address)) {
        Some(missing) => Err(PluginError::Check(format!("{interface} does not have address {missing}"))),
        None if wanted.is_empty() => Err(PluginError::Check(format!("{container} has no address"))),
        None => Ok(()),
    }
}

/// Removes what belongs to no pod that the runtime still knows.
fn collect(configuration: &Configuration) -> Result<(), PluginError> {
    let valid: Vec<String> = configuration.valid.iter().map(|valid| valid.container.clone()).collect();
    let cables: Vec<String> = valid.iter().map(|container| cable(container)).collect();
    let mut netlink = Netlink::open().doing("talk to the kernel")?;
    if let Some(bridge) = netlink.link(&configuration.bridge).doing("look at the bridge")? {
        for link in netlink.links().doing("list links")? {
            if link.master == Some(bridge.index)
                && link.name.starts_with("fe-")
                && !cables.contains(&link.name)
            {
                netlink.remove(&link.name).doing("remove a cable")?;
            }
        }
    }
    Ok(Book::open(&configuration.data_dir)?.keep_only(&valid)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_the_kernel() {
        let name = cable(&"0123456789abcdef".repeat(4));
        assert_eq!(name, "fe-0123456789a");
        assert!(name.len() < 16);
        assert_eq!(cable("../x/y"), "fe-xy");
    }

    #[test]
    fn configurations() {
        let parsed: Configuration =
            serde_json::from_str(r#"{"dataDir":"/x","subnets":["10.0.0.0/24","fd00::/64"]}"#).unwrap();
        assert_eq!((parsed.bridge.as_str(), parsed.mtu), ("ferry0", 1500));
        assert_eq!(ranges(&parsed).unwrap().len(), 2);
        let none: Configuration = serde_json::from_str(r#"{"dataDir":"/x"}"#).unwrap();
        assert!(matches!(ranges(&none), Err(PluginError::Missing("subnets"))));
    }
}
