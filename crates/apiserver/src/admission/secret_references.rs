//! Secrets referenced by a pod, and the restriction by its service account.

use api::pod_spec::container_lists;
use api::value::Fields;
use machinery::{Value, meta};

/// Volume sources with a secret: source, field, and the field inside it (empty: the field is the name).
const VOLUME_SECRETS: [(&str, &str, &str); 9] = [
    ("secret", "secretName", ""),
    ("azureFile", "secretName", ""),
    ("cephfs", "secretRef", "name"),
    ("flexVolume", "secretRef", "name"),
    ("rbd", "secretRef", "name"),
    ("scaleIO", "secretRef", "name"),
    ("iscsi", "secretRef", "name"),
    ("storageos", "secretRef", "name"),
    ("csi", "nodePublishSecretRef", "name"),
];

/// Reports whether the pod references any secret.
pub fn any(spec: &Value) -> bool {
    let in_volume = |volume: &Value| {
        VOLUME_SECRETS.iter().any(|(source, field, inner)| {
            let named = volume.field(source).field(field);
            if inner.is_empty() { !named.as_str().unwrap_or("").is_empty() } else { named.is_object() }
        }) || volume.field("projected").items("sources").iter().any(|source| source.has("secret"))
    };
    !spec.items("imagePullSecrets").is_empty()
        || spec.items("volumes").iter().any(in_volume)
        || container_lists(spec).any(|(_, list)| list.iter().any(|c| of_container(c).next().is_some()))
}

/// Secrets of a container's environment, with the variable's name, or `None` for a whole secret.
fn of_container(container: &Value) -> impl Iterator<Item = (Option<&str>, &str)> {
    let variables = container.items("env").iter().filter_map(|variable| {
        let reference = variable.field("valueFrom").field("secretKeyRef");
        reference.is_object().then(|| (Some(variable.text("name")), reference.text("name")))
    });
    let whole = container.items("envFrom").iter().filter_map(|source| {
        let reference = source.field("secretRef");
        reference.is_object().then(|| (None, reference.text("name")))
    });
    variables.chain(whole)
}

fn allowed(account: &Value, list: &str, name: &str) -> bool {
    account.items(list).iter().any(|secret| secret.text("name") == name)
}

/// Checks that the service account lists every secret the pod references.
pub fn check(pod: &Value, account: &Value) -> Result<(), String> {
    let (spec, owner) = (pod.field("spec"), meta::name(account));
    for volume in spec.items("volumes").iter().filter(|volume| volume.has("secret")) {
        let name = volume.field("secret").text("secretName");
        if !allowed(account, "secrets", name) {
            return Err(format!(
                "volume with secret.secretName=\"{name}\" is not allowed because service account {owner} does not reference that secret"
            ));
        }
    }
    check_containers(pod, "initContainers", account)?;
    check_containers(pod, "containers", account)?;
    for (i, secret) in spec.items("imagePullSecrets").iter().enumerate() {
        let name = secret.text("name");
        if !allowed(account, "imagePullSecrets", name) {
            return Err(format!(
                "imagePullSecrets[{i}].name=\"{name}\" is not allowed because service account {owner} does not reference that imagePullSecret"
            ));
        }
    }
    Ok(())
}

/// Checks one list of containers.
pub fn check_containers(pod: &Value, list: &str, account: &Value) -> Result<(), String> {
    let what = match list {
        "initContainers" => "init container",
        "ephemeralContainers" => "ephemeral container",
        _ => "container",
    };
    let owner = meta::name(account);
    for container in pod.field("spec").items(list) {
        for (variable, secret) in of_container(container) {
            if allowed(account, "secrets", secret) {
                continue;
            }
            let location = variable.map_or("envFrom".to_owned(), |variable| format!("envVar {variable}"));
            return Err(format!(
                "{what} {} with {location} referencing secret.secretName=\"{secret}\" is not allowed because service account {owner} does not reference that secret",
                container.text("name")
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn unlisted_secret_reference_is_rejected() {
        let account = json!({"metadata": {"name": "a"}, "secrets": [{"name": "ok"}]});
        let variable = |name: &str| json!({"name": "V", "valueFrom": {"secretKeyRef": {"name": name}}});
        for (spec, want) in [
            (json!({"volumes": [{"secret": {"secretName": "ok"}}]}), None),
            (
                json!({"volumes": [{"secret": {"secretName": "x"}}]}),
                Some(
                    r#"volume with secret.secretName="x" is not allowed because service account a does not reference that secret"#,
                ),
            ),
            (
                json!({"initContainers": [{"name": "i", "env": [variable("x")]}]}),
                Some(
                    r#"init container i with envVar V referencing secret.secretName="x" is not allowed because service account a does not reference that secret"#,
                ),
            ),
            (
                json!({"containers": [{"name": "c", "envFrom": [{"secretRef": {"name": "x"}}]}]}),
                Some(
                    r#"container c with envFrom referencing secret.secretName="x" is not allowed because service account a does not reference that secret"#,
                ),
            ),
            (
                json!({"imagePullSecrets": [{"name": "ok"}]}),
                Some(
                    r#"imagePullSecrets[0].name="ok" is not allowed because service account a does not reference that imagePullSecret"#,
                ),
            ),
        ] {
            assert!(any(&spec));
            assert_eq!(check(&json!({"spec": spec}), &account).err().as_deref(), want);
        }
    }
}
