//! CronJob.

use crate::{Kind, Scope};

pub static KIND: Kind = Kind { ..Kind::new("batch", "v1", "CronJob", "cronjobs", Scope::Namespaced) };
