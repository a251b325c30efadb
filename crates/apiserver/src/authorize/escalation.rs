//! Privilege escalation checks on writes of roles and bindings.
//!
//! A role may only contain, and a binding only grant, permissions that the writer already has, unless the writer may
//! `escalate` the role or `bind` the role in question.

use super::policy::RoleRef;
use super::rbac::aggregate;
use super::rules::{self, Rule};
use super::{Attributes, Authorization, MASTERS};
use crate::registry::{Served, WriteContext};
use crate::user::UserInfo;
use machinery::status::{Result, Status};
use machinery::{Value, meta};
use serde::Deserialize;

const GROUP: &str = "rbac.authorization.k8s.io";

/// Fields used by the garbage collector; changing them grants nothing.
const COLLECTOR_FIELDS: [&str; 3] = ["ownerReferences", "finalizers", "managedFields"];

/// Returns 403 if the write would grant more than the writer has. `request_name` is the name in the request's path.
pub async fn check(
    authorization: &Authorization,
    served: &Served,
    context: &WriteContext<'_>,
    request_name: &str,
    new: &Value,
    old: Option<&Value>,
) -> Result<()> {
    if served.kind.group() != GROUP || context.user.is_in(MASTERS) {
        return Ok(());
    }
    let resource = served.kind.resource();
    let namespace = context.namespace;
    let is_role = matches!(resource, "roles" | "clusterroles");
    if is_role {
        let escalate = Attributes {
            verb: "escalate",
            is_resource: true,
            group: GROUP,
            version: "*",
            resource,
            namespace,
            name: request_name,
            ..Attributes::default()
        };
        if authorization.allows(context.user, &escalate).await? {
            return Ok(());
        }
    }
    if old.is_some_and(|old| only_collector_fields(new, old)) {
        return Ok(());
    }
    let wanted = if is_role {
        rules_of(new)?
    } else {
        match bound_rules(authorization, served, context, new).await? {
            Some(rules) => rules,
            None => return Ok(()),
        }
    };
    let forbidden = |why: String| Status::forbidden(GROUP, resource, meta::name(new), why);
    held(authorization, context.user, namespace, &wanted).await?.map_err(forbidden)?;
    let aggregates = has_selectors(new) || old.is_some_and(has_selectors);
    if resource == "clusterroles" && aggregates {
        let all = rules::full_authority();
        held(authorization, context.user, namespace, &all).await?.map_err(|_| {
            forbidden("must have cluster-admin privileges to use the aggregationRule".to_owned())
        })?;
    }
    Ok(())
}

/// The rules granted by a binding; `None` if the writer may bind that role anyway.
async fn bound_rules(
    authorization: &Authorization,
    served: &Served,
    context: &WriteContext<'_>,
    binding: &Value,
) -> Result<Option<Vec<Rule>>> {
    let role = RoleRef::deserialize(&binding["roleRef"]).unwrap_or_default();
    let resource = match role.kind.as_str() {
        "Role" => "roles",
        "ClusterRole" => "clusterroles",
        _ => "",
    };
    let bind = Attributes {
        verb: "bind",
        is_resource: true,
        group: &role.api_group,
        version: "*",
        resource,
        namespace: context.namespace,
        name: &role.name,
        ..Attributes::default()
    };
    if !resource.is_empty() && authorization.allows(context.user, &bind).await? {
        return Ok(None);
    }
    if resource == "roles" && context.namespace.is_empty() {
        return Err(Status::bad_request("Namespace parameter required."));
    }
    if !resource.is_empty() && role.name.is_empty() {
        return Err(Status::bad_request("Name parameter required."));
    }
    match authorization.rbac.role(&role, context.namespace).await? {
        Ok(rules) => Ok(Some(rules)),
        Err(why) if resource.is_empty() => Err(Status::new(500, "", why)),
        // Kubernetes reports the resource of the request here, not that of the missing role.
        Err(_) => Err(Status::not_found(GROUP, served.kind.resource(), &role.name)),
    }
}

fn rules_of(role: &Value) -> Result<Vec<Rule>> {
    match &role["rules"] {
        Value::Null => Ok(Vec::new()),
        rules => Vec::deserialize(rules).map_err(Status::internal),
    }
}

/// Checks that the user has all of `wanted`; the error lists the missing rules, in Kubernetes' format.
async fn held(
    authorization: &Authorization,
    user: &UserInfo,
    namespace: &str,
    wanted: &[Rule],
) -> Result<Result<(), String>> {
    let own = authorization.rbac.rules_for(user, namespace).await?;
    let missing = rules::missing(&own.rules, wanted);
    if missing.is_empty() {
        return Ok(Ok(()));
    }
    let mut why = format!(
        "user {:?} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}",
        user.name,
        rules::quoted(&user.groups),
        missing.join("\n")
    );
    if !own.errors.is_empty() {
        why.push_str(&format!("; resolution errors: [{}]", aggregate(&own.errors)));
    }
    Ok(Err(why))
}

fn has_selectors(role: &Value) -> bool {
    role["aggregationRule"]["clusterRoleSelectors"].as_array().is_some_and(|list| !list.is_empty())
}

fn only_collector_fields(new: &Value, old: &Value) -> bool {
    let without = |object: &Value| {
        let mut object = object.clone();
        let metadata = meta::metadata_mut(&mut object);
        COLLECTOR_FIELDS.iter().for_each(|field| drop(metadata.remove(*field)));
        object
    };
    without(new) == without(old)
}
