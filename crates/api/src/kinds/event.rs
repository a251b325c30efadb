//! Event.

use crate::{Kind, Scope};

pub static KIND: Kind = Kind { ..Kind::new("", "v1", "Event", "events", Scope::Namespaced) };

pub static EVENTS_KIND: Kind =
    Kind { ..Kind::new("events.k8s.io", "v1", "Event", "events", Scope::Namespaced) };
