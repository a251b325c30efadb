//! Warnings about single containers and about ports across them.

use super::warn_fraction;
use crate::value::Fields;
use machinery::Value;
use machinery::field::Path;

pub fn warn_container(container: &Value, path: &Path<'_>, warnings: &mut Vec<String>) {
    let resources = container.field("resources");
    let resources_path = path.child("resources");
    for name in ["memory", "ephemeral-storage"] {
        for list in ["limits", "requests"] {
            let path = resources_path.child(list);
            warn_fraction(resources.field(list).field(name), &path.key(name), warnings);
        }
    }
    let variables = container.items("env");
    let path = path.child("env");
    for (index, variable) in variables.iter().enumerate() {
        let name = variable.text("name");
        if !variables[..index].iter().any(|other| other.text("name") == name) {
            continue;
        }
        // A later value that refers to the earlier one is not a duplicate.
        let reference = format!("$({name})");
        let value = variable.text("value");
        if variable.has("valueFrom") || value == reference || !value.contains(&reference) {
            let item = path.index(index);
            warnings.push(format!(
                "{item}: hides previous definition of {name:?}, which may be dropped when using apply"
            ));
        }
    }
}

/// A container port and its path.
struct Seen<'a> {
    port: &'a Value,
    path: String,
}

pub fn warn_ports(spec: &Value, path: &Path<'_>, warnings: &mut Vec<String>) {
    let mut all: Vec<Seen<'_>> = Vec::new();
    for (list, containers) in crate::pod_spec::container_lists(spec) {
        let path = path.child(list);
        for (index, container) in containers.iter().enumerate() {
            let item = path.index(index);
            let ports = item.child("ports");
            for (index, port) in container.items("ports").iter().enumerate() {
                all.push(Seen { port, path: ports.index(index).to_string() });
            }
        }
    }
    for (index, Seen { port, path }) in all.iter().enumerate() {
        let (address, number) = (port.text("hostIP"), port.int("hostPort"));
        if !address.is_empty() && number == 0 {
            warnings.push(format!(
                "{path}: hostIP set without hostPort: {{Name:{} HostPort:0 ContainerPort:{} Protocol:{} HostIP:{address}}}",
                port.text("name"),
                port.int("containerPort"),
                port.text("protocol"),
            ));
        }
        for other in &all[..index] {
            let same_port = other.port.int("containerPort") == port.int("containerPort")
                && other.port.text("protocol") == port.text("protocol");
            if !same_port {
                continue;
            }
            let (other_address, other_number) = (other.port.text("hostIP"), other.port.int("hostPort"));
            let problem = if address == other_address && number == other_number {
                "duplicate port definition"
            } else if number == 0 || other_number == 0 {
                "overlapping port definition"
            } else if number == other_number && address.is_empty() != other_address.is_empty() {
                "dangerously ambiguous port definition"
            } else {
                continue;
            };
            warnings.push(format!("{path}: {problem} with {}", other.path));
        }
    }
    for (index, Seen { port, path }) in all.iter().enumerate() {
        let name = port.text("name");
        if name.is_empty() {
            continue;
        }
        if let Some(other) = all[..index].iter().find(|other| other.port.text("name") == name) {
            let first = &other.path;
            warnings.push(format!(
                "{path}: duplicate port name {name:?} with {first}, services and probes that select ports by name will use {first}"
            ));
        }
    }
}
