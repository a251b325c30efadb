use super::expect;
use serde_json::json;

#[test]
fn volume_shows_its_source_and_phase() {
    let volume = json!({"metadata": {"name": "v"},
        "spec": {"storageClassName": "fast", "persistentVolumeReclaimPolicy": "Retain",
            "capacity": {"storage": "5Gi"}, "claimRef": {"name": "c", "namespace": "n"},
            "iscsi": {"targetPortal": "p", "iqn": "q", "initiatorName": "i"}},
        "status": {"phase": "Bound"}});
    expect(
        "persistentvolumes",
        r#"persistentvolume="v""#,
        volume,
        r#"
        kube_persistentvolume_claim_ref{ID,name="c",claim_namespace="n"} 1
        kube_persistentvolume_status_phase{ID,phase="Pending"} 0
        kube_persistentvolume_status_phase{ID,phase="Available"} 0
        kube_persistentvolume_status_phase{ID,phase="Bound"} 1
        kube_persistentvolume_status_phase{ID,phase="Released"} 0
        kube_persistentvolume_status_phase{ID,phase="Failed"} 0
        kube_persistentvolume_info{ID,storageclass="fast",gce_persistent_disk_name="",ebs_volume_id="",azure_disk_name="",fc_wwids="",fc_lun="",fc_target_wwns="",iscsi_target_portal="p",iscsi_iqn="q",iscsi_lun="0",iscsi_initiator_name="i",nfs_server="",nfs_path="",csi_driver="",csi_volume_handle="",local_path="",local_fs="",host_path="",host_path_type="",reclaim_policy="Retain"} 1
        kube_persistentvolume_capacity_bytes{ID} 5.36870912e+09
        kube_persistentvolume_volume_mode{ID,volumemode="Filesystem"} 1
    "#,
    );
    let fibre = json!({"metadata": {"name": "v"},
        "spec": {"fc": {"lun": 7, "targetWWNs": ["a", "b"], "wwids": ["c"]}, "volumeMode": "Block"}});
    expect(
        "persistentvolumes",
        r#"persistentvolume="v""#,
        fibre,
        r#"
        kube_persistentvolume_info{ID,storageclass="",gce_persistent_disk_name="",ebs_volume_id="",azure_disk_name="",fc_wwids="c",fc_lun="7",fc_target_wwns="a,b",iscsi_target_portal="",iscsi_iqn="",iscsi_lun="",iscsi_initiator_name="",nfs_server="",nfs_path="",csi_driver="",csi_volume_handle="",local_path="",local_fs="",host_path="",host_path_type="",reclaim_policy=""} 1
        kube_persistentvolume_capacity_bytes{ID} 0
        kube_persistentvolume_volume_mode{ID,volumemode="Block"} 1
    "#,
    );
}

#[test]
fn claim_has_class_size_and_modes() {
    let claim = json!({"metadata": {"namespace": "n", "name": "c",
            "annotations": {"volume.beta.kubernetes.io/storage-class": "old"}},
        "spec": {"storageClassName": "new", "volumeName": "v", "volumeMode": "Filesystem",
            "accessModes": ["ReadWriteOnce", "ReadOnlyMany"], "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": "Bound", "conditions": [{"type": "Resizing", "status": "True"}]}});
    expect(
        "persistentvolumeclaims",
        r#"namespace="n",persistentvolumeclaim="c""#,
        claim,
        r#"
        kube_persistentvolumeclaim_info{ID,storageclass="old",volumename="v",volumemode="Filesystem"} 1
        kube_persistentvolumeclaim_status_phase{ID,phase="Lost"} 0
        kube_persistentvolumeclaim_status_phase{ID,phase="Bound"} 1
        kube_persistentvolumeclaim_status_phase{ID,phase="Pending"} 0
        kube_persistentvolumeclaim_resource_requests_storage_bytes{ID} 1.073741824e+09
        kube_persistentvolumeclaim_access_mode{ID,access_mode="ReadWriteOnce"} 1
        kube_persistentvolumeclaim_access_mode{ID,access_mode="ReadOnlyMany"} 1
        kube_persistentvolumeclaim_status_condition{ID,condition="Resizing",status="true"} 1
        kube_persistentvolumeclaim_status_condition{ID,condition="Resizing",status="false"} 0
        kube_persistentvolumeclaim_status_condition{ID,condition="Resizing",status="unknown"} 0
    "#,
    );
}

#[test]
fn class_and_attachment_have_their_fields() {
    let class = json!({"metadata": {"name": "s"}, "provisioner": "p", "reclaimPolicy": "Retain"});
    expect(
        "storageclasses",
        r#"storageclass="s""#,
        class,
        r#"
        kube_storageclass_info{ID,provisioner="p",reclaim_policy="Retain",volume_binding_mode="Immediate"} 1
    "#,
    );
    let attachment = json!({"metadata": {"name": "a", "labels": {"app": "x"}},
        "spec": {"attacher": "driver", "nodeName": "node1", "source": {"persistentVolumeName": "v"}},
        "status": {"attached": true, "attachmentMetadata": {"devicePath": "/dev/sdc"}}});
    expect(
        "volumeattachments",
        r#"volumeattachment="a""#,
        attachment,
        r#"
        kube_volumeattachment_labels{ID,label_app="x"} 1
        kube_volumeattachment_info{ID,attacher="driver",node="node1"} 1
        kube_volumeattachment_spec_source_persistentvolume{ID,volumename="v"} 1
        kube_volumeattachment_status_attached{ID} 1
        kube_volumeattachment_status_attachment_metadata{ID,metadata_device_path="/dev/sdc"} 1
    "#,
    );
}

#[test]
fn config_map_and_secret_show_no_contents() {
    let map =
        json!({"metadata": {"namespace": "n", "name": "m", "resourceVersion": "123456"}, "data": {"k": "v"}});
    expect(
        "configmaps",
        r#"namespace="n",configmap="m""#,
        map,
        "
        kube_configmap_info{ID} 1
        kube_configmap_metadata_resource_version{ID} 123456
    ",
    );
    let secret = json!({"metadata": {"namespace": "n", "name": "s", "resourceVersion": "x"}, "type": "Opaque",
        "data": {"k": "dg=="}});
    expect(
        "secrets",
        r#"namespace="n",secret="s""#,
        secret,
        r#"
        kube_secret_info{ID} 1
        kube_secret_type{ID,type="Opaque"} 1
        kube_secret_owner{ID,owner_kind="",owner_name="",owner_is_controller=""} 1
    "#,
    );
}
