//! ServiceAccount: assigns every pod a service account and mounts its token volume.

use super::reading::{invalid_name_reason, mentions};
use super::{Attributes, Operation, Plugin, secret_references};
use crate::registry::{Registry, metadata};
use api::value::Fields;
use async_trait::async_trait;
use machinery::field::show_str;
use machinery::status::Result;
use machinery::{Value, meta};
use serde_json::json;
use std::time::Duration;

const MIRROR: &str = "kubernetes.io/config.mirror";
const ENFORCE_SECRETS: &str = "kubernetes.io/enforce-mountable-secrets";
/// Account fields that affect pods.
const POD_SETTINGS: [&str; 3] = ["automountServiceAccountToken", "imagePullSecrets", ENFORCE_SECRETS];
const TOKEN_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const TOKEN_VOLUME: &str = "kube-api-access-";
/// A little more than an hour: kubelets renew after four fifths of it.
const TOKEN_SECONDS: i64 = 3607;
/// A controller creates the default account of a new namespace and may lag.
const DEFAULT_ATTEMPTS: usize = 10;
const RETRY: Duration = Duration::from_millis(100);

pub struct ServiceAccount;

#[async_trait]
impl Plugin for ServiceAccount {
    fn name(&self) -> &'static str {
        "ServiceAccount"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        match attributes.operation {
            Operation::Create => attributes.is("", "pods"),
            Operation::Update => attributes.is_subresource("", "pods", "ephemeralcontainers"),
            Operation::Delete | Operation::Connect => false,
        }
    }

    async fn mutate(
        &self,
        registry: &Registry,
        attributes: &Attributes<'_>,
        object: Option<&mut Value>,
        _old: Option<&Value>,
    ) -> Result<()> {
        let Some(pod) = object.filter(|_| attributes.operation == Operation::Create) else {
            return Ok(());
        };
        if meta::annotation(pod, MIRROR).is_some() {
            return check_mirror(pod).map_err(|why| attributes.forbidden(why));
        }
        pod.child_mut("spec").default_if_zero("serviceAccountName", "default");
        let account = account_of(registry, attributes, pod, &POD_SETTINGS).await?;
        complete(pod, &account);
        check_secrets(pod, &account).map_err(|why| attributes.forbidden(why))
    }

    async fn validate(
        &self,
        registry: &Registry,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
        _old: Option<&Value>,
    ) -> Result<()> {
        let Some(pod) = object else { return Ok(()) };
        if attributes.operation == Operation::Create && meta::annotation(pod, MIRROR).is_some() {
            return check_mirror(pod).map_err(|why| attributes.forbidden(why));
        }
        if pod.field("spec").text("serviceAccountName").is_empty() {
            let (namespace, name) = (attributes.context.namespace, meta::name(pod));
            let why = format!("no service account specified for pod {namespace}/{name}");
            return Err(attributes.forbidden(why));
        }
        let account = account_of(registry, attributes, pod, &[ENFORCE_SECRETS]).await?;
        let checked = match attributes.operation {
            Operation::Create => check_secrets(pod, &account),
            _ if enforces_secrets(&account) => {
                secret_references::check_containers(pod, "ephemeralContainers", &account)
            }
            _ => Ok(()),
        };
        checked.map_err(|why| attributes.forbidden(why))
    }
}

/// Returns the account of a pod, or null if it contains none of `matters`, as most accounts do.
async fn account_of(
    registry: &Registry,
    attributes: &Attributes<'_>,
    pod: &Value,
    matters: &[&str],
) -> Result<Value> {
    let (namespace, name) = (attributes.context.namespace, pod.field("spec").text("serviceAccountName"));
    let attempts = if name == "default" { DEFAULT_ATTEMPTS } else { 1 };
    for attempt in 0..attempts {
        if attempt > 0 {
            tokio::time::sleep(RETRY).await;
        }
        if let Some(account) = registry.find_entry(("", "v1", "serviceaccounts"), namespace, name).await? {
            let mentions_name = |matter: &&str| mentions(&account.bytes, matter);
            return Ok(if matters.iter().any(mentions_name) { account.value() } else { Value::Null });
        }
    }
    let why =
        invalid_name_reason(name).unwrap_or_else(|| format!("serviceaccount {} not found", show_str(name)));
    Err(attributes.forbidden(format!("error looking up service account {namespace}/{name}: {why}")))
}

/// Mirror pods may not reference API objects.
fn check_mirror(pod: &Value) -> Result<(), &'static str> {
    let spec = pod.field("spec");
    if !spec.text("serviceAccountName").is_empty() {
        return Err("a mirror pod may not reference service accounts");
    }
    if secret_references::any(spec) {
        return Err("a mirror pod may not reference secrets");
    }
    let sources = spec.items("volumes").iter().flat_map(|v| v.field("projected").items("sources"));
    if sources.into_iter().any(|source| source.has("serviceAccountToken")) {
        return Err("a mirror pod may not use ServiceAccountToken volume projections");
    }
    Ok(())
}

fn enforces_secrets(account: &Value) -> bool {
    meta::annotation(account, ENFORCE_SECRETS)
        .is_some_and(|value| matches!(value, "1" | "t" | "T" | "TRUE" | "true" | "True"))
}

fn check_secrets(pod: &Value, account: &Value) -> Result<(), String> {
    if enforces_secrets(account) { secret_references::check(pod, account) } else { Ok(()) }
}

/// Adds the token volume and the account's image pull secrets.
fn complete(pod: &mut Value, account: &Value) {
    let spec = pod.child_mut("spec");
    let wanted = spec
        .opt_flag("automountServiceAccountToken")
        .or_else(|| account.opt_flag("automountServiceAccountToken"))
        .unwrap_or(true);
    if wanted {
        mount_token(spec);
    }
    let secrets = account.items("imagePullSecrets");
    if spec.items("imagePullSecrets").is_empty() && !secrets.is_empty() {
        let names: Vec<Value> = secrets.iter().map(|secret| json!({"name": secret.text("name")})).collect();
        spec.set("imagePullSecrets", names);
    }
}

fn mount_token(spec: &mut Value) {
    let present = spec.items("volumes").iter().map(|v| v.text("name")).find(|n| n.starts_with(TOKEN_VOLUME));
    let has_volume = present.is_some();
    let volume = present.map_or_else(|| metadata::generate_name(TOKEN_VOLUME), str::to_owned);
    let mut mounted = false;
    for list in ["initContainers", "containers"] {
        for container in spec.items_mut(list) {
            let mut mounts = container.items("volumeMounts").to_vec();
            if mounts.iter().any(|mount| mount.text("mountPath") == TOKEN_PATH) {
                continue;
            }
            mounts.push(json!({"name": volume, "readOnly": true, "mountPath": TOKEN_PATH}));
            container.set("volumeMounts", mounts);
            mounted = true;
        }
    }
    if mounted && !has_volume {
        let mut volumes = spec.items("volumes").to_vec();
        volumes.push(json!({"name": volume, "projected": {"defaultMode": 0o644, "sources": [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": TOKEN_SECONDS}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [
                {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}},
            ]}},
        ]}}));
        spec.set("volumes", volumes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> Value {
        json!({"spec": {
            "containers": [{"name": "a"}, {"name": "b", "volumeMounts": [{"name": "x", "mountPath": TOKEN_PATH}]}],
            "initContainers": [{"name": "i"}],
        }})
    }

    #[test]
    fn token_is_mounted_unless_path_is_taken() {
        let mut subject = pod();
        complete(&mut subject, &json!({"imagePullSecrets": [{"name": "s"}]}));
        let spec = &subject["spec"];
        let volume = &spec["volumes"][0]["name"];
        assert!(volume.as_str().is_some_and(|name| name.starts_with(TOKEN_VOLUME) && name.len() == 21));
        assert_eq!(&spec["containers"][0]["volumeMounts"][0]["name"], volume);
        assert_eq!(&spec["initContainers"][0]["volumeMounts"][0]["name"], volume);
        assert_eq!(spec["containers"][1]["volumeMounts"].as_array().map(Vec::len), Some(1));
        assert_eq!(spec["imagePullSecrets"], json!([{"name": "s"}]));
    }

    #[test]
    fn automount_disabled_by_pod_or_account_adds_no_token() {
        for (of_pod, of_account, mounted) in
            [(None, Some(false), false), (Some(true), Some(false), true), (Some(false), None, false)]
        {
            let mut subject = pod();
            if let Some(flag) = of_pod {
                subject["spec"]["automountServiceAccountToken"] = flag.into();
            }
            complete(&mut subject, &json!({"automountServiceAccountToken": of_account}));
            assert_eq!(subject["spec"].has("volumes"), mounted);
        }
    }

    #[test]
    fn mirror_pod_with_references_is_rejected() {
        assert_eq!(check_mirror(&pod()), Ok(()));
        for (field, value) in [
            ("serviceAccountName", json!("x")),
            ("imagePullSecrets", json!([{"name": "s"}])),
            ("volumes", json!([{"projected": {"sources": [{"serviceAccountToken": {}}]}}])),
        ] {
            let mut subject = pod();
            subject["spec"][field] = value;
            assert!(check_mirror(&subject).is_err(), "{field}");
        }
    }
}
