//! Settings of a container that device plugins require.

use std::collections::{BTreeMap, BTreeSet};

use cri::v1::{Device, Mount};

use super::inventory::Allocation;

/// Environment, mounts, devices, annotations and CDI devices of one container.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceOptions {
    pub environment: BTreeMap<String, String>,
    pub mounts: Vec<Mount>,
    pub devices: Vec<Device>,
    pub annotations: BTreeMap<String, String>,
    pub cdi_devices: Vec<String>,
}

impl DeviceOptions {
    /// Combines the responses of plugins; the first of conflicting settings applies.
    pub(super) fn of<'a>(allocations: impl Iterator<Item = &'a Allocation>) -> Self {
        let mut options = Self::default();
        let (mut mounted, mut mapped) = (BTreeSet::new(), BTreeSet::new());
        for response in allocations.map(|allocation| &allocation.response) {
            add(&mut options.environment, &response.envs, "environment variable");
            add(&mut options.annotations, &response.annotations, "annotation");
            for device in &response.devices {
                if mapped.insert(device.container_path.clone()) {
                    options.devices.push(Device {
                        container_path: device.container_path.clone(),
                        host_path: device.host_path.clone(),
                        permissions: device.permissions.clone(),
                    });
                }
            }
            for mount in &response.mounts {
                if mounted.insert(mount.container_path.clone()) {
                    options.mounts.push(Mount {
                        container_path: mount.container_path.clone(),
                        host_path: mount.host_path.clone(),
                        readonly: mount.read_only,
                        ..Mount::default()
                    });
                }
            }
            for device in &response.cdi_devices {
                options.add_cdi_device(&device.name);
            }
        }
        options
    }

    /// Adds a CDI device by its qualified name, once.
    pub fn add_cdi_device(&mut self, name: &str) {
        if !self.cdi_devices.iter().any(|known| known == name) {
            self.cdi_devices.push(name.to_owned());
        }
    }
}

fn add(all: &mut BTreeMap<String, String>, more: &BTreeMap<String, String>, what: &str) {
    for (key, value) in more {
        let known = all.entry(key.clone()).or_insert_with(|| value.clone());
        if known != value {
            tracing::warn!(key, "device plugins require different values of an {what}, using the first");
        }
    }
}
