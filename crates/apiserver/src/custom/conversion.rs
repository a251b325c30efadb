//! Conversion webhooks: objects go out together, come back in the wanted version, and keep who they are.

use crate::admission::{CallFailure, service_address, with_query, words};
use crate::outbound::{Client, Target, Trust};
use crate::registry::{Convert, Registry};
use api::value::{Fields, texts};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::future::BoxFuture;
use machinery::status::{Result, Status};
use machinery::{Map, Value};
use parking_lot::Mutex;
use serde_json::json;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Longest time a conversion may take, as in Kubernetes.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Fields of metadata that a webhook may change.
const MUTABLE: [&str; 2] = ["labels", "annotations"];

/// The conversion webhook of one definition.
pub struct Webhook {
    registry: Weak<Registry>,
    /// `example.com, Kind=Widget`, for messages.
    shown: String,
    config: Value,
    /// The newest version of reviews that both sides know.
    review_version: Option<&'static str>,
    client: Mutex<Option<(String, Arc<Client>)>>,
}

impl Webhook {
    pub fn new(registry: Weak<Registry>, definition: &Value) -> Self {
        let spec = definition.field("spec");
        let webhook = spec.field("conversion").field("webhook");
        let known =
            |version: &&str| texts(webhook.items("conversionReviewVersions")).any(|given| given == *version);
        Self {
            registry,
            shown: format!("{}, Kind={}", spec.text("group"), spec.field("names").text("kind")),
            config: webhook.field("clientConfig").clone(),
            review_version: ["v1"].into_iter().find(known),
            client: Mutex::default(),
        }
    }

    async fn call(&self, objects: &[Value], api_version: &str) -> Result<Vec<Value>, String> {
        let version = self.review_version.ok_or("no supported conversion review version")?;
        let uid = uuid::Uuid::new_v4().to_string();
        let review = json!({
            "apiVersion": format!("apiextensions.k8s.io/{version}"), "kind": "ConversionReview",
            "request": {"uid": uid, "desiredAPIVersion": api_version, "objects": objects},
        });
        let query = format!("timeout={}s", TIMEOUT.as_secs());
        let (shown, reached, server_name) = match self.config.opt_text("url") {
            Some(url) => {
                let url = with_query(url, &query);
                (url.clone(), url, None)
            }
            None => {
                let registry = self.registry.upgrade().ok_or("the server stops")?;
                let found = service_address(self.config.field("service"), &registry, &query).await;
                found.map_err(|CallFailure(why)| why)?
            }
        };
        let client = self.client(&reached, server_name)?;
        let answer = client.post(&review, TIMEOUT).await.map_err(|error| words(&error, &shown))?;
        converted(&answer, &uid, objects, api_version)
    }

    fn client(&self, url: &str, server_name: Option<String>) -> Result<Arc<Client>, String> {
        if let Some((known, client)) = &*self.client.lock()
            && known == url
        {
            return Ok(Arc::clone(client));
        }
        let bundle = STANDARD.decode(self.config.text("caBundle")).ok();
        let authorities = bundle.filter(|bundle| !bundle.is_empty()).into();
        let trust = Trust { authorities, server_name, ..Trust::default() };
        let target = Target::new(url, &trust).map_err(|error| error.to_string())?;
        let client = Arc::new(Client::new(target));
        *self.client.lock() = Some((url.to_owned(), Arc::clone(&client)));
        Ok(client)
    }
}

impl Convert for Webhook {
    fn convert<'a>(&'a self, objects: Vec<Value>, api_version: &'a str) -> BoxFuture<'a, Result<Vec<Value>>> {
        Box::pin(async move {
            let is_other = |object: &Value| object.text("apiVersion") != api_version;
            let others: Vec<Value> = objects.iter().filter(|object| is_other(object)).cloned().collect();
            if others.is_empty() {
                return Ok(objects);
            }
            let from = others.first().map(|object| object.text("apiVersion").to_owned()).unwrap_or_default();
            let converted = self.call(&others, api_version).await.map_err(|why| {
                let (_, version) = machinery::gvk::split_api_version(&from);
                let shown = self.shown.replacen(", ", &format!("/{version}, "), 1);
                Status::internal(format!("conversion webhook for {shown} failed: {why}"))
            })?;
            let mut converted = converted.into_iter();
            let take =
                |object: Value| if is_other(&object) { converted.next().unwrap_or(object) } else { object };
            Ok(objects.into_iter().map(take).collect())
        })
    }
}

/// The objects of an answer, if it is one to this request and has left alone what it may not change.
fn converted(answer: &Value, uid: &str, objects: &[Value], api_version: &str) -> Result<Vec<Value>, String> {
    let response = answer.field("response");
    if !response.is_object() {
        return Err("no response provided".to_owned());
    }
    if response.text("uid") != uid {
        return Err(format!("expected response.uid={uid:?}, got {:?}", response.text("uid")));
    }
    let result = response.field("result");
    if result.text("status") != "Success" {
        let message = result.opt_text("message").filter(|message| !message.is_empty());
        return Err(message.unwrap_or("converter returned failure without a message").to_owned());
    }
    let found = response.items("convertedObjects");
    if found.len() != objects.len() {
        return Err(format!("returned {} objects, expected {}", found.len(), objects.len()));
    }
    let pairs = objects.iter().zip(found).enumerate();
    pairs.map(|(index, (given, found))| checked(index, given, found, api_version)).collect()
}

fn checked(index: usize, given: &Value, found: &Value, api_version: &str) -> Result<Value, String> {
    let invalid = |why: String| Err(format!("returned invalid converted object at index {index}: {why}"));
    if found.text("apiVersion") != api_version {
        return invalid(format!(
            "invalid groupVersion (expected {api_version}, received {})",
            found.text("apiVersion")
        ));
    }
    if found.text("kind") != given.text("kind") {
        return invalid(format!(
            "invalid kind (expected {}, received {})",
            given.text("kind"),
            found.text("kind")
        ));
    }
    let empty = Map::new();
    let (Some(old), Some(new)) = (given.field("metadata").as_object(), found.field("metadata").as_object())
    else {
        return invalid("metadata is not an object".to_owned());
    };
    for field in ["name", "namespace", "uid"] {
        if old.get(field) != new.get(field) {
            return invalid(format!("must have the same {field}"));
        }
    }
    // Labels and annotations are the webhook's; everything else stays what it was.
    let mut metadata = old.clone();
    for field in MUTABLE {
        match new.get(field) {
            Some(value) if value.as_object() != Some(&empty) => {
                metadata.insert(field.to_owned(), value.clone())
            }
            _ => metadata.remove(field),
        };
    }
    let mut object = found.clone();
    object.set("metadata", Value::Object(metadata));
    Ok(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_checked_and_keep_identity() {
        let given = [json!({
            "apiVersion": "example.com/v1", "kind": "W",
            "metadata": {"name": "a", "uid": "u", "labels": {"x": "y"}, "finalizers": ["f"]},
        })];
        let object = json!({
            "apiVersion": "example.com/v2", "kind": "W",
            "metadata": {"name": "a", "uid": "u", "annotations": {"n": "1"}}, "spec": 1,
        });
        let answer = |uid: &str, result: Value, objects: Value| json!({"response": {"uid": uid, "result": result, "convertedObjects": objects}});
        let success = json!({"status": "Success"});
        let run = |answer: Value| converted(&answer, "1", &given, "example.com/v2");
        let made = run(answer("1", success.clone(), json!([object]))).expect("converted");
        assert_eq!(
            made[0]["metadata"],
            json!({"name": "a", "uid": "u", "annotations": {"n": "1"}, "finalizers": ["f"]})
        );
        assert_eq!(made[0]["spec"], 1);
        let mut renamed = object.clone();
        renamed["metadata"]["name"] = json!("b");
        let mut old_version = object.clone();
        old_version["apiVersion"] = json!("example.com/v1");
        for (answer, why) in [
            (json!({}), "no response provided"),
            (answer("2", success.clone(), json!([object])), "expected response.uid=\"1\", got \"2\""),
            (answer("1", json!({"status": "Failure", "message": "no"}), json!([])), "no"),
            (answer("1", success.clone(), json!([])), "returned 0 objects, expected 1"),
            (
                answer("1", success.clone(), json!([renamed])),
                "returned invalid converted object at index 0: must have the same name",
            ),
            (
                answer("1", success, json!([old_version])),
                "returned invalid converted object at index 0: invalid groupVersion (expected example.com/v2, received example.com/v1)",
            ),
        ] {
            assert_eq!(run(answer).expect_err("refused"), why);
        }
    }
}
