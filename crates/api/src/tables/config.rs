//! Namespaces, config maps, secrets, service accounts, quotas; component statuses.

use super::cell::{age, count, get, list, name, quantity, text};
use super::{AGE, NAME, column, doc, plain};
use crate::kind::Table;
use machinery::Value;

pub(crate) static CONFIG_MAP: Table =
    plain(&[NAME, column("Data", "string", doc::CONFIG_MAP_DATA), AGE], |object, context| {
        let entries = count(object, &["data"]) + count(object, &["binaryData"]);
        vec![name(object), entries.into(), age(object, context)]
    });

pub(crate) static SECRET: Table = plain(
    &[NAME, column("Type", "string", doc::SECRET_TYPE), column("Data", "string", doc::SECRET_DATA), AGE],
    |object, context| {
        vec![
            name(object),
            text(object, &["type"]).into(),
            count(object, &["data"]).into(),
            age(object, context),
        ]
    },
);

pub(crate) static SERVICE_ACCOUNT: Table =
    plain(&[NAME, AGE], |object, context| vec![name(object), age(object, context)]);

pub(crate) static NAMESPACE: Table =
    plain(&[NAME, column("Status", "string", "The status of the namespace"), AGE], |object, context| {
        vec![name(object), text(object, &["status", "phase"]).into(), age(object, context)]
    });

pub(crate) static RESOURCE_QUOTA: Table = plain(
    &[
        NAME,
        column(
            "Request",
            "string",
            "Request represents a minimum amount of cpu/memory that a container may consume.",
        ),
        column(
            "Limit",
            "string",
            "Limits control the maximum amount of cpu/memory that a container may use independent of contention on the node.",
        ),
        AGE,
    ],
    |quota, context| {
        let (mut requests, mut limits) = (Vec::new(), Vec::new());
        for resource in
            get(quota, &["status", "hard"]).and_then(Value::as_object).into_iter().flat_map(|m| m.keys())
        {
            let used = quantity(quota, &["status", "used", resource]);
            let hard = quantity(quota, &["status", "hard", resource]);
            let column = if resource.starts_with("limits.") { &mut limits } else { &mut requests };
            column.push(format!("{resource}: {used}/{hard}"));
        }
        vec![name(quota), requests.join(", ").into(), limits.join(", ").into(), age(quota, context)]
    },
);

pub(crate) static COMPONENT_STATUS: Table = plain(
    &[
        NAME,
        column("Status", "string", "Status of the component conditions"),
        column("Message", "string", "Message of the component conditions"),
        column("Error", "string", "Error of the component conditions"),
    ],
    |object, _| {
        let healthy =
            list(object, &["conditions"]).iter().find(|condition| text(condition, &["type"]) == "Healthy");
        let of = |field| healthy.map_or("", |condition| text(condition, &[field]));
        let status = match healthy.map(|condition| text(condition, &["status"])) {
            Some("True") => "Healthy",
            Some(_) => "Unhealthy",
            None => "Unknown",
        };
        vec![name(object), status.into(), of("message").into(), of("error").into()]
    },
);
