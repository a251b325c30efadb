//! The environment of a container.

use std::collections::BTreeMap;

use objects::core::v1::{Container, EnvVar, Pod};

use super::downward::{self, DownwardError, PodFacts};
use super::env_file::{self, FileError};
use super::expansion::expand;
use super::{Sources, services};

/// Failure to build the environment; the text is shown in the pod status.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvironmentError {
    #[error("{kind} {name:?} not found")]
    NoObject { kind: &'static str, name: String },
    #[error("couldn't find key {key} in {kind} {namespace}/{name}")]
    NoKey { kind: &'static str, namespace: String, name: String, key: String },
    #[error("couldn't parse env file")]
    File(#[from] FileError),
    #[error("environment variable key {key:?} not found in file {path:?}")]
    NotInFile { key: String, path: String },
    #[error(transparent)]
    Downward(#[from] DownwardError),
}

/// Variables of a container in definition order; a later one of the same name wins.
pub fn variables(
    pod: &Pod,
    container: &Container,
    sources: &Sources,
    facts: &PodFacts<'_>,
) -> Result<Vec<(String, String)>, EnvironmentError> {
    let services = service_variables(pod, sources);
    let mut result: BTreeMap<String, String> = BTreeMap::new();
    let mut order: Vec<String> = Vec::new();
    let mut set = |result: &mut BTreeMap<String, String>, name: String, value: String| {
        if result.insert(name.clone(), value).is_none() {
            order.push(name);
        }
    };
    for source in container.env_from.iter().flatten() {
        let prefix = source.prefix.as_deref().unwrap_or("");
        if let Some(reference) = &source.config_map_ref {
            match sources.config_maps.get(&reference.name) {
                Some(map) => {
                    for (key, value) in map.data.iter().flatten() {
                        set(&mut result, format!("{prefix}{key}"), value.clone());
                    }
                }
                None if reference.optional == Some(true) => {}
                None => return Err(missing("configmap", &reference.name)),
            }
        }
        if let Some(reference) = &source.secret_ref {
            match sources.secrets.get(&reference.name) {
                Some(secret) => {
                    for (key, value) in secret.data.iter().flatten() {
                        let text = String::from_utf8_lossy(&value.0).into_owned();
                        set(&mut result, format!("{prefix}{key}"), text);
                    }
                }
                None if reference.optional == Some(true) => {}
                None => return Err(missing("secret", &reference.name)),
            }
        }
    }
    for env in container.env.iter().flatten() {
        let value = match value_of(pod, container, env, sources, facts)? {
            Some(Value::Fetched(value)) => value,
            Some(Value::Written(text)) => {
                let lookup = |name: &str| result.get(name).or_else(|| services.get(name)).cloned();
                expand(&text, &lookup)
            }
            None => continue,
        };
        set(&mut result, env.name.clone(), value);
    }
    let mut out: Vec<(String, String)> =
        services.into_iter().filter(|(name, _)| !result.contains_key(name)).collect();
    out.extend(order.into_iter().map(|name| {
        let value = result.get(&name).cloned().unwrap_or_default();
        (name, value)
    }));
    Ok(out)
}

enum Value {
    /// Value from a referenced source: used verbatim.
    Fetched(String),
    /// Value from the pod spec: `$(VAR)` references are expanded.
    Written(String),
}

fn value_of(
    pod: &Pod,
    container: &Container,
    env: &EnvVar,
    sources: &Sources,
    facts: &PodFacts<'_>,
) -> Result<Option<Value>, EnvironmentError> {
    let Some(from) = &env.value_from else {
        return Ok(Some(Value::Written(env.value.clone().unwrap_or_default())));
    };
    let namespace = || pod.metadata.namespace.clone().unwrap_or_default();
    if let Some(reference) = &from.field_ref {
        return Ok(Some(Value::Fetched(downward::field(pod, &reference.field_path, facts)?)));
    }
    if let Some(reference) = &from.resource_field_ref {
        return Ok(Some(Value::Fetched(downward::resource(pod, Some(container), reference, facts)?)));
    }
    if let Some(key) = &from.config_map_key_ref {
        let optional = key.optional == Some(true);
        let Some(map) = sources.config_maps.get(&key.name) else {
            return if optional { Ok(None) } else { Err(missing("configmap", &key.name)) };
        };
        return match map.data.as_ref().and_then(|data| data.get(&key.key)) {
            Some(value) => Ok(Some(Value::Fetched(value.clone()))),
            None if optional => Ok(None),
            None => Err(EnvironmentError::NoKey {
                kind: "ConfigMap",
                namespace: namespace(),
                name: key.name.clone(),
                key: key.key.clone(),
            }),
        };
    }
    if let Some(key) = &from.secret_key_ref {
        let optional = key.optional == Some(true);
        let Some(secret) = sources.secrets.get(&key.name) else {
            return if optional { Ok(None) } else { Err(missing("secret", &key.name)) };
        };
        return match secret.data.as_ref().and_then(|data| data.get(&key.key)) {
            Some(value) => Ok(Some(Value::Fetched(String::from_utf8_lossy(&value.0).into_owned()))),
            None if optional => Ok(None),
            None => Err(EnvironmentError::NoKey {
                kind: "Secret",
                namespace: namespace(),
                name: key.name.clone(),
                key: key.key.clone(),
            }),
        };
    }
    if let Some(key) = &from.file_key_ref {
        let file = sources.files.get(&(key.volume_name.clone(), key.path.clone()));
        let value = file.map(|text| env_file::value(text, &key.key)).transpose()?.flatten();
        return match value {
            Some(value) => Ok(Some(Value::Fetched(value))),
            None if key.optional == Some(true) => Ok(None),
            None => Err(EnvironmentError::NotInFile { key: key.key.clone(), path: key.path.clone() }),
        };
    }
    Ok(Some(Value::Fetched(String::new())))
}

fn missing(kind: &'static str, name: &str) -> EnvironmentError {
    EnvironmentError::NoObject { kind, name: name.to_owned() }
}

/// Services of the pod's namespace unless disabled by `enableServiceLinks`, and always the API server's own.
fn service_variables(pod: &Pod, sources: &Sources) -> BTreeMap<String, String> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
    let links = pod.spec.as_ref().and_then(|spec| spec.enable_service_links).unwrap_or(true);
    let wanted = sources.services.iter().filter(|service| {
        let of = service.metadata.namespace.as_deref().unwrap_or("");
        let name = service.metadata.name.as_deref().unwrap_or("");
        (links && of == namespace) || (of == "default" && name == "kubernetes")
    });
    services::variables(wanted.map(AsRef::as_ref))
}

#[cfg(test)]
mod tests {
    use super::*;
    use objects::core::v1::{
        ConfigMap, ConfigMapEnvSource, ConfigMapKeySelector, EnvFromSource, EnvVarSource, ObjectFieldSelector,
    };

    fn env(name: &str, value: &str) -> EnvVar {
        EnvVar { name: name.to_owned(), value: Some(value.to_owned()), value_from: None }
    }

    fn from_map(name: &str, map: &str, key: &str, optional: bool) -> EnvVar {
        let selector =
            ConfigMapKeySelector { name: map.to_owned(), key: key.to_owned(), optional: Some(optional) };
        EnvVar {
            name: name.to_owned(),
            value: None,
            value_from: Some(EnvVarSource { config_map_key_ref: Some(selector), ..Default::default() }),
        }
    }

    fn sources() -> Sources {
        let data = BTreeMap::from([("k".to_owned(), "v".to_owned())]);
        let map = ConfigMap { data: Some(data), ..ConfigMap::default() };
        Sources { config_maps: BTreeMap::from([("m".to_owned(), map)]), ..Sources::default() }
    }

    #[test]
    fn environment_expands_in_order_later_wins() {
        let mut pod = Pod::default();
        pod.metadata.name = Some("p".to_owned());
        let container = Container {
            env_from: Some(vec![EnvFromSource {
                prefix: Some("P_".to_owned()),
                config_map_ref: Some(ConfigMapEnvSource { name: "m".to_owned(), optional: None }),
                secret_ref: None,
            }]),
            env: Some(vec![
                env("A", "1"),
                env("B", "$(A)-$(P_k)-$(LATER)"),
                from_map("M", "m", "k", false),
                from_map("NONE", "x", "k", true),
                EnvVar {
                    name: "POD".to_owned(),
                    value: None,
                    value_from: Some(EnvVarSource {
                        field_ref: Some(ObjectFieldSelector {
                            api_version: None,
                            field_path: "metadata.name".to_owned(),
                        }),
                        ..Default::default()
                    }),
                },
                env("A", "2"),
            ]),
            ..Container::default()
        };
        let got = variables(&pod, &container, &sources(), &PodFacts::default()).expect("an environment");
        let got: Vec<_> = got.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(got, [("P_k", "v"), ("A", "2"), ("B", "1-v-$(LATER)"), ("M", "v"), ("POD", "p")]);
    }

    #[test]
    fn environment_missing_source_reports_kubernetes_message() {
        let mut pod = Pod::default();
        pod.metadata.namespace = Some("ns".to_owned());
        for (env, want) in [
            (from_map("X", "none", "k", false), r#"configmap "none" not found"#),
            (from_map("X", "m", "none", false), "couldn't find key none in ConfigMap ns/m"),
        ] {
            let container = Container { env: Some(vec![env]), ..Container::default() };
            let error = variables(&pod, &container, &sources(), &PodFacts::default());
            assert_eq!(error.map_err(|error| error.to_string()), Err(want.to_owned()));
        }
    }
}
