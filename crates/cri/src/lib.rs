//! The container runtime interface: messages, client and server plumbing.
