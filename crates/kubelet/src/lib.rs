//! The node agent: pod lifecycle, probes, volumes, resources, node status, its own HTTPS API.

pub mod lifecycle;
