//! Replication controllers, replica sets, deployments, stateful sets, daemon sets, pod templates, revisions.

use super::cell::{
    NONE, age, container_cells, get, int, label_selector_cell, label_selector_text, labels_text, name, text,
};
use super::{AGE, NAME, column, doc, plain, wide};
use crate::kind::{CellContext, Table};
use machinery::{Value, meta};

const TEMPLATE_CONTAINERS: &[&str] = &["spec", "template", "spec", "containers"];

pub(crate) static POD_TEMPLATE: Table = plain(
    &[
        NAME,
        column("Containers", "string", "Names of each container in the template."),
        column("Images", "string", "Images referenced by each container in the template."),
        column("Pod Labels", "string", "The labels for the pod template."),
    ],
    |object, _| {
        let [names, images] = container_cells(object, &["template", "spec", "containers"]);
        let labels = labels_text(get(object, &["template", "metadata", "labels"]));
        vec![name(object), names, images, labels.into()]
    },
);

pub(crate) static REPLICATION_CONTROLLER: Table = plain(
    &[
        NAME,
        column("Desired", "integer", doc::REPLICATION_CONTROLLER_SPEC_REPLICAS),
        column("Current", "integer", doc::REPLICATION_CONTROLLER_STATUS_REPLICAS),
        column("Ready", "integer", doc::REPLICATION_CONTROLLER_STATUS_READY_REPLICAS),
        AGE,
        wide("Containers", "string", "Names of each container in the template."),
        wide("Images", "string", "Images referenced by each container in the template."),
        wide("Selector", "string", doc::REPLICATION_CONTROLLER_SPEC_SELECTOR),
    ],
    |object, context| replicas(object, context, labels_text(get(object, &["spec", "selector"])).into()),
);

pub(crate) static REPLICA_SET: Table = plain(
    &[
        NAME,
        column("Desired", "integer", doc::REPLICA_SET_SPEC_REPLICAS),
        column("Current", "integer", doc::REPLICA_SET_STATUS_REPLICAS),
        column("Ready", "integer", doc::REPLICA_SET_STATUS_READY_REPLICAS),
        AGE,
        wide("Containers", "string", "Names of each container in the template."),
        wide("Images", "string", "Images referenced by each container in the template."),
        wide("Selector", "string", doc::REPLICA_SET_SPEC_SELECTOR),
    ],
    |object, context| replicas(object, context, label_selector_cell(get(object, &["spec", "selector"]))),
);

fn replicas(object: &Value, context: CellContext, selector: Value) -> Vec<Value> {
    let [names, images] = container_cells(object, TEMPLATE_CONTAINERS);
    vec![
        name(object),
        int(object, &["spec", "replicas"]).into(),
        int(object, &["status", "replicas"]).into(),
        int(object, &["status", "readyReplicas"]).into(),
        age(object, context),
        names,
        images,
        selector,
    ]
}

pub(crate) static DEPLOYMENT: Table = plain(
    &[
        NAME,
        column("Ready", "string", "Number of the pod with ready state"),
        column("Up-to-date", "string", doc::DEPLOYMENT_STATUS_UPDATED_REPLICAS),
        column("Available", "string", doc::DEPLOYMENT_STATUS_AVAILABLE_REPLICAS),
        AGE,
        wide("Containers", "string", "Names of each container in the template."),
        wide("Images", "string", "Images referenced by each container in the template."),
        wide("Selector", "string", doc::DEPLOYMENT_SPEC_SELECTOR),
    ],
    |object, context| {
        let [names, images] = container_cells(object, TEMPLATE_CONTAINERS);
        let selector = label_selector_text(get(object, &["spec", "selector"]));
        vec![
            name(object),
            ready(object),
            int(object, &["status", "updatedReplicas"]).into(),
            int(object, &["status", "availableReplicas"]).into(),
            age(object, context),
            names,
            images,
            selector.unwrap_or_else(|| "<invalid>".to_owned()).into(),
        ]
    },
);

pub(crate) static STATEFUL_SET: Table = plain(
    &[
        NAME,
        column("Ready", "string", "Number of the pod with ready state"),
        AGE,
        wide("Containers", "string", "Names of each container in the template."),
        wide("Images", "string", "Images referenced by each container in the template."),
    ],
    |object, context| {
        let [names, images] = container_cells(object, TEMPLATE_CONTAINERS);
        vec![name(object), ready(object), age(object, context), names, images]
    },
);

/// Ready and desired replicas.
fn ready(object: &Value) -> Value {
    format!("{}/{}", int(object, &["status", "readyReplicas"]), int(object, &["spec", "replicas"])).into()
}

pub(crate) static DAEMON_SET: Table = plain(
    &[
        NAME,
        column("Desired", "integer", doc::DAEMON_SET_STATUS_DESIRED_NUMBER_SCHEDULED),
        column("Current", "integer", doc::DAEMON_SET_STATUS_CURRENT_NUMBER_SCHEDULED),
        column("Ready", "integer", doc::DAEMON_SET_STATUS_NUMBER_READY),
        column("Up-to-date", "integer", doc::DAEMON_SET_STATUS_UPDATED_NUMBER_SCHEDULED),
        column("Available", "integer", doc::DAEMON_SET_STATUS_NUMBER_AVAILABLE),
        column("Node Selector", "string", doc::POD_SPEC_NODE_SELECTOR),
        AGE,
        wide("Containers", "string", "Names of each container in the template."),
        wide("Images", "string", "Images referenced by each container in the template."),
        wide("Selector", "string", doc::DAEMON_SET_SPEC_SELECTOR),
    ],
    |object, context| {
        let [names, images] = container_cells(object, TEMPLATE_CONTAINERS);
        vec![
            name(object),
            int(object, &["status", "desiredNumberScheduled"]).into(),
            int(object, &["status", "currentNumberScheduled"]).into(),
            int(object, &["status", "numberReady"]).into(),
            int(object, &["status", "updatedNumberScheduled"]).into(),
            int(object, &["status", "numberAvailable"]).into(),
            labels_text(get(object, &["spec", "template", "spec", "nodeSelector"])).into(),
            age(object, context),
            names,
            images,
            label_selector_cell(get(object, &["spec", "selector"])),
        ]
    },
);

pub(crate) static CONTROLLER_REVISION: Table = plain(
    &[
        NAME,
        column("Controller", "string", "Controller of the object"),
        column("Revision", "string", doc::CONTROLLER_REVISION_REVISION),
        AGE,
    ],
    |object, context| {
        vec![name(object), controller(object).into(), int(object, &["revision"]).into(), age(object, context)]
    },
);

/// The controlling owner as `kind.group/name`.
fn controller(object: &Value) -> String {
    let is_controller = |owner: &&Value| owner.get("controller").and_then(Value::as_bool) == Some(true);
    let Some(owner) = meta::owner_references(object).iter().find(is_controller) else {
        return NONE.to_owned();
    };
    let group = text(owner, &["apiVersion"]).rsplit_once('/').map_or("", |(group, _)| group);
    let mut kind = text(owner, &["kind"]).to_lowercase();
    if !group.is_empty() {
        kind = format!("{kind}.{}", group.to_lowercase());
    }
    format!("{kind}/{}", text(owner, &["name"]))
}
