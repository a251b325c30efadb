//! Typed API objects of Kubernetes and their JSON codecs.
//!
//! The types are those of k8s-openapi, re-exported by API group (`objects::core::v1::Pod`). This is the only crate that
//! names k8s-openapi: decoding and encoding of a type is instantiated here, behind the non-generic functions of
//! [`Codec`], so that no other crate compiles the derived serde code of the types again. A type gets a codec by a row in
//! `kinds.rs`.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod any;
mod codec;
pub mod csi_migration;
pub mod csi_topology;
mod kinds;
mod partial;

pub use any::{AnyObject, Shared, downcast};
pub use codec::{Codec, DecodeShared, Json, Object, from_value, to_value};
pub use k8s_openapi::api::{
    admissionregistration, apps, authentication, authorization, autoscaling, batch, certificates,
    coordination, core, discovery, events, networking, node, policy, rbac, resource, scheduling, storage,
    storagemigration,
};
pub use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
pub use k8s_openapi::apimachinery::pkg::apis::meta;
pub use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
pub use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
pub use k8s_openapi::{ByteString, Metadata, NamespaceResourceScope, Resource};
pub use partial::PartialObject;
