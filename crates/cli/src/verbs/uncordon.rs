//! `kubectl uncordon`.

use crate::flags::{DRY_RUN, SELECTOR};
use crate::verbs::{Verb, cordon};

pub const VERB: Verb =
    Verb::new("uncordon", "Mark node as schedulable", "NODE", &[SELECTOR, DRY_RUN], |session, matches| {
        Box::pin(cordon::run(session, matches, false))
    });
