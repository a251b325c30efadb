//! The Container Device Interface: devices that vendors describe in files, by names such as `vendor.com/class=name`.
//!
//! [`spec`] reads the files, [`edits`] applies what they require to the spec of a container.

mod edits;
mod spec;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub use edits::apply;
use spec::{CdiSpec, ContainerEdits};

/// Directories of specs; those of later ones take precedence.
pub const DIRECTORIES: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];

/// Failure to find or add a CDI device.
#[derive(Debug, thiserror::Error)]
pub enum CdiError {
    #[error("unresolvable CDI devices {}{}", .0.join(", "), reasons(.1))]
    Unresolvable(Vec<String>, Vec<String>),
    #[error("CDI device {device}: {reason}")]
    Unsupported { device: String, reason: String },
}

fn reasons(errors: &[String]) -> String {
    if errors.is_empty() { String::new() } else { format!(" (invalid specs: {})", errors.join("; ")) }
}

/// A device and the spec that defines it.
struct Found<'a> {
    spec: &'a CdiSpec,
    edits: &'a ContainerEdits,
    priority: usize,
    /// Another spec of the same priority defines it, too.
    conflict: bool,
}

/// Edits for devices by their qualified names, in order: those of each spec once, before those of its devices.
pub fn edits_of(
    directories: &[PathBuf],
    names: &[String],
) -> Result<Vec<(String, ContainerEdits)>, CdiError> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let (specs, errors) = spec::read_all(directories);
    let devices = index(&specs);
    let unknown: Vec<String> =
        names.iter().filter(|name| devices.get(*name).is_none_or(|found| found.conflict)).cloned().collect();
    if !unknown.is_empty() {
        return Err(CdiError::Unresolvable(unknown, errors));
    }
    let mut used: Vec<&Path> = Vec::new();
    let mut edits = Vec::new();
    for name in names {
        let Some(found) = devices.get(name) else { continue };
        if !used.contains(&found.spec.path.as_path()) {
            used.push(&found.spec.path);
            edits.push((name.clone(), found.spec.edits.clone()));
        }
        edits.push((name.clone(), found.edits.clone()));
    }
    Ok(edits)
}

/// Devices by qualified name.
fn index(specs: &[CdiSpec]) -> BTreeMap<String, Found<'_>> {
    let mut devices: BTreeMap<String, Found<'_>> = BTreeMap::new();
    for spec in specs {
        for device in &spec.devices {
            let name = format!("{}={}", spec.kind, device.name);
            let found = Found { spec, edits: &device.edits, priority: spec.priority, conflict: false };
            match devices.get_mut(&name) {
                Some(known) if known.priority == spec.priority => known.conflict = true,
                Some(known) if known.priority > spec.priority => {}
                _ => {
                    devices.insert(name, found);
                }
            }
        }
    }
    devices
}

#[cfg(test)]
mod tests;
