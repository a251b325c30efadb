//! CEL environments of admission: match conditions of webhooks, and policies.

use crate::environment::Environment;
use crate::functions::authorizer::{authorizer_type, resource_check_type};
use crate::types::Type;

/// Cost limit of a policy per binding and params.
pub const BUDGET: u64 = 10_000_000;
/// Cost limit of the match conditions of one policy or webhook.
pub const CONDITIONS_BUDGET: u64 = 2_500_000;
/// Variables of all environments in this file, in the order of their values.
pub const VARIABLES: [&str; 7] = [
    "object",
    "oldObject",
    "namespaceObject",
    "request",
    "params",
    "authorizer",
    "authorizer.requestResource",
];
/// Name of the variable whose fields are the composed variables.
pub const COMPOSED: &str = "variables";

/// Optional variables, besides the objects and the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    pub has_params: bool,
    pub has_authorizer: bool,
    pub has_patch_types: bool,
    pub has_composed: bool,
}

/// Builds the environment with these variables. An undeclared variable keeps its index, so that all environments take
/// the same list of values.
pub fn environment(options: Options) -> Environment {
    typed_environment(options, &Type::Dyn, &Type::Dyn)
}

/// Same as above, with known types of objects and params.
pub fn typed_environment(options: Options, object: &Type, params: &Type) -> Environment {
    let variables = VARIABLES.into_iter().map(|name| {
        let of = match name {
            "namespaceObject" => Some(namespace_type()),
            "request" => Some(request_type()),
            "params" => options.has_params.then(|| params.clone()),
            "authorizer" => options.has_authorizer.then(authorizer_type),
            "authorizer.requestResource" => options.has_authorizer.then(resource_check_type),
            _ => Some(object.clone()),
        };
        match of {
            Some(of) => (name, of),
            // No identifier of the language has this name.
            None => ("", Type::Error),
        }
    });
    let mut environment = Environment::new(variables);
    if options.has_patch_types {
        environment = environment.with_patch_types();
    }
    if options.has_composed {
        environment = environment.with_composed(COMPOSED);
    }
    environment
}

fn strings() -> Type {
    Type::list(Type::String)
}

fn texts(name: &str, fields: &[&str]) -> Type {
    Type::object(name, fields.iter().map(|field| (*field, Type::String)))
}

fn request_type() -> Type {
    let kind = texts("kubernetes.GroupVersionKind", &["group", "version", "kind"]);
    let resource = texts("kubernetes.GroupVersionResource", &["group", "version", "resource"]);
    let user = Type::object(
        "kubernetes.UserInfo",
        [
            ("username", Type::String),
            ("uid", Type::String),
            ("groups", strings()),
            ("extra", Type::map(Type::String, strings())),
        ],
    );
    Type::object(
        "kubernetes.AdmissionRequest",
        [
            ("kind", kind.clone()),
            ("resource", resource.clone()),
            ("subResource", Type::String),
            ("requestKind", kind),
            ("requestResource", resource),
            ("requestSubResource", Type::String),
            ("name", Type::String),
            ("namespace", Type::String),
            ("operation", Type::String),
            ("userInfo", user),
            ("dryRun", Type::Bool),
            ("options", Type::Dyn),
        ],
    )
}

fn namespace_type() -> Type {
    let labels = Type::map(Type::String, Type::String);
    let metadata = Type::object(
        "kubernetes.NamespaceMetadata",
        [
            ("name", Type::String),
            ("generateName", Type::String),
            ("namespace", Type::String),
            ("labels", labels.clone()),
            ("annotations", labels),
            ("UID", Type::String),
            ("creationTimestamp", Type::Timestamp),
            ("deletionGracePeriodSeconds", Type::Int),
            ("deletionTimestamp", Type::Timestamp),
            ("generation", Type::Int),
            ("resourceVersion", Type::String),
            ("finalizers", strings()),
        ],
    );
    let condition = Type::object(
        "kubernetes.NamespaceCondition",
        [
            ("status", Type::String),
            ("type", Type::String),
            ("lastTransitionTime", Type::Timestamp),
            ("message", Type::String),
            ("reason", Type::String),
        ],
    );
    let status = Type::object(
        "kubernetes.NamespaceStatus",
        [("conditions", Type::list(condition)), ("phase", Type::String)],
    );
    let spec = Type::object("kubernetes.NamespaceSpec", [("finalizers", strings())]);
    Type::object("kubernetes.Namespace", [("metadata", metadata), ("spec", spec), ("status", status)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_variables_depend_on_options() {
        let all = Options { has_params: true, has_authorizer: true, ..Options::default() };
        let none = Options::default();
        for (options, text, compiles) in [
            (all, "params.x == 1 && authorizer.requestResource.check('get').allowed()", true),
            (none, "params.x == 1", false),
            (none, "authorizer.path('/').check('get').allowed()", false),
            (none, "variables.x", false),
            (
                none,
                "request.userInfo.groups.exists(g, g == 'x') && namespaceObject.metadata.name == 'a'",
                true,
            ),
            (none, "request.kind.nosuch == 'x'", false),
            (none, "oldObject == null || object.spec == oldObject.spec", true),
        ] {
            let compiled = environment(options).compile(text);
            assert_eq!(compiled.is_ok(), compiles, "{text}: {compiled:?}");
        }
    }
}
