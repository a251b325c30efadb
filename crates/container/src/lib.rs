//! The embedded container runtime: images, snapshots, sandboxes, containers, logs, streaming, networks.
