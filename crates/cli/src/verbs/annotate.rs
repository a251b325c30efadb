//! `kubectl annotate`; shares its mechanism with `label`.

use crate::verbs::Verb;
use crate::verbs::label::{self, Wording};

pub const VERB: Verb = Verb::new(
    "annotate",
    "Update the annotations on a resource",
    "[--overwrite] (-f FILENAME | TYPE NAME) KEY_1=VAL_1 ... KEY_N=VAL_N [--resource-version=version]",
    label::FLAGS,
    |session, matches| Box::pin(label::run(session, matches, &ANNOTATIONS)),
);

const ANNOTATIONS: Wording = Wording {
    member: "annotations",
    noun: "annotation",
    manager: "kubectl-annotate",
    done: "annotated",
    undone: "annotated",
    unchanged: "annotated",
};
