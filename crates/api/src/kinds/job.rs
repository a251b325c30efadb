//! Job.

use crate::{Kind, Scope};

pub static KIND: Kind = Kind { ..Kind::new("batch", "v1", "Job", "jobs", Scope::Namespaced) };
