//! Dynamic resource allocation: device classes, claims, claim templates, slices.

use super::cell::{age, get, list, name, since, text};
use super::{AGE, NAME, column, doc, plain};
use crate::kind::Table;
use machinery::{Value, meta};

pub(crate) static NAME_AND_AGE: Table =
    plain(&[NAME, AGE], |object, context| vec![name(object), age(object, context)]);

pub(crate) static RESOURCE_CLAIM: Table = plain(
    &[
        NAME,
        column("State", "string", "A summary of the current state (allocated, pending, reserved, etc.)."),
        AGE,
    ],
    |claim, context| vec![name(claim), state(claim).into(), age(claim, context)],
);

fn state(claim: &Value) -> String {
    let deleted = meta::deletion_timestamp(claim).is_some();
    let mut states = Vec::new();
    if deleted {
        states.push("deleted");
    }
    if get(claim, &["status", "allocation"]).is_some() {
        states.push("allocated");
        if !list(claim, &["status", "reservedFor"]).is_empty() {
            states.push("reserved");
        }
    } else if !deleted {
        states.push("pending");
    }
    states.join(",")
}

pub(crate) static DEVICE_TAINT_RULE: Table = plain(
    &[
        NAME,
        column("Key", "string", "The taint key to be applied to a device. Must be a label name."),
        column("Value", "string", "The taint value corresponding to the taint key. Must be a label value."),
        column("Effect", "string", "The effect of the taint on claims that do not tolerate the taint."),
        column("TimeAdded", "string", "TimeAdded represents the time at which the taint was added."),
        AGE,
    ],
    |rule, context| {
        let taint = |field| text(rule, &["spec", "taint", field]);
        let added = taint("timeAdded");
        let added = if added.is_empty() { String::new() } else { since(added, context) };
        vec![
            name(rule),
            taint("key").into(),
            taint("value").into(),
            taint("effect").into(),
            added.into(),
            age(rule, context),
        ]
    },
);

pub(crate) static RESOURCE_SLICE: Table = plain(
    &[
        NAME,
        column("Node", "string", doc::RESOURCE_SLICE_SPEC_NODE_NAME),
        column("Driver", "string", doc::RESOURCE_SLICE_SPEC_DRIVER),
        column("Pool", "string", doc::RESOURCE_POOL_NAME),
        AGE,
    ],
    |slice, context| {
        vec![
            name(slice),
            text(slice, &["spec", "nodeName"]).into(),
            text(slice, &["spec", "driver"]).into(),
            text(slice, &["spec", "pool", "name"]).into(),
            age(slice, context),
        ]
    },
);
