//! Disruption budgets and priority classes.

use super::cell::{age, flag, get, int, int_or_string, name, text};
use super::{AGE, NAME, column, doc, plain};
use crate::kind::Table;

pub(crate) static POD_DISRUPTION_BUDGET: Table = plain(
    &[
        NAME,
        column("Min Available", "string", "The minimum number of pods that must be available."),
        column("Max Unavailable", "string", "The maximum number of pods that may be unavailable."),
        column(
            "Allowed Disruptions",
            "integer",
            "Calculated number of pods that may be disrupted at this time.",
        ),
        AGE,
    ],
    |budget, context| {
        let bound = |field| get(budget, &["spec", field]).map_or_else(|| "N/A".to_owned(), int_or_string);
        vec![
            name(budget),
            bound("minAvailable").into(),
            bound("maxUnavailable").into(),
            int(budget, &["status", "disruptionsAllowed"]).into(),
            age(budget, context),
        ]
    },
);

pub(crate) static PRIORITY_CLASS: Table = plain(
    &[
        NAME,
        column("Value", "integer", doc::PRIORITY_CLASS_VALUE),
        column("Global-Default", "boolean", doc::PRIORITY_CLASS_GLOBAL_DEFAULT),
        AGE,
        column("PreemptionPolicy", "string", doc::PRIORITY_CLASS_PREEMPTION_POLICY),
    ],
    |class, context| {
        vec![
            name(class),
            int(class, &["value"]).into(),
            flag(class, &["globalDefault"]).into(),
            age(class, context),
            text(class, &["preemptionPolicy"]).into(),
        ]
    },
);
