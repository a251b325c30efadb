//! Encodings and recordings of every kind: one binary, since each takes long to link.

mod decode;
mod empty_lists;
mod hostile;
mod managed_fields;
mod recorded_core_kinds;
mod recorded_workloads;
mod recorded_writes;
mod roundtrip;
