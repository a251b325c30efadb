//! How objects are laid out in the Table form: columns and the values of their cells, one file per family.

mod admission;
mod api_service;
mod autoscaling;
mod batch;
mod cell;
mod certificates;
mod config;
mod doc;
mod event;
mod flow_control;
mod networking;
mod node;
mod pod;
mod policy;
mod rbac;
mod resource;
mod service;
mod storage;
mod workloads;

pub use cell::{human_duration, label_selector_text};
pub(crate) use doc::OBJECT_META_CREATION_TIMESTAMP as CREATION_TIMESTAMP;

use crate::kind::{CellContext, Column, Table};
use cell::{created_at, name};
use machinery::Value;

const fn column(name: &'static str, kind: &'static str, description: &'static str) -> Column<'static> {
    Column { name, kind, format: "", description, priority: 0 }
}

/// A column shown only by `-o wide`.
const fn wide(name: &'static str, kind: &'static str, description: &'static str) -> Column<'static> {
    Column { name, kind, format: "", description, priority: 1 }
}

impl Column<'static> {
    /// Clients treat cells of this column as names.
    const fn formatted_name(self) -> Column<'static> {
        Column { format: "name", ..self }
    }
}

const fn plain(columns: &'static [Column<'static>], cells: fn(&Value, CellContext) -> Vec<Value>) -> Table {
    Table { columns, cells, conditions: None, order: None }
}

const NAME: Column<'static> = column("Name", "string", doc::OBJECT_META_NAME).formatted_name();
const AGE: Column<'static> = column("Age", "string", doc::OBJECT_META_CREATION_TIMESTAMP);

/// The table of kinds without a layout of their own.
static GENERIC: Table =
    plain(&[NAME, column("Created At", "date", doc::OBJECT_META_CREATION_TIMESTAMP)], |object, _| {
        vec![name(object), created_at(object)]
    });

/// The table of a `scale` subresource.
pub static SCALE: &Table = &autoscaling::SCALE;

/// The table of a resource; the generic Name and Created At columns where it has none of its own.
///
/// All versions of a resource share one table: its cells read objects of any of them.
pub fn table(group: &str, _version: &str, resource: &str) -> &'static Table {
    TABLES.iter().find(|row| row.1 == resource && row.0 == group).map_or(&GENERIC, |row| row.2)
}

/// Whether a table is the one of kinds without a layout of their own.
pub fn is_generic(table: &Table) -> bool {
    std::ptr::eq(table, &GENERIC)
}

static TABLES: &[(&str, &str, &Table)] = &[
    ("", "pods", &pod::POD),
    ("", "configmaps", &config::CONFIG_MAP),
    ("", "services", &service::SERVICE),
    ("", "events", &event::EVENT),
    ("", "nodes", &node::NODE),
    ("", "secrets", &config::SECRET),
    ("", "namespaces", &config::NAMESPACE),
    ("", "endpoints", &service::ENDPOINTS),
    ("", "serviceaccounts", &config::SERVICE_ACCOUNT),
    ("", "persistentvolumeclaims", &storage::PERSISTENT_VOLUME_CLAIM),
    ("", "persistentvolumes", &storage::PERSISTENT_VOLUME),
    ("", "podtemplates", &workloads::POD_TEMPLATE),
    ("", "replicationcontrollers", &workloads::REPLICATION_CONTROLLER),
    ("", "resourcequotas", &config::RESOURCE_QUOTA),
    ("", "componentstatuses", &config::COMPONENT_STATUS),
    ("apps", "deployments", &workloads::DEPLOYMENT),
    ("apps", "replicasets", &workloads::REPLICA_SET),
    ("apps", "daemonsets", &workloads::DAEMON_SET),
    ("apps", "statefulsets", &workloads::STATEFUL_SET),
    ("apps", "controllerrevisions", &workloads::CONTROLLER_REVISION),
    ("batch", "jobs", &batch::JOB),
    ("batch", "cronjobs", &batch::CRON_JOB),
    ("coordination.k8s.io", "leases", &node::LEASE),
    ("discovery.k8s.io", "endpointslices", &service::ENDPOINT_SLICE),
    ("events.k8s.io", "events", &event::EVENT),
    ("autoscaling", "horizontalpodautoscalers", &autoscaling::HORIZONTAL_POD_AUTOSCALER),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations", &admission::WEBHOOK_CONFIGURATION),
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations", &admission::WEBHOOK_CONFIGURATION),
    ("admissionregistration.k8s.io", "validatingadmissionpolicies", &admission::VALIDATING_ADMISSION_POLICY),
    ("admissionregistration.k8s.io", "validatingadmissionpolicybindings", &admission::POLICY_BINDING),
    ("admissionregistration.k8s.io", "mutatingadmissionpolicies", &admission::MUTATING_ADMISSION_POLICY),
    ("admissionregistration.k8s.io", "mutatingadmissionpolicybindings", &admission::POLICY_BINDING),
    ("apiregistration.k8s.io", "apiservices", &api_service::API_SERVICE),
    ("certificates.k8s.io", "certificatesigningrequests", &certificates::CERTIFICATE_SIGNING_REQUEST),
    ("flowcontrol.apiserver.k8s.io", "flowschemas", &flow_control::FLOW_SCHEMA),
    (
        "flowcontrol.apiserver.k8s.io",
        "prioritylevelconfigurations",
        &flow_control::PRIORITY_LEVEL_CONFIGURATION,
    ),
    ("networking.k8s.io", "ingresses", &networking::INGRESS),
    ("networking.k8s.io", "ingressclasses", &networking::INGRESS_CLASS),
    ("networking.k8s.io", "networkpolicies", &networking::NETWORK_POLICY),
    ("networking.k8s.io", "ipaddresses", &networking::IP_ADDRESS),
    ("networking.k8s.io", "servicecidrs", &networking::SERVICE_CIDR),
    ("node.k8s.io", "runtimeclasses", &node::RUNTIME_CLASS),
    ("policy", "poddisruptionbudgets", &policy::POD_DISRUPTION_BUDGET),
    ("rbac.authorization.k8s.io", "rolebindings", &rbac::ROLE_BINDING),
    ("rbac.authorization.k8s.io", "clusterrolebindings", &rbac::CLUSTER_ROLE_BINDING),
    ("resource.k8s.io", "deviceclasses", &resource::NAME_AND_AGE),
    ("resource.k8s.io", "resourceclaims", &resource::RESOURCE_CLAIM),
    ("resource.k8s.io", "resourceclaimtemplates", &resource::NAME_AND_AGE),
    ("resource.k8s.io", "resourceslices", &resource::RESOURCE_SLICE),
    ("scheduling.k8s.io", "priorityclasses", &policy::PRIORITY_CLASS),
    ("storage.k8s.io", "storageclasses", &storage::STORAGE_CLASS),
    ("storage.k8s.io", "csidrivers", &storage::CSI_DRIVER),
    ("storage.k8s.io", "csinodes", &storage::CSI_NODE),
    ("storage.k8s.io", "volumeattachments", &storage::VOLUME_ATTACHMENT),
    ("storage.k8s.io", "volumeattributesclasses", &storage::VOLUME_ATTRIBUTES_CLASS),
    ("certificates.k8s.io", "clustertrustbundles", &certificates::CLUSTER_TRUST_BUNDLE),
    ("certificates.k8s.io", "podcertificaterequests", &certificates::POD_CERTIFICATE_REQUEST),
    ("resource.k8s.io", "devicetaintrules", &resource::DEVICE_TAINT_RULE),
    ("coordination.k8s.io", "leasecandidates", &node::LEASE_CANDIDATE),
    ("storagemigration.k8s.io", "storageversionmigrations", &storage::STORAGE_VERSION_MIGRATION),
];

#[cfg(test)]
mod tests;
