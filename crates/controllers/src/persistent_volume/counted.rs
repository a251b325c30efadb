//! Numbers of volumes and claims.

use objects::core::v1::{PersistentVolume, PersistentVolumeClaim};
use objects::csi_migration::csi_source;
use runtime::{Cache, Context};

use super::plan::claim_class;
use crate::shared::metrics::VolumeMetrics;

/// Shows the numbers of volumes and claims.
pub fn show(
    ctx: &Context,
    metrics: &VolumeMetrics,
    volumes: &Cache<PersistentVolume>,
    claims: &Cache<PersistentVolumeClaim>,
) {
    let all = volumes.clone();
    metrics.total.compute(&ctx.tasks, move |rows| {
        for volume in all.all() {
            let mode = volume.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref());
            rows.with_label_values(&[&*plugin(&volume), mode.unwrap_or("Filesystem")]).inc();
        }
    });
    for (gauge, wanted) in [(&metrics.bound, true), (&metrics.unbound, false)] {
        let all = volumes.clone();
        gauge.compute(&ctx.tasks, move |rows| {
            for volume in all.all() {
                let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
                let class = volume.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
                if (phase == Some("Bound")) == wanted {
                    rows.with_label_values(&[class.unwrap_or_default()]).inc();
                }
            }
        });
    }
    for (gauge, wanted) in [(&metrics.bound_claims, true), (&metrics.unbound_claims, false)] {
        let all = claims.clone();
        gauge.compute(&ctx.tasks, move |rows| {
            for claim in all.all() {
                let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
                let attributes =
                    claim.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.as_deref());
                let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
                if (phase == Some("Bound")) == wanted {
                    let labels = [namespace, &claim_class(&claim), attributes.unwrap_or_default()];
                    rows.with_label_values(&labels).inc();
                }
            }
        });
    }
}

/// Name of the plugin of a volume, with the driver of CSI.
pub fn plugin(volume: &PersistentVolume) -> String {
    let Some(spec) = &volume.spec else { return "N/A".to_owned() };
    if let Some(csi) = csi_source(volume) {
        return format!("kubernetes.io/csi:{}", csi.driver);
    }
    let plugins = [
        (spec.local.is_some(), "kubernetes.io/local-volume"),
        (spec.host_path.is_some(), "kubernetes.io/host-path"),
        (spec.nfs.is_some(), "kubernetes.io/nfs"),
        (spec.iscsi.is_some(), "kubernetes.io/iscsi"),
        (spec.fc.is_some(), "kubernetes.io/fc"),
    ];
    plugins.iter().find(|(is_it, _)| *is_it).map_or("N/A", |(_, name)| name).to_owned()
}
