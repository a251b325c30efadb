//! Validation shared by kinds, or too large for a kind's own file: one topic per file.

pub mod checks;
pub mod label_selector;
pub mod service;
pub mod service_addresses;
