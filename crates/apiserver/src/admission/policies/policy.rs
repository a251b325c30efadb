//! One policy with its bindings, compiled.

use super::evaluation::Condition;
use crate::admission::matching::Matcher;
use crate::registry::{Registry, Served};
use api::value::{Fields, texts};
use expressions::admission::{self, Options};
use expressions::{Environment, Program, Type, apply_configuration_type, composed_type, json_patch_type};
use machinery::{Value, meta};
use std::sync::Arc;

/// A compiled expression, or the compilation error.
pub type Compiled = Result<Program, String>;

pub struct Policy {
    pub name: String,
    pub rules: Arc<Rules>,
    pub bindings: Vec<Binding>,
}

/// Compiled spec of a policy.
pub struct Rules {
    /// Revision of the compiled policy object.
    revision: u64,
    pub matches: Matcher,
    pub ignores_failure: bool,
    /// `reinvocationPolicy: IfNeeded`.
    pub is_reinvoked: bool,
    pub param_kind: Option<ParamKind>,
    pub variables: Vec<(String, Compiled)>,
    pub conditions: Vec<Condition>,
    pub validations: Vec<Validation>,
    pub audit_annotations: Vec<AuditAnnotation>,
    pub mutations: Vec<Mutation>,
}

pub struct ParamKind {
    pub api_version: String,
    pub kind: String,
    /// `None` if the kind does not exist.
    pub served: Option<Arc<Served>>,
}

pub struct Validation {
    pub text: String,
    pub program: Compiled,
    pub message: String,
    pub message_program: Option<Compiled>,
    /// Empty: `Invalid`.
    pub reason: String,
}

pub struct AuditAnnotation {
    pub key: String,
    pub text: String,
    pub program: Compiled,
}

pub struct Mutation {
    pub is_json_patch: bool,
    pub text: String,
    pub program: Compiled,
}

pub struct Binding {
    pub name: String,
    pub matches: Option<Matcher>,
    pub param_ref: Option<Value>,
    pub actions: Vec<String>,
}

impl Policy {
    /// Every policy with a binding, by name. Those unchanged since `before` are not compiled again.
    pub fn all(
        registry: &Registry,
        policies: &Served,
        bindings: &Served,
        before: &[Policy],
    ) -> Arc<[Policy]> {
        let listed = |served: &Served| {
            let cache = &served.storage.cache;
            cache.list(&cache.root, None, 0, 0, |_| true).entries
        };
        let bound: Vec<Value> = listed(bindings).iter().map(|entry| entry.value()).collect();
        let mut found: Vec<Policy> = Vec::new();
        for entry in listed(policies) {
            let policy = entry.value();
            let name = meta::name(&policy);
            let mut bindings: Vec<Binding> = bound
                .iter()
                .filter(|binding| binding.field("spec").text("policyName") == name)
                .map(Binding::new)
                .collect();
            if bindings.is_empty() {
                continue;
            }
            bindings.sort_by(|a, b| a.name.cmp(&b.name));
            let known = before.iter().find(|known| known.name == name);
            let rules = match known.filter(|known| known.rules.revision == entry.revision) {
                Some(known) => known.rules.clone(),
                None => Arc::new(Rules::new(registry, policy.field("spec"), entry.revision)),
            };
            found.push(Policy { name: name.to_owned(), rules, bindings });
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        found.into()
    }
}

impl Binding {
    fn new(binding: &Value) -> Self {
        let spec = binding.field("spec");
        Self {
            name: meta::name(binding).to_owned(),
            matches: spec.has("matchResources").then(|| Matcher::of_policy(spec.field("matchResources"))),
            param_ref: spec.has("paramRef").then(|| spec.field("paramRef").clone()),
            actions: texts(spec.items("validationActions")).map(str::to_owned).collect(),
        }
    }
}

/// CEL environments of a policy; they differ in authorizer access and patch types.
struct Environments {
    full: Environment,
    message: Environment,
    patch: Environment,
}

impl Environments {
    fn new(has_params: bool) -> Self {
        let options =
            Options { has_params, has_authorizer: true, has_patch_types: false, has_composed: true };
        Self {
            full: admission::environment(options),
            message: admission::environment(Options { has_authorizer: false, ..options }),
            patch: admission::environment(Options { has_patch_types: true, ..options }),
        }
    }

    fn compose(&mut self, name: &str, of: &Type) {
        for environment in [&mut self.full, &mut self.message, &mut self.patch] {
            environment.compose(name, of.clone());
        }
    }
}

fn compiled(environment: &Environment, text: &str, wanted: &[Type]) -> Compiled {
    environment.compile_to(text, wanted).map_err(|error| error.to_string())
}

impl Rules {
    fn new(registry: &Registry, spec: &Value, revision: u64) -> Self {
        let param_kind = spec.has("paramKind").then(|| ParamKind::new(registry, spec.field("paramKind")));
        let mut environments = Environments::new(param_kind.is_some());
        let mut variables = Vec::new();
        for variable in spec.items("variables") {
            let (name, text) = (variable.text("name"), variable.text("expression"));
            let program = environments.full.compile(text).map_err(|error| error.to_string());
            let of = program.as_ref().map_or(Type::Dyn, |program| composed_type(program.result_type()));
            environments.compose(name, &of);
            variables.push((name.to_owned(), program));
        }
        let Environments { full, message, patch } = &environments;
        let validations = spec.items("validations").iter().map(|validation| {
            let text = validation.text("expression");
            let message_text = validation.text("messageExpression");
            Validation {
                text: text.to_owned(),
                program: compiled(full, text, &[Type::Bool]),
                message: validation.text("message").trim().to_owned(),
                message_program: (!message_text.is_empty())
                    .then(|| compiled(message, message_text, &[Type::String])),
                reason: validation.text("reason").to_owned(),
            }
        });
        let audit_annotations = spec.items("auditAnnotations").iter().map(|annotation| {
            let text = annotation.text("valueExpression");
            AuditAnnotation {
                key: annotation.text("key").to_owned(),
                text: text.to_owned(),
                program: compiled(full, text.trim(), &[Type::String, Type::Null]),
            }
        });
        let mutations = spec.items("mutations").iter().map(|mutation| {
            let is_json_patch = mutation.text("patchType") == "JSONPatch";
            let (field, of) = match is_json_patch {
                true => ("jsonPatch", Type::list(json_patch_type())),
                false => ("applyConfiguration", apply_configuration_type()),
            };
            let text = mutation.field(field).text("expression");
            Mutation { is_json_patch, text: text.to_owned(), program: compiled(patch, text, &[of]) }
        });
        Self {
            revision,
            matches: Matcher::of_policy(spec.field("matchConstraints")),
            ignores_failure: spec.text("failurePolicy") == "Ignore",
            is_reinvoked: spec.text("reinvocationPolicy") == "IfNeeded",
            conditions: Condition::all(spec, full),
            validations: validations.collect(),
            audit_annotations: audit_annotations.collect(),
            mutations: mutations.collect(),
            param_kind,
            variables,
        }
    }
}

impl ParamKind {
    fn new(registry: &Registry, kind: &Value) -> Self {
        let (api_version, kind) = (kind.text("apiVersion"), kind.text("kind"));
        let catalogue = registry.catalogue();
        let served =
            catalogue.all().find(|served| served.api_version == api_version && served.kind.kind() == kind);
        Self { api_version: api_version.to_owned(), kind: kind.to_owned(), served: served.cloned() }
    }

    /// Configuration error, if the kind does not exist.
    pub fn problem(&self) -> Option<String> {
        let (group, version) = machinery::gvk::split_api_version(&self.api_version);
        self.served.is_none().then(|| {
            format!(
                "failed to find resource referenced by paramKind: '{group}/{version}, Kind={}'",
                self.kind
            )
        })
    }
}
