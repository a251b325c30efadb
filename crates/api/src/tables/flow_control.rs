//! Flow schemas (sorted by precedence) and priority levels.

use super::cell::{NONE, age, condition, get, int, name, text};
use super::{AGE, NAME, column, doc, plain};
use crate::kind::Table;
use machinery::{Value, meta};

pub(crate) static FLOW_SCHEMA: Table = Table {
    order: Some(|left, right| {
        let key = |schema| (int(schema, &["spec", "matchingPrecedence"]), meta::name(schema));
        key(left).cmp(&key(right))
    }),
    ..plain(
        &[
            NAME,
            column("PriorityLevel", "string", doc::PRIORITY_LEVEL_CONFIGURATION_REFERENCE_NAME),
            column("MatchingPrecedence", "string", doc::FLOW_SCHEMA_SPEC_MATCHING_PRECEDENCE),
            column("DistinguisherMethod", "string", doc::FLOW_SCHEMA_SPEC_DISTINGUISHER_METHOD),
            AGE,
            column("MissingPL", "string", "references a broken or non-existent PriorityLevelConfiguration"),
        ],
        |schema, context| {
            let method =
                get(schema, &["spec", "distinguisherMethod"]).map_or(NONE, |method| text(method, &["type"]));
            let dangling = condition(schema, "Dangling").map_or("?", |dangling| text(dangling, &["status"]));
            vec![
                name(schema),
                text(schema, &["spec", "priorityLevelConfiguration", "name"]).into(),
                int(schema, &["spec", "matchingPrecedence"]).into(),
                method.into(),
                age(schema, context),
                dangling.into(),
            ]
        },
    )
};

pub(crate) static PRIORITY_LEVEL_CONFIGURATION: Table = plain(
    &[
        NAME,
        column("Type", "string", doc::PRIORITY_LEVEL_CONFIGURATION_SPEC_TYPE),
        column(
            "NominalConcurrencyShares",
            "string",
            doc::LIMITED_PRIORITY_LEVEL_CONFIGURATION_NOMINAL_CONCURRENCY_SHARES,
        ),
        column("Queues", "string", doc::QUEUING_CONFIGURATION_QUEUES),
        column("HandSize", "string", doc::QUEUING_CONFIGURATION_HAND_SIZE),
        column("QueueLengthLimit", "string", doc::QUEUING_CONFIGURATION_QUEUE_LENGTH_LIMIT),
        AGE,
    ],
    |level, context| {
        let limited = get(level, &["spec", "limited"]);
        let shares = limited.map(|limited| int(limited, &["nominalConcurrencyShares"]));
        let queuing = limited.and_then(|limited| get(limited, &["limitResponse", "queuing"]));
        let queue = |field| number_or_none(queuing.map(|queuing| int(queuing, &[field])));
        vec![
            name(level),
            text(level, &["spec", "type"]).into(),
            number_or_none(shares),
            queue("queues"),
            queue("handSize"),
            queue("queueLengthLimit"),
            age(level, context),
        ]
    },
);

fn number_or_none(number: Option<i64>) -> Value {
    number.map_or(NONE.into(), Value::from)
}
