//! Type checking of a policy: its kinds, and the expressions that are invalid for them.

use std::collections::BTreeSet;

use client::Discovery;
use expressions::admission::{Options, typed_environment};
use expressions::{CompileError, Environment, Type, composed_type};
use machinery::gvk::GroupVersionKind;
use objects::admissionregistration::v1::{
    ExpressionWarning, NamedRuleWithOperations, ValidatingAdmissionPolicy, ValidatingAdmissionPolicySpec,
};

/// Number of kinds in one rule from which further rules are not checked.
const MAX_KINDS: usize = 10;

/// Known types of a policy's objects and params.
#[derive(Debug, Default)]
pub struct Types {
    pub objects: Vec<(Type, GroupVersionKind)>,
    /// `None` if unknown.
    pub params: Option<Type>,
}

/// Kinds that a policy's rules name, sorted; rules with wildcards are skipped.
pub fn kinds(policy: &ValidatingAdmissionPolicy, discovery: &Discovery) -> Vec<GroupVersionKind> {
    let spec = policy.spec.as_ref();
    let rules = spec.and_then(|spec| spec.match_constraints.as_ref()?.resource_rules.as_deref());
    let mut found = BTreeSet::new();
    for rule in rules.unwrap_or_default() {
        let named = resources(rule).into_iter().filter_map(|(group, version, resource)| {
            let is_it = |key: &client::ResourceKey| {
                key.group == group && key.version == version && key.resource == resource
            };
            let info = discovery.all.iter().find(|info| is_it(&info.key))?;
            Some((group, version, info.kind.as_str()))
        });
        let named: Vec<_> = named.take(MAX_KINDS).collect();
        let is_full = named.len() == MAX_KINDS;
        found.extend(named);
        if is_full {
            break;
        }
    }
    found.into_iter().map(|(group, version, kind)| GroupVersionKind::new(group, version, kind)).collect()
}

/// Groups, versions and resources of a rule, in a fixed order; no subresources.
fn resources(rule: &NamedRuleWithOperations) -> Vec<(&str, &str, &str)> {
    let (groups, versions) = (sorted(rule.api_groups.as_ref()), sorted(rule.api_versions.as_ref()));
    if groups.iter().chain(&versions).any(|name| name.contains('*')) {
        return Vec::new();
    }
    let mut resources = sorted(rule.resources.as_ref());
    resources.retain(|name| !name.contains(['*', '/']));
    let mut all = Vec::new();
    for group in groups {
        for version in &versions {
            all.extend(resources.iter().map(|resource| (group, *version, *resource)));
        }
    }
    all
}

fn sorted(names: Option<&Vec<String>>) -> Vec<&str> {
    let mut names: Vec<&str> = names.into_iter().flatten().map(String::as_str).collect();
    names.sort_unstable();
    names
}

/// Warnings about a policy's expressions.
pub fn plan(policy: &ValidatingAdmissionPolicy, types: &Types) -> Vec<ExpressionWarning> {
    let Some(spec) = &policy.spec else { return Vec::new() };
    let checkers: Vec<(Environment, &GroupVersionKind)> =
        types.objects.iter().map(|(of, kind)| (environment(spec, of, types.params.as_ref()), kind)).collect();
    let check = |text: &str| {
        let found = checkers.iter().filter_map(|(environment, kind)| match environment.compile(text) {
            Ok(_) => None,
            Err(CompileError::Invalid(why)) => Some(format!("{}: {why}\n", shown(kind))),
            Err(error) => Some(format!("{}: type checking error: {error}\n", shown(kind))),
        });
        found.collect::<Vec<_>>().join("\n")
    };
    let validations = spec.validations.iter().flatten().enumerate();
    let expressions = validations.flat_map(|(index, validation)| {
        let message = validation.message_expression.as_deref().filter(|text| !text.is_empty());
        let both = [("expression", Some(validation.expression.as_str())), ("messageExpression", message)];
        both.into_iter().filter_map(move |(field, text)| Some((index, field, text?)))
    });
    let warnings = expressions.filter_map(|(index, field, text)| {
        let warning = check(text);
        let field_ref = format!("spec.validations[{index}].{field}");
        (!warning.is_empty()).then_some(ExpressionWarning { field_ref, warning })
    });
    warnings.collect()
}

fn shown(kind: &GroupVersionKind) -> String {
    format!("{}/{}, Kind={}", kind.group, kind.version, kind.kind)
}

/// Environment of expressions about objects of this type. An invalid variable is dynamically typed; its error was
/// reported when the policy was written.
fn environment(spec: &ValidatingAdmissionPolicySpec, object: &Type, params: Option<&Type>) -> Environment {
    let options = Options {
        has_params: spec.param_kind.is_some(),
        has_authorizer: true,
        has_composed: true,
        ..Options::default()
    };
    let mut environment = typed_environment(options, object, params.unwrap_or(&Type::Dyn));
    for variable in spec.variables.iter().flatten() {
        let of =
            environment.compile(&variable.expression).map(|program| composed_type(program.result_type()));
        environment.compose(&variable.name, of.unwrap_or(Type::Dyn));
    }
    environment
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::{ResourceInfo, ResourceKey};
    use expressions::openapi;
    use serde_json::{Value, json};

    fn policy(spec: Value) -> ValidatingAdmissionPolicy {
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).expect("a policy")
    }

    fn discovery() -> Discovery {
        let info = |group: &str, version: &str, resource: &str, kind: &str| ResourceInfo {
            key: ResourceKey {
                group: group.to_owned(),
                version: version.to_owned(),
                resource: resource.to_owned(),
                namespaced: true,
            },
            kind: kind.to_owned(),
            verbs: Vec::new(),
            singular: String::new(),
            short_names: Vec::new(),
            categories: Vec::new(),
            subresources: Vec::new(),
        };
        let mut all = vec![
            info("", "v1", "pods", "Pod"),
            info("", "v1", "events", "Event"),
            info("events.k8s.io", "v1", "events", "Event"),
            info("apps", "v1", "deployments", "Deployment"),
            info("apps", "v1", "replicasets", "ReplicaSet"),
        ];
        all.extend((0..20).map(|n| info("many", "v1", &format!("many{n:02}"), &format!("Many{n:02}"))));
        Discovery { all, ..Discovery::default() }
    }

    fn rule(groups: &[&str], versions: &[&str], resources: &[&str]) -> Value {
        json!({"apiGroups": groups, "apiVersions": versions, "resources": resources, "operations": ["*"]})
    }

    #[test]
    fn rules_resolve_to_kinds() {
        let many: Vec<String> = (0..20).rev().map(|n| format!("many{n:02}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let all_many: Vec<String> = (0..10).map(|n| format!("many/v1, Kind=Many{n:02}")).collect();
        let all_many: Vec<&str> = all_many.iter().map(String::as_str).collect();
        for (rules, want) in [
            (vec![], vec![]),
            (vec![rule(&["apps"], &["v1"], &["deployments"])], vec!["apps/v1, Kind=Deployment"]),
            (
                vec![
                    rule(&["apps"], &["v1"], &["deployments", "replicasets"]),
                    rule(&[""], &["v1"], &["pods"]),
                ],
                vec!["/v1, Kind=Pod", "apps/v1, Kind=Deployment", "apps/v1, Kind=ReplicaSet"],
            ),
            (vec![rule(&[""], &["v1"], &["events"])], vec!["/v1, Kind=Event"]),
            (vec![rule(&["apps"], &["v1"], &["*"])], vec![]),
            (vec![rule(&[""], &["v1"], &["pods/status", "pods/*"])], vec![]),
            (vec![rule(&["*"], &["v1"], &["pods"]), rule(&[""], &["*"], &["pods"])], vec![]),
            (vec![rule(&["apps"], &["v9"], &["deployments"])], vec![]),
            (vec![rule(&["many"], &["v1"], &many), rule(&[""], &["v1"], &["pods"])], all_many),
        ] {
            let policy = policy(json!({"matchConstraints": {"resourceRules": rules}}));
            let found: Vec<String> = kinds(&policy, &discovery()).iter().map(shown).collect();
            assert_eq!(found, want, "{rules:?}");
        }
        assert!(kinds(&ValidatingAdmissionPolicy::default(), &discovery()).is_empty());
    }

    /// Objects of one kind whose fields have these schemas.
    fn types(kinds: &[&str], properties: &Value) -> Types {
        let of = |kind: &str| {
            let named = [json!({"group": "apps", "version": "v1", "kind": kind})];
            let schema = json!({
                "type": "object", "properties": properties, "x-kubernetes-group-version-kind": named,
            });
            let document = json!({"components": {"schemas": {"it": schema}}});
            let of = openapi::type_of(&document, ("apps", "v1", kind), kind).expect("a type");
            (of, GroupVersionKind::new("apps", "v1", kind))
        };
        Types { objects: kinds.iter().map(|kind| of(kind)).collect(), params: None }
    }

    fn warnings(spec: Value, types: &Types) -> Vec<(String, String)> {
        let found = plan(&policy(spec), types);
        found.into_iter().map(|warning| (warning.field_ref, warning.warning)).collect()
    }

    #[test]
    fn warnings_name_position_and_kind() {
        let types = types(&["Deployment", "ReplicaSet"], &json!({"foo": {"type": "string"}}));
        let spec = json!({"validations": [
            {"expression": "object.foo == 'bar'"},
            {"expression": "true", "messageExpression": "object.bar"},
        ]});
        let want = "apps/v1, Kind=Deployment: ERROR: <input>:1:7: undefined field 'bar'\n | object.bar\n | ......^\n\n\
            apps/v1, Kind=ReplicaSet: ERROR: <input>:1:7: undefined field 'bar'\n | object.bar\n | ......^\n";
        let found = warnings(spec, &types);
        assert_eq!(found, [("spec.validations[1].messageExpression".to_owned(), want.to_owned())]);
    }

    #[test]
    fn invalid_expressions_produce_warnings() {
        let number = json!({"foo": {"type": "integer"}});
        let text = json!({"foo": {"type": "string"}});
        let one = |expression: &str| json!({"validations": [{"expression": expression}]});
        let with_variable = |variable: &str, expression: &str| {
            let variables = [json!({"name": "v", "expression": variable})];
            json!({"variables": variables, "validations": [{"expression": expression}]})
        };
        for (spec, properties, want) in [
            (one("object.foo == 'bar'"), &text, ""),
            (one("oldObject == null || oldObject.foo != object.foo"), &text, ""),
            (
                one("object.foo == 'bar'"),
                &number,
                "found no matching overload for '_==_' applied to '(int, string)'",
            ),
            (one("authorizer.group('').resource('endpoints').check('create').allowed()"), &text, ""),
            (
                one("authorizer.allowed()"),
                &text,
                "found no matching overload for 'allowed' applied to 'kubernetes.authorization.Authorizer",
            ),
            (one("params.x == 1"), &text, "undeclared reference to 'params'"),
            (with_variable("true", "variables.v"), &number, ""),
            (with_variable("true", "variables.other"), &number, "undefined field 'other'"),
            (with_variable("'x'", "variables.v == object.foo"), &number, "applied to '(string, int)'"),
            // Errors of a variable are not reported here.
            (with_variable("object.foo == 'x'", "variables.v == object.foo"), &number, ""),
        ] {
            let found = warnings(spec.clone(), &types(&["Deployment"], properties));
            match want {
                "" => assert_eq!(found, [], "{spec}"),
                want => assert!(found.len() == 1 && found[0].1.contains(want), "{spec}: {found:?}"),
            }
        }
        // Errors of one expression for both kinds are in one warning.
        let found = warnings(one("object.foo > '1' && object.other == 1"), &types(&["Deployment"], &number));
        let [(_, warning)] = found.as_slice() else { panic!("{found:?}") };
        assert!(warning.contains("'_>_'") && warning.contains("undefined field 'other'"), "{warning}");
        // Unknown kinds produce no warnings.
        assert_eq!(warnings(one("object.nosuch"), &Types::default()), []);
    }

    #[test]
    fn params_are_type_checked() {
        let mut types = types(&["Deployment"], &json!({"foo": {"type": "string"}}));
        let spec = || {
            json!({
                "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
                "validations": [{"expression": "object.foo == params.bar"}],
            })
        };
        assert_eq!(warnings(spec(), &types), []);
        types.params = types.objects.first().map(|(of, _)| of.clone());
        let found = warnings(spec(), &types);
        assert!(found.len() == 1 && found[0].1.contains("undefined field 'bar'"), "{found:?}");
    }
}
