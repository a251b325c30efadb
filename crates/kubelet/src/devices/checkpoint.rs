//! The checkpoint of allocations, with the file name and fields of Kubernetes, which node agents read.

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::path::Path;
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cri::device_plugin::ContainerAllocateResponse;
use prost::Message as _;
use serde::{Deserialize, Serialize};

use super::inventory::{Allocation, Inventory};

pub const FILE: &str = "kubelet_internal_checkpoint";
/// Maximum size of the file.
const MAX_SIZE: u64 = 64 << 20;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    #[serde(rename = "PodUID")]
    pod_uid: String,
    container_name: String,
    resource_name: String,
    #[serde(rename = "DeviceIDs")]
    device_ids: BTreeMap<i64, Vec<String>>,
    /// The plugin's response as protobuf in base64.
    alloc_resp: String,
}

/// Allocations, and the healthy devices of registered resources.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Checkpoint {
    pod_device_entries: Option<Vec<Entry>>,
    registered_devices: Option<BTreeMap<String, Option<Vec<String>>>>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct File {
    data: Checkpoint,
    checksum: u64,
}

impl Checkpoint {
    fn of(inventory: &Inventory) -> Self {
        let entries = inventory.allocations().map(|(uid, container, resource, allocation)| Entry {
            pod_uid: uid.clone(),
            container_name: container.clone(),
            resource_name: resource.clone(),
            device_ids: allocation.devices.clone(),
            alloc_resp: STANDARD.encode(allocation.response.encode_to_vec()),
        });
        let resources = inventory.resources();
        let resources =
            resources.map(|(name, healthy)| (name.clone(), Some(healthy.iter().cloned().collect())));
        Self { pod_device_entries: Some(entries.collect()), registered_devices: Some(resources.collect()) }
    }

    /// Changes of the content other than accidental ones are not detected.
    fn checksum(&self) -> u64 {
        let bytes = serde_json::to_vec(self).unwrap_or_default();
        let step = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        u64::from(bytes.iter().fold(0x811c_9dc5, step))
    }

    /// State after a restart: allocations, and resources whose plugins have not registered again.
    pub fn into_inventory(self, now: Instant) -> Inventory {
        let mut inventory = Inventory::default();
        for name in self.registered_devices.into_iter().flatten().map(|(name, _)| name) {
            inventory.restore_resource(name, now);
        }
        for entry in self.pod_device_entries.into_iter().flatten() {
            let response = STANDARD.decode(&entry.alloc_resp).ok();
            let response = response.and_then(|bytes| ContainerAllocateResponse::decode(&*bytes).ok());
            let Some(response) = response else {
                tracing::warn!(
                    pod = entry.pod_uid,
                    resource = entry.resource_name,
                    "skipping damaged device allocation"
                );
                continue;
            };
            let allocation = Allocation { devices: entry.device_ids, response };
            inventory.insert(&entry.pod_uid, &entry.container_name, &entry.resource_name, allocation);
        }
        inventory
    }
}

/// Content of the file for a state.
pub fn encode(inventory: &Inventory) -> Vec<u8> {
    let data = Checkpoint::of(inventory);
    let checksum = data.checksum();
    serde_json::to_vec(&File { data, checksum }).unwrap_or_default()
}

/// Reads the checkpoint; `None` if there is none.
pub fn read(directory: &Path) -> io::Result<Option<Checkpoint>> {
    let file = match std::fs::File::open(directory.join(FILE)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut text = Vec::new();
    file.take(MAX_SIZE).read_to_end(&mut text)?;
    let file: File = serde_json::from_slice(&text)?;
    if file.checksum != file.data.checksum() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "checkpoint is corrupted"));
    }
    Ok(Some(file.data))
}
