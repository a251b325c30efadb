//! One webhook of a configuration, prepared for matching.

use crate::admission::configuration::PluginSettings;
use crate::admission::matching::Matcher;
use crate::admission::policies::Condition;
use crate::admission::{Attributes, Operation};
use crate::outbound::{Client, ServerCredentials, Target, TargetError, Trust, Users};
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
    /// `reinvocationPolicy: IfNeeded`.
    pub reinvoked: bool,
    /// Version of its AdmissionReview.
    pub review_version: String,
    pub matches: Matcher,
    pub conditions: Vec<Condition>,
    /// True in a MutatingWebhookConfiguration.
    pub is_mutating: bool,
    /// Client by URL, reused while the URL is the same.
    client: Mutex<Option<(String, Arc<Client>)>>,
}

impl Hook {
    /// All webhooks of a configuration.
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

    /// Credentials for servers of this kind of webhook.
    pub fn users<'a>(&self, settings: &'a PluginSettings) -> &'a Users {
        if self.is_mutating { &settings.mutating_users } else { &settings.validating_users }
    }

    /// Client for this URL; connections are reused between calls.
    pub fn client(
        &self,
        url: &str,
        server_name: Option<String>,
        presented: impl FnOnce() -> ServerCredentials,
    ) -> Result<Arc<Client>, TargetError> {
        if let Some((known, client)) = &*self.client.lock()
            && known == url
        {
            return Ok(client.clone());
        }
        let bundle = STANDARD.decode(self.client_config.text("caBundle")).ok();
        let authorities = bundle.filter(|bundle| !bundle.is_empty()).into();
        let ServerCredentials { credentials, identity } = presented();
        let trust = Trust { authorities, server_name, identity };
        let target = Target::of_webhook(url, &trust)?;
        let client = Arc::new(Client::with_credentials(target, credentials).for_webhook());
        *self.client.lock() = Some((url.to_owned(), client.clone()));
        Ok(client)
    }
}

/// `request` of a review and of expressions, without the objects.
pub fn request(attributes: &Attributes<'_>, object: Option<&Value>) -> Value {
    let field_text = |field: &str| object.map_or("", |object| object.text(field));
    let (group, version) = machinery::gvk::split_api_version(field_text("apiVersion"));
    let kind_in = |served: &Version| {
        let kind = &served.kind;
        match field_text("kind") {
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
        // The object itself holds the options.
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
