//! Process foundations: logging, metrics, clock, task groups, drain, readiness, PKI.

pub mod tasks;
