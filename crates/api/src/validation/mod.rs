//! Validation shared by kinds, or too large for a kind's own file: one topic per file.

pub mod label_selector;
pub mod service;
