//! CSI migration: translates persistent volumes of in-tree drivers to the sources of their CSI drivers.
//!
//! The stored objects are unchanged; attaching and mounting such a volume use the translated source.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::core::v1::{CSIPersistentVolumeSource, PersistentVolume, PersistentVolumeSpec, SecretReference};

const UNSPECIFIED: &str = "UNSPECIFIED";
const AZURE_RESOURCE_GROUP: &str = "kubernetes.io/azure-file-resource-group";
const ZONE_LABELS: [&str; 2] = ["failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"];
const PORTWORX_SECRET: [&str; 2] =
    ["openstorage.io/auth-secret-name", "openstorage.io/auth-secret-namespace"];

/// CSI source of a volume: its own, or the translation of an in-tree one. `None` if the volume has no CSI driver, or
/// the source cannot be translated.
#[must_use]
pub fn csi_source(volume: &PersistentVolume) -> Option<Cow<'_, CSIPersistentVolumeSource>> {
    let spec = volume.spec.as_ref()?;
    if let Some(csi) = &spec.csi {
        return Some(Cow::Borrowed(csi));
    }
    const TRANSLATIONS: [fn(&PersistentVolume, &PersistentVolumeSpec) -> Option<CSIPersistentVolumeSource>;
        7] = [aws_ebs, gce_pd, cinder, azure_disk, azure_file, vsphere, portworx];
    TRANSLATIONS.iter().find_map(|translate| translate(volume, spec)).map(Cow::Owned)
}

fn source<const N: usize>(
    driver: &str,
    handle: impl Into<String>,
    fs_type: Option<&String>,
    read_only: Option<bool>,
    attributes: [(&str, String); N],
) -> CSIPersistentVolumeSource {
    let attributes: BTreeMap<String, String> =
        attributes.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    CSIPersistentVolumeSource {
        driver: driver.to_owned(),
        volume_handle: handle.into(),
        fs_type: fs_type.cloned(),
        read_only,
        volume_attributes: Some(attributes).filter(|attributes| !attributes.is_empty()),
        ..CSIPersistentVolumeSource::default()
    }
}

fn aws_ebs(_: &PersistentVolume, spec: &PersistentVolumeSpec) -> Option<CSIPersistentVolumeSource> {
    let disk = spec.aws_elastic_block_store.as_ref()?;
    // `vol-1`, `aws:///vol-1` and `aws://zone/vol-1` are the same.
    let handle = match disk.volume_id.strip_prefix("aws://") {
        Some(rest) => rest.split_once('/').map_or(rest, |(_, id)| id),
        None => &disk.volume_id,
    };
    if !handle.starts_with("vol-") || handle.contains('/') {
        return None;
    }
    let partition = disk.partition.unwrap_or(0).to_string();
    Some(source("ebs.csi.aws.com", handle, disk.fs_type.as_ref(), disk.read_only, [("partition", partition)]))
}

fn gce_pd(volume: &PersistentVolume, spec: &PersistentVolumeSpec) -> Option<CSIPersistentVolumeSource> {
    let disk = spec.gce_persistent_disk.as_ref()?;
    let labels = volume.metadata.labels.as_ref();
    let label = |name: &&str| labels?.get(*name).filter(|zones| !zones.is_empty());
    let zones = ZONE_LABELS.iter().find_map(label).map_or("", String::as_str);
    let name = &disk.pd_name;
    let handle = match zones.split("__").collect::<Vec<_>>()[..] {
        [""] => format!("projects/{UNSPECIFIED}/zones/{UNSPECIFIED}/disks/{name}"),
        [zone] => format!("projects/{UNSPECIFIED}/zones/{zone}/disks/{name}"),
        // A disk of several zones is a regional disk.
        [first, ..] => {
            let region = first.rsplit_once('-')?.0;
            let is_of_region = |zone: &str| zone.rsplit_once('-').is_some_and(|(of, _)| of == region);
            if !zones.split("__").all(is_of_region) {
                return None;
            }
            format!("projects/{UNSPECIFIED}/regions/{region}/disks/{name}")
        }
        [] => return None,
    };
    let partition = disk.partition.filter(|partition| *partition != 0).map(|partition| partition.to_string());
    let attributes = [("partition", partition.unwrap_or_default())];
    Some(source("pd.csi.storage.gke.io", handle, disk.fs_type.as_ref(), disk.read_only, attributes))
}

fn cinder(_: &PersistentVolume, spec: &PersistentVolumeSpec) -> Option<CSIPersistentVolumeSource> {
    let disk = spec.cinder.as_ref()?;
    Some(source(
        "cinder.csi.openstack.org",
        disk.volume_id.as_str(),
        disk.fs_type.as_ref(),
        disk.read_only,
        [],
    ))
}

fn azure_disk(_: &PersistentVolume, spec: &PersistentVolumeSpec) -> Option<CSIPersistentVolumeSource> {
    let disk = spec.azure_disk.as_ref()?;
    if disk.kind.as_ref().is_some_and(|kind| !kind.eq_ignore_ascii_case("Managed")) {
        return None;
    }
    let mut translated = source(
        "disk.csi.azure.com",
        disk.disk_uri.as_str(),
        disk.fs_type.as_ref(),
        disk.read_only,
        [("kind", "Managed".to_owned())],
    );
    let attributes = translated.volume_attributes.get_or_insert_default();
    attributes.extend(disk.caching_mode.clone().map(|mode| ("cachingMode".to_owned(), mode)));
    attributes.extend(disk.fs_type.clone().map(|kind| ("fsType".to_owned(), kind)));
    Some(translated)
}

fn azure_file(volume: &PersistentVolume, spec: &PersistentVolumeSpec) -> Option<CSIPersistentVolumeSource> {
    let share = spec.azure_file.as_ref()?;
    let secret = &share.secret_name;
    let account = secret.strip_prefix("azure-storage-account-").and_then(|rest| rest.strip_suffix("-secret"));
    let account = account.unwrap_or(secret);
    let group = volume.metadata.annotations.as_ref().and_then(|all| all.get(AZURE_RESOURCE_GROUP));
    let claimed = || spec.claim_ref.as_ref().and_then(|claim| claim.namespace.clone());
    let namespace = share.secret_namespace.clone().or_else(claimed).filter(|name| !name.is_empty())?;
    let handle = format!(
        "{}#{account}#{}#{}#{namespace}",
        group.map_or("", String::as_str),
        share.share_name,
        volume.metadata.name.as_deref().unwrap_or_default()
    );
    let attributes = [("sharename", share.share_name.clone())];
    let mut translated = source("file.csi.azure.com", handle, None, share.read_only, attributes);
    translated.node_stage_secret_ref =
        Some(SecretReference { name: Some(secret.clone()), namespace: Some(namespace) });
    Some(translated)
}

fn vsphere(_: &PersistentVolume, spec: &PersistentVolumeSpec) -> Option<CSIPersistentVolumeSource> {
    let disk = spec.vsphere_volume.as_ref()?;
    let mut translated =
        source("csi.vsphere.vmware.com", disk.volume_path.as_str(), disk.fs_type.as_ref(), None, []);
    if let Some(policy) = disk.storage_policy_name.clone().filter(|policy| !policy.is_empty()) {
        translated.volume_attributes.get_or_insert_default().insert("storagepolicyname".to_owned(), policy);
    }
    Some(translated)
}

fn portworx(volume: &PersistentVolume, spec: &PersistentVolumeSpec) -> Option<CSIPersistentVolumeSource> {
    let disk = spec.portworx_volume.as_ref()?;
    let mut translated = source("pxd.portworx.com", disk.volume_id.as_str(), disk.fs_type.as_ref(), None, []);
    let annotation = |name: &str| volume.metadata.annotations.as_ref()?.get(name).cloned();
    let [name, namespace] = PORTWORX_SECRET.map(annotation);
    if let (Some(name), Some(namespace)) = (name, namespace) {
        let secret = Some(SecretReference { name: Some(name), namespace: Some(namespace) });
        translated.controller_publish_secret_ref.clone_from(&secret);
        translated.node_stage_secret_ref.clone_from(&secret);
        translated.node_publish_secret_ref.clone_from(&secret);
        translated.controller_expand_secret_ref.clone_from(&secret);
        translated.node_expand_secret_ref = secret;
    }
    Some(translated)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn translated(metadata: &Value, spec: Value) -> Option<(String, String, Value)> {
        let object = json!({"metadata": metadata, "spec": spec});
        let volume: PersistentVolume = serde_json::from_value(object).expect("a volume");
        let csi = csi_source(&volume)?.into_owned();
        Some((csi.driver, csi.volume_handle, json!(csi.volume_attributes.unwrap_or_default())))
    }

    #[test]
    fn in_tree_volumes_are_translated_to_csi_sources() {
        let plain = json!({"name": "pv"});
        let zone = json!({"name": "pv", "labels": {"topology.kubernetes.io/zone": "eu-a"}});
        let zones = json!({"name": "pv", "labels": {"topology.kubernetes.io/zone": "eu-1-a__eu-1-b"}});
        let disk = json!({"gcePersistentDisk": {"pdName": "d", "partition": 2}});
        for (metadata, spec, driver, handle, attributes) in [
            (
                &plain,
                json!({"awsElasticBlockStore": {"volumeID": "aws://us-east-1a/vol-1", "partition": 3}}),
                "ebs.csi.aws.com",
                "vol-1",
                json!({"partition": "3"}),
            ),
            (
                &zone,
                disk.clone(),
                "pd.csi.storage.gke.io",
                "projects/UNSPECIFIED/zones/eu-a/disks/d",
                json!({"partition": "2"}),
            ),
            (
                &zones,
                disk,
                "pd.csi.storage.gke.io",
                "projects/UNSPECIFIED/regions/eu-1/disks/d",
                json!({"partition": "2"}),
            ),
            (&plain, json!({"cinder": {"volumeID": "c"}}), "cinder.csi.openstack.org", "c", json!({})),
            (
                &plain,
                json!({"azureDisk": {"diskName": "n", "diskURI": "/u", "cachingMode": "None", "fsType": "ext4"}}),
                "disk.csi.azure.com",
                "/u",
                json!({"kind": "Managed", "cachingMode": "None", "fsType": "ext4"}),
            ),
            (
                &plain,
                json!({"azureFile": {"secretName": "azure-storage-account-acc-secret", "shareName": "s",
                                     "secretNamespace": "n"}}),
                "file.csi.azure.com",
                "#acc#s#pv#n",
                json!({"sharename": "s"}),
            ),
            (
                &plain,
                json!({"vsphereVolume": {"volumePath": "[d] v", "storagePolicyName": "p"}}),
                "csi.vsphere.vmware.com",
                "[d] v",
                json!({"storagepolicyname": "p"}),
            ),
            (&plain, json!({"portworxVolume": {"volumeID": "p"}}), "pxd.portworx.com", "p", json!({})),
        ] {
            let want = Some((driver.to_owned(), handle.to_owned(), attributes));
            assert_eq!(translated(metadata, spec.clone()), want, "{spec}");
        }
    }

    #[test]
    fn volumes_without_a_driver_are_not_translated() {
        let plain = json!({"name": "pv"});
        for spec in [
            json!({"hostPath": {"path": "/x"}}),
            json!({"awsElasticBlockStore": {"volumeID": "nonsense"}}),
            json!({"azureDisk": {"diskName": "n", "diskURI": "/u", "kind": "Dedicated"}}),
            json!({"azureFile": {"secretName": "x", "shareName": "s"}}),
        ] {
            assert_eq!(translated(&plain, spec.clone()), None, "{spec}");
        }
    }
}
