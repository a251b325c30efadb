//! One hook of a configuration, ready to be matched.

use crate::admission::configuration::PluginSettings;
use crate::admission::matching::Matcher;
use crate::admission::policies::Condition;
use crate::admission::{Attributes, Operation};
use crate::outbound::{Client, Presented, Target, TargetError, Trust, Users};
use crate::registry::Version;
use api::value::{Fields, texts};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use machinery::{Value, meta};
use parking_lot::Mutex;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

const DEFAULT_TIMEOUT: i64 = 10;

pub struct Hook {
    pub name: String,
    /// Name of its configuration.
    pub configuration: String,
    pub client_config: Value,
    pub ignores_failure: bool,
    pub has_side_effects: bool,
    pub timeout: Duration,
    /// It is asked again if others have changed the object after it.
    pub reinvoked: bool,
    /// The version of AdmissionReview it gets.
    pub review_version: String,
    pub matches: Matcher,
    pub conditions: Vec<Condition>,
    /// It is one of a MutatingWebhookConfiguration.
    is_mutating: bool,
    /// Kept while it leads to the same place.
    client: Mutex<Option<(String, Arc<Client>)>>,
}

impl Hook {
    /// All hooks of a configuration.
    pub fn all(configuration: &Value) -> Vec<Self> {
        let is_mutating = configuration.text("kind") == "MutatingWebhookConfiguration";
        let name = machinery::meta::name(configuration);
        configuration.items("webhooks").iter().map(|hook| Self::new(hook, name, is_mutating)).collect()
    }

    fn new(hook: &Value, configuration: &str, is_mutating: bool) -> Self {
        let seconds = hook.opt_int("timeoutSeconds").unwrap_or(DEFAULT_TIMEOUT);
        let version =
            texts(hook.items("admissionReviewVersions")).find(|version| matches!(*version, "v1" | "v1beta1"));
        Self {
            name: hook.text("name").to_owned(),
            configuration: configuration.to_owned(),
            client_config: hook.field("clientConfig").clone(),
            ignores_failure: hook.text("failurePolicy") == "Ignore",
            has_side_effects: !matches!(hook.text("sideEffects"), "None" | "NoneOnDryRun"),
            timeout: Duration::from_secs(u64::try_from(seconds).unwrap_or(0)),
            reinvoked: hook.text("reinvocationPolicy") == "IfNeeded",
            review_version: version.unwrap_or("v1").to_owned(),
            matches: Matcher::of_hook(hook),
            conditions: Condition::of_hook(hook),
            is_mutating,
            client: Mutex::new(None),
        }
    }

    /// The users for the servers of hooks like this one.
    pub fn users<'a>(&self, settings: &'a PluginSettings) -> &'a Users {
        if self.is_mutating { &settings.mutating_users } else { &settings.validating_users }
    }

    /// A client for this place; connections are kept between calls.
    pub fn client(
        &self,
        url: &str,
        server_name: Option<String>,
        presented: impl FnOnce() -> Presented,
    ) -> Result<Arc<Client>, TargetError> {
        if let Some((known, client)) = &*self.client.lock()
            && known == url
        {
            return Ok(client.clone());
        }
        let bundle = STANDARD.decode(self.client_config.text("caBundle")).ok();
        let authorities = bundle.filter(|bundle| !bundle.is_empty()).into();
        let Presented { credentials, identity } = presented();
        let trust = Trust { authorities, server_name, identity };
        let client = Arc::new(Client::with_credentials(Target::of_webhook(url, &trust)?, credentials));
        *self.client.lock() = Some((url.to_owned(), client.clone()));
        Ok(client)
    }
}

/// What hooks and conditions are told of the request, the objects aside.
pub fn request(attributes: &Attributes<'_>, object: Option<&Value>) -> Value {
    let given = |field: &str| object.map_or("", |object| object.text(field));
    let (group, version) = machinery::gvk::split_api_version(given("apiVersion"));
    let kind_in = |served: &Version| {
        let kind = &served.kind;
        match given("kind") {
            name if !name.is_empty() && !attributes.is_whole() => {
                json!({"group": group, "version": version, "kind": name})
            }
            _ => json!({"group": kind.group(), "version": kind.version(), "kind": kind.kind()}),
        }
    };
    let resource_in = |served: &Version| {
        let kind = &served.kind;
        json!({"group": kind.group(), "version": kind.version(), "resource": kind.resource()})
    };
    let (served, requested) = (attributes.served, attributes.requested);
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
        "kind": kind_in(served), "resource": resource_in(served),
        "requestKind": kind_in(requested), "requestResource": resource_in(requested),
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
