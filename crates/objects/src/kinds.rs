//! The types that have a codec: one row each. A missing row is a compile error where the type is read or written.

use std::sync::Arc;

use serde_json::Error;

use crate::codec::{read, write};
use crate::meta::v1::{DeleteOptions, Status};
use crate::{
    Codec, Metadata, Object, PartialObject, Shared, admissionregistration, apps, authentication,
    authorization, autoscaling, batch, certificates, coordination, core, discovery, events, networking, node,
    policy, rbac, resource, storage, storagemigration,
};

macro_rules! codecs {
    ($($type:ty),* $(,)?) => {$(
        impl Codec for $type {
            #[inline(never)]
            fn decode(json: &[u8]) -> Result<Self, Error> {
                read(json)
            }

            #[inline(never)]
            fn encode(&self) -> Result<Vec<u8>, Error> {
                write(self)
            }
        }
    )*};
}

macro_rules! kinds {
    ($($type:ty),* $(,)?) => {
        codecs!($($type),*);
        $(impl Object for $type {
            #[inline(never)]
            fn decode_shared(json: &[u8]) -> Result<Shared, Error> {
                let mut object = <$type as Codec>::decode(json)?;
                object.metadata_mut().managed_fields = None;
                Ok(Arc::new(object))
            }
        })*
    };
}

kinds! {
    PartialObject,
    admissionregistration::v1::ValidatingAdmissionPolicy,
    apps::v1::ControllerRevision,
    apps::v1::DaemonSet,
    apps::v1::Deployment,
    apps::v1::ReplicaSet,
    apps::v1::StatefulSet,
    authorization::v1::SubjectAccessReview,
    autoscaling::v2::HorizontalPodAutoscaler,
    batch::v1::CronJob,
    batch::v1::Job,
    certificates::v1::CertificateSigningRequest,
    certificates::v1beta1::ClusterTrustBundle,
    coordination::v1::Lease,
    core::v1::ConfigMap,
    core::v1::Endpoints,
    core::v1::Event,
    core::v1::Namespace,
    core::v1::Node,
    core::v1::PersistentVolume,
    core::v1::PersistentVolumeClaim,
    core::v1::Pod,
    core::v1::ReplicationController,
    core::v1::ResourceQuota,
    core::v1::Secret,
    core::v1::Service,
    core::v1::ServiceAccount,
    discovery::v1::EndpointSlice,
    events::v1::Event,
    networking::v1::IPAddress,
    networking::v1::Ingress,
    networking::v1::IngressClass,
    networking::v1::NetworkPolicy,
    networking::v1::ServiceCIDR,
    node::v1::RuntimeClass,
    policy::v1::PodDisruptionBudget,
    rbac::v1::ClusterRole,
    rbac::v1::ClusterRoleBinding,
    resource::v1::DeviceClass,
    resource::v1::ResourceClaim,
    resource::v1::ResourceClaimTemplate,
    resource::v1::ResourceSlice,
    storage::v1::CSIDriver,
    storage::v1::CSINode,
    storage::v1::CSIStorageCapacity,
    storage::v1::StorageClass,
    storage::v1::VolumeAttachment,
    storage::v1::VolumeAttributesClass,
    storagemigration::v1beta1::StorageVersionMigration,
}

codecs! {
    DeleteOptions,
    Status,
    authentication::v1::TokenRequest,
    authentication::v1::TokenReview,
    core::v1::Binding,
    core::v1::NodeStatus,
    core::v1::PodStatus,
    core::v1::PodTemplateSpec,
}
