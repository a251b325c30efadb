//! The rules of a pod's spec, shared by pods and everything that holds a pod template.

pub mod defaults;
pub mod image;
