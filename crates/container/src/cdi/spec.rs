//! CDI spec files: their form, validation and discovery.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// Versions of the form that are understood.
const VERSIONS: [&str; 10] =
    ["0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0", "1.0.1"];
/// Maximum size of a file, and number of files per directory.
const MAX_SIZE: u64 = 4 << 20;
const MAX_FILES: usize = 1000;

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SpecFile {
    cdi_version: String,
    kind: String,
    #[serde(default, rename = "annotations")]
    _annotations: BTreeMap<String, String>,
    #[serde(default)]
    devices: Vec<CdiDevice>,
    #[serde(default)]
    container_edits: ContainerEdits,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CdiDevice {
    pub name: String,
    #[serde(default, rename = "annotations")]
    _annotations: BTreeMap<String, String>,
    #[serde(default, rename = "containerEdits")]
    pub edits: ContainerEdits,
}

/// Changes to a container.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ContainerEdits {
    #[serde(default)]
    pub env: Vec<String>,
    #[serde(default)]
    pub device_nodes: Vec<DeviceNode>,
    #[serde(default)]
    pub mounts: Vec<CdiMount>,
    #[serde(default)]
    pub hooks: Vec<CdiHook>,
    #[serde(default, rename = "additionalGids")]
    pub additional_gids: Vec<u32>,
    #[serde(default)]
    pub intel_rdt: Option<serde_json::Value>,
    #[serde(default)]
    pub net_devices: Vec<serde_json::Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeviceNode {
    pub path: String,
    #[serde(default)]
    pub host_path: String,
    #[serde(default)]
    pub r#type: String,
    #[serde(default)]
    pub major: Option<i64>,
    #[serde(default)]
    pub minor: Option<i64>,
    #[serde(default)]
    pub file_mode: Option<u32>,
    #[serde(default)]
    pub permissions: String,
    #[serde(default)]
    pub uid: Option<u32>,
    #[serde(default)]
    pub gid: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CdiMount {
    pub host_path: String,
    pub container_path: String,
    #[serde(default)]
    pub options: Vec<String>,
    #[serde(default)]
    pub r#type: String,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CdiHook {
    pub hook_name: String,
    pub path: String,
    #[serde(default)]
    pub args: Vec<String>,
    #[serde(default)]
    pub env: Vec<String>,
    #[serde(default)]
    pub timeout: Option<u64>,
}

/// A valid spec.
#[derive(Clone, Debug)]
pub struct CdiSpec {
    pub path: PathBuf,
    /// Position of its directory: higher ones take precedence.
    pub priority: usize,
    pub kind: String,
    pub devices: Vec<CdiDevice>,
    pub edits: ContainerEdits,
}

/// Reads the specs of all directories; also returns the errors of invalid ones.
pub fn read_all(directories: &[PathBuf]) -> (Vec<CdiSpec>, Vec<String>) {
    let (mut specs, mut errors) = (Vec::new(), Vec::new());
    for (priority, directory) in directories.iter().enumerate() {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = entries
            .map(|entry| entry.path())
            .filter(|path| {
                path.extension()
                    .is_some_and(|extension| ["json", "yaml"].iter().any(|known| extension == *known))
            })
            .take(MAX_FILES)
            .collect();
        paths.sort();
        for path in paths {
            match read(&path, priority) {
                Ok(spec) => specs.push(spec),
                Err(error) => {
                    tracing::warn!(path = %path.display(), error, "invalid CDI spec");
                    errors.push(format!("{}: {error}", path.display()));
                }
            }
        }
    }
    (specs, errors)
}

fn read(path: &Path, priority: usize) -> Result<CdiSpec, String> {
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    if !file.metadata().is_ok_and(|found| found.is_file()) {
        return Err("not a regular file".to_owned());
    }
    let mut text = String::new();
    file.take(MAX_SIZE).read_to_string(&mut text).map_err(|error| error.to_string())?;
    let value = machinery::codec::yaml::decode(text.as_bytes()).map_err(|error| error.to_string())?.value;
    let spec: SpecFile = serde_json::from_value(value).map_err(|error| error.to_string())?;
    let version = spec.cdi_version.trim_start_matches('v');
    if !VERSIONS.contains(&version) {
        return Err(format!("unsupported CDI version {:?}", spec.cdi_version));
    }
    let (vendor, class) = spec
        .kind
        .split_once('/')
        .ok_or_else(|| format!("invalid kind {:?}, must be vendor/class", spec.kind))?;
    if !is_name(vendor, "_-.") || !is_name(class, "_-.") {
        return Err(format!("invalid kind {:?}, must be vendor/class", spec.kind));
    }
    let mut names = BTreeSet::new();
    for device in &spec.devices {
        if !is_name(&device.name, "_-.:") {
            return Err(format!("invalid device name {:?}", device.name));
        }
        if !names.insert(device.name.as_str()) {
            return Err(format!("multiple definitions of device {:?}", device.name));
        }
    }
    Ok(CdiSpec {
        path: path.to_owned(),
        priority,
        kind: spec.kind,
        devices: spec.devices,
        edits: spec.container_edits,
    })
}

/// Letters, digits and `inner` between letters or digits.
fn is_name(name: &str, inner: &str) -> bool {
    let is_edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    is_edge(name.chars().next())
        && is_edge(name.chars().last())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || inner.contains(c))
}
