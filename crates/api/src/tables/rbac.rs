//! Role bindings: the role and its subjects.

use super::cell::{age, list, name, text};
use super::{AGE, NAME, column, doc, plain, wide};
use crate::kind::{CellContext, Table};
use machinery::Value;

pub(crate) static ROLE_BINDING: Table = plain(
    &[
        NAME,
        column("Role", "string", doc::ROLE_BINDING_ROLE_REF),
        AGE,
        wide("Users", "string", "Users in the roleBinding"),
        wide("Groups", "string", "Groups in the roleBinding"),
        wide("ServiceAccounts", "string", "ServiceAccounts in the roleBinding"),
    ],
    cells,
);

pub(crate) static CLUSTER_ROLE_BINDING: Table = plain(
    &[
        NAME,
        column("Role", "string", doc::CLUSTER_ROLE_BINDING_ROLE_REF),
        AGE,
        wide("Users", "string", "Users in the clusterRoleBinding"),
        wide("Groups", "string", "Groups in the clusterRoleBinding"),
        wide("ServiceAccounts", "string", "ServiceAccounts in the clusterRoleBinding"),
    ],
    cells,
);

fn cells(binding: &Value, context: CellContext) -> Vec<Value> {
    let role = format!("{}/{}", text(binding, &["roleRef", "kind"]), text(binding, &["roleRef", "name"]));
    let subjects = |kind: &'static str| {
        list(binding, &["subjects"]).iter().filter(move |subject| text(subject, &["kind"]) == kind)
    };
    let names = |kind| subjects(kind).map(|subject| text(subject, &["name"])).collect::<Vec<_>>().join(", ");
    let accounts: Vec<String> = subjects("ServiceAccount")
        .map(|subject| format!("{}/{}", text(subject, &["namespace"]), text(subject, &["name"])))
        .collect();
    vec![
        name(binding),
        role.into(),
        age(binding, context),
        names("User").into(),
        names("Group").into(),
        accounts.join(", ").into(),
    ]
}
