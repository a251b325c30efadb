//! The API server as `cluster` puts it together, from outside: one binary, since each takes long to link.

mod aggregation;
mod audit;
mod audit_webhook;
mod cbor;
mod certificates;
mod cloud;
mod component_status;
mod custom_resources;
mod doors;
mod encryption;
mod ingress;
mod issuers;
mod lifecycle;
mod node_identities;
mod policies;
mod service_account_keys;
mod serving;
mod shutdown;
mod stock_kubectl;
mod stock_python;
mod store_failure;
