//! One hook of a configuration, ready to be matched.

use crate::admission::{Attributes, Operation};
use crate::outbound::{Client, Target, TargetError, Trust};
use api::value::{Fields, texts};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use machinery::cel::{CompileError, Environment, Expression, Kind};
use machinery::selector::label::LabelSelector;
use machinery::{Map, Value, meta};
use parking_lot::Mutex;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

const CONDITIONS: Environment = Environment { variables: &["object", "oldObject", "request"] };
const DEFAULT_TIMEOUT: i64 = 10;

pub struct Hook {
    pub name: String,
    pub client_config: Value,
    pub ignores_failure: bool,
    pub has_side_effects: bool,
    pub timeout: Duration,
    /// It is asked again if others have changed the object after it.
    pub reinvoked: bool,
    /// The version of AdmissionReview it gets.
    pub review_version: String,
    rules: Vec<Value>,
    namespaces: Option<LabelSelector>,
    objects: Option<LabelSelector>,
    conditions: Vec<Result<Expression, CompileError>>,
    /// Kept while it leads to the same place.
    client: Mutex<Option<(String, Arc<Client>)>>,
}

impl Hook {
    /// All hooks of a configuration.
    pub fn all(configuration: &Value) -> Vec<Self> {
        configuration.items("webhooks").iter().map(Self::new).collect()
    }

    fn new(hook: &Value) -> Self {
        let selector = |field: &str| {
            let selector = hook.field(field);
            LabelSelector::from_object(Some(selector).filter(|selector| selector.is_object())).ok()
        };
        let conditions = hook.items("matchConditions").iter();
        let seconds = hook.opt_int("timeoutSeconds").unwrap_or(DEFAULT_TIMEOUT);
        let version =
            texts(hook.items("admissionReviewVersions")).find(|version| matches!(*version, "v1" | "v1beta1"));
        Self {
            name: hook.text("name").to_owned(),
            client_config: hook.field("clientConfig").clone(),
            ignores_failure: hook.text("failurePolicy") == "Ignore",
            has_side_effects: !matches!(hook.text("sideEffects"), "None" | "NoneOnDryRun"),
            timeout: Duration::from_secs(u64::try_from(seconds).unwrap_or(0)),
            reinvoked: hook.text("reinvocationPolicy") == "IfNeeded",
            review_version: version.unwrap_or("v1").to_owned(),
            rules: hook.items("rules").to_vec(),
            namespaces: selector("namespaceSelector"),
            objects: selector("objectSelector"),
            conditions: conditions
                .map(|condition| CONDITIONS.compile(condition.text("expression").trim(), &[Kind::Bool]))
                .collect(),
            client: Mutex::new(None),
        }
    }

    /// A client for this place; connections are kept between calls.
    pub fn client(&self, url: &str, server_name: Option<String>) -> Result<Arc<Client>, TargetError> {
        if let Some((known, client)) = &*self.client.lock()
            && known == url
        {
            return Ok(client.clone());
        }
        let bundle = STANDARD.decode(self.client_config.text("caBundle")).ok();
        let authorities = bundle.filter(|bundle| !bundle.is_empty());
        let trust = Trust { authorities, server_name, ..Trust::default() };
        let client = Arc::new(Client::new(Target::new(url, &trust)?));
        *self.client.lock() = Some((url.to_owned(), client.clone()));
        Ok(client)
    }

    pub fn has_rule_for(&self, attributes: &Attributes<'_>) -> bool {
        let kind = attributes.served.kind;
        let place = match attributes.subresource() {
            "" => kind.resource.to_owned(),
            subresource => format!("{}/{subresource}", kind.resource),
        };
        let is_namespace = kind.group.is_empty() && kind.resource == "namespaces";
        let namespaced = attributes.served.namespaced() && !is_namespace;
        let operation = attributes.operation.to_string();
        self.rules.iter().any(|rule| {
            let lists =
                |field: &str, value: &str| texts(rule.items(field)).any(|one| one == "*" || one == value);
            let scope = match rule.text("scope") {
                "Cluster" => !namespaced,
                "Namespaced" => namespaced,
                _ => true,
            };
            scope
                && lists("operations", &operation)
                && lists("apiGroups", kind.group)
                && lists("apiVersions", kind.version)
                && texts(rule.items("resources")).any(|pattern| names_resource(pattern, &place))
        })
    }

    /// Whether the selectors want this write; `namespace` are the namespace's labels.
    pub fn selects(&self, namespace: Option<&Value>, object: Option<&Value>, old: Option<&Value>) -> bool {
        let empty = Map::new();
        if let Some(labels) = namespace {
            let labels = labels.as_object().unwrap_or(&empty);
            if !self.namespaces.as_ref().is_some_and(|selector| selector.matches(labels)) {
                return false;
            }
        }
        let Some(selector) = &self.objects else { return false };
        [object, old]
            .into_iter()
            .flatten()
            .any(|object| selector.matches(meta::labels(object).unwrap_or(&empty)))
    }

    /// Whether all conditions hold. One that is false decides; one that fails does only if none is.
    pub fn conditions_hold(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<bool, String> {
        if self.conditions.is_empty() {
            return Ok(true);
        }
        let request = request(attributes, object.or(old));
        let (object, old) = (object.unwrap_or(&Value::Null), old.unwrap_or(&Value::Null));
        let mut failure = None;
        for condition in &self.conditions {
            let outcome = match condition {
                Ok(expression) => {
                    expression.evaluate_bool(&[object, old, &request]).map_err(|error| error.to_string())
                }
                Err(error) => Err(error.to_string()),
            };
            match outcome {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(why) => failure = Some(why),
            }
        }
        failure.map_or(Ok(true), Err)
    }
}

/// `pods`, `pods/status`, `pods/*`, `*/status`, `*` (no subresources) or `*/*`.
fn names_resource(pattern: &str, place: &str) -> bool {
    let (resource, subresource) = place.split_once('/').unwrap_or((place, ""));
    let (wanted, below) = pattern.split_once('/').unwrap_or((pattern, ""));
    let fits = |pattern: &str, value: &str| pattern == "*" || pattern == value;
    fits(wanted, resource) && (fits(below, subresource) || pattern == "*/*")
}

/// What hooks and conditions are told of the request, the objects aside.
pub fn request(attributes: &Attributes<'_>, object: Option<&Value>) -> Value {
    let kind = attributes.served.kind;
    let given = |field: &str| object.map_or("", |object| object.text(field));
    let (group, version) = machinery::gvk::split_api_version(given("apiVersion"));
    let of_object = match given("kind") {
        "" => json!({"group": kind.group, "version": kind.version, "kind": kind.kind}),
        name => json!({"group": group, "version": version, "kind": name}),
    };
    let resource = json!({"group": kind.group, "version": kind.version, "resource": kind.resource});
    let options = match attributes.operation {
        Operation::Create => "CreateOptions",
        Operation::Update => "UpdateOptions",
        Operation::Delete => "DeleteOptions",
        // What is asked for is the object itself.
        Operation::Connect => "",
    };
    let mut options = match options {
        "" => Value::Null,
        kind => json!({"kind": kind, "apiVersion": "meta.k8s.io/v1"}),
    };
    if attributes.context.dry_run {
        options["dryRun"] = json!(["All"]);
    }
    if options.is_object()
        && attributes.operation != Operation::Delete
        && !attributes.context.manager.is_empty()
    {
        options["fieldManager"] = attributes.context.manager.as_str().into();
    }
    let mut request = json!({
        "kind": of_object, "resource": resource, "requestKind": of_object, "requestResource": resource,
        "operation": attributes.operation.to_string(), "userInfo": attributes.context.user.to_value(),
        "dryRun": attributes.context.dry_run, "options": options,
    });
    let name = match attributes.operation {
        Operation::Create if attributes.subresource().is_empty() => object.map_or("", meta::name),
        _ => attributes.name,
    };
    for (field, value) in [
        ("name", name),
        ("namespace", attributes.context.namespace),
        ("subResource", attributes.subresource()),
        ("requestSubResource", attributes.subresource()),
    ] {
        if !value.is_empty() {
            request[field] = value.into();
        }
    }
    if attributes.is("", "namespaces") {
        request["namespace"] = attributes.name.into();
    }
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_resources() {
        for (pattern, place, want) in [
            ("pods", "pods", true),
            ("pods", "pods/status", false),
            ("pods/status", "pods/status", true),
            ("pods/*", "pods/status", true),
            ("pods/*", "pods", true),
            ("*/status", "pods/status", true),
            ("*/status", "pods", false),
            ("*", "pods", true),
            ("*", "pods/status", false),
            ("*/*", "pods", true),
            ("*/*", "pods/status", true),
            ("services", "pods", false),
        ] {
            assert_eq!(names_resource(pattern, place), want, "{pattern} {place}");
        }
    }
}
