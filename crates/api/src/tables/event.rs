//! Events, in the form of either API group.

use super::cell::{get, int, or, since, text};
use super::{column, doc, plain, wide};
use crate::kind::{CellContext, Table};
use machinery::{Value, meta};

pub(crate) static EVENT: Table = plain(
    &[
        column("Last Seen", "string", doc::EVENT_LAST_TIMESTAMP),
        column("Type", "string", doc::EVENT_TYPE),
        column("Reason", "string", doc::EVENT_REASON),
        column("Object", "string", doc::EVENT_INVOLVED_OBJECT),
        wide("Subobject", "string", doc::OBJECT_REFERENCE_FIELD_PATH),
        wide("Source", "string", doc::EVENT_SOURCE),
        column("Message", "string", doc::EVENT_MESSAGE),
        wide("First Seen", "string", doc::EVENT_FIRST_TIMESTAMP),
        wide("Count", "string", doc::EVENT_COUNT),
        wide("Name", "string", doc::OBJECT_META_NAME).formatted_name(),
    ],
    cells,
);

fn cells(event: &Value, context: CellContext) -> Vec<Value> {
    // The two groups name the same fields differently.
    let either = |core: &[&'static str], events: &[&'static str]| or(text(event, core), text(event, events));
    let about = |field| either(&["involvedObject", field], &["regarding", field]);
    let source = |field| either(&["source", field], &["deprecatedSource", field]);

    let first = either(&["firstTimestamp"], &["deprecatedFirstTimestamp"]);
    let first = since(or(first, text(event, &["eventTime"])), context);
    let last = either(&["lastTimestamp"], &["deprecatedLastTimestamp"]);
    let mut last = if last.is_empty() { first.clone() } else { since(last, context) };
    let mut count = int(event, &["count"]).max(int(event, &["deprecatedCount"])).max(1);
    if let Some(series) = get(event, &["series"]) {
        last = since(text(series, &["lastObservedTime"]), context);
        count = int(series, &["count"]);
    }

    let kind = about("kind").to_lowercase();
    let object = match about("name") {
        "" => kind,
        name => format!("{kind}/{name}"),
    };
    let component = or(source("component"), either(&["reportingComponent"], &["reportingController"]));
    let reporter = match or(source("host"), text(event, &["reportingInstance"])) {
        "" => component.to_owned(),
        instance => format!("{component}, {instance}"),
    };
    vec![
        last.into(),
        text(event, &["type"]).into(),
        text(event, &["reason"]).into(),
        object.into(),
        about("fieldPath").into(),
        reporter.into(),
        either(&["message"], &["note"]).trim().into(),
        first.into(),
        count.into(),
        meta::name(event).into(),
    ]
}
