//! PodTemplate.

use crate::{Kind, Scope};

pub static KIND: Kind = Kind { ..Kind::new("", "v1", "PodTemplate", "podtemplates", Scope::Namespaced) };
