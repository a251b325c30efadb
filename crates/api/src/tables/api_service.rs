//! API services: backend and availability of a group version.

use super::cell::{age, condition, get, name, text};
use super::{AGE, NAME, column, plain};
use crate::kind::Table;
use machinery::Value;

pub(crate) static API_SERVICE: Table = plain(
    &[
        NAME,
        column("Service", "string", "The reference to the service that hosts this API endpoint."),
        column("Available", "string", "Whether this service is available."),
        AGE,
    ],
    |object, context| {
        let service = get(object, &["spec", "service"]).map_or("Local".to_owned(), |service| {
            format!("{}/{}", text(service, &["namespace"]), text(service, &["name"]))
        });
        vec![name(object), service.into(), available(object).into(), age(object, context)]
    },
);

fn available(object: &Value) -> String {
    let Some(condition) = condition(object, "Available") else { return "Unknown".to_owned() };
    match (text(condition, &["status"]), text(condition, &["reason"])) {
        ("True", _) => "True".to_owned(),
        (status, "") => status.to_owned(),
        (status, reason) => format!("{status} ({reason})"),
    }
}
