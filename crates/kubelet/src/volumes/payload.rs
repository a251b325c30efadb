//! File content of config map, secret, downward API and projected volumes.

use std::collections::BTreeMap;

use objects::ByteString;
use objects::core::v1::{ConfigMap, DownwardAPIVolumeFile, KeyToPath, Pod, Secret};

use crate::configure::Sources;
use crate::configure::downward::{self, DownwardError, PodFacts};

/// Files by path within the volume.
pub type Payload = BTreeMap<String, File>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    pub content: Vec<u8>,
    pub mode: u32,
    pub owner: Option<u32>,
}

/// Failure to build a volume's files.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    #[error("{kind} {name:?} not found")]
    NoObject { kind: &'static str, name: String },
    #[error("{kind} references non-existent {what} key: {key}")]
    NoKey { kind: &'static str, what: &'static str, key: String },
    #[error(transparent)]
    Downward(#[from] DownwardError),
}

fn mode(own: Option<i32>, default: u32) -> u32 {
    own.and_then(|mode| u32::try_from(mode).ok()).unwrap_or(default) & 0o777
}

/// Content source of a config map or secret.
trait Keyed {
    const KIND: &'static str;
    const WHAT: &'static str;
    fn content(&self) -> BTreeMap<String, Vec<u8>>;
}

fn bytes(data: &Option<BTreeMap<String, ByteString>>) -> impl Iterator<Item = (String, Vec<u8>)> + '_ {
    data.iter().flatten().map(|(key, value)| (key.clone(), value.0.clone()))
}

impl Keyed for ConfigMap {
    const KIND: &'static str = "configmap";
    const WHAT: &'static str = "config";
    fn content(&self) -> BTreeMap<String, Vec<u8>> {
        let text = self.data.iter().flatten().map(|(key, value)| (key.clone(), value.clone().into_bytes()));
        text.chain(bytes(&self.binary_data)).collect()
    }
}

impl Keyed for Secret {
    const KIND: &'static str = "secret";
    const WHAT: &'static str = "secret";
    fn content(&self) -> BTreeMap<String, Vec<u8>> {
        bytes(&self.data).collect()
    }
}

fn keyed<K: Keyed>(
    out: &mut Payload,
    object: Option<&K>,
    name: &str,
    items: Option<&[KeyToPath]>,
    optional: bool,
    default: u32,
) -> Result<(), PayloadError> {
    let Some(object) = object else {
        return if optional {
            Ok(())
        } else {
            Err(PayloadError::NoObject { kind: K::KIND, name: name.to_owned() })
        };
    };
    let mut content = object.content();
    let Some(items) = items.filter(|items| !items.is_empty()) else {
        out.extend(
            content.into_iter().map(|(key, content)| (key, File { content, mode: default, owner: None })),
        );
        return Ok(());
    };
    for item in items {
        match content.remove(&item.key) {
            Some(found) => {
                let file = File { content: found.clone(), mode: mode(item.mode, default), owner: None };
                out.insert(item.path.clone(), file);
                content.insert(item.key.clone(), found);
            }
            None if optional => {}
            None => {
                return Err(PayloadError::NoKey { kind: K::KIND, what: K::WHAT, key: item.key.clone() });
            }
        }
    }
    Ok(())
}

pub fn config_map(
    out: &mut Payload,
    sources: &Sources,
    name: &str,
    items: Option<&[KeyToPath]>,
    optional: bool,
    default: Option<i32>,
) -> Result<(), PayloadError> {
    keyed(out, sources.config_maps.get(name), name, items, optional, mode(default, 0o644))
}

pub fn secret(
    out: &mut Payload,
    sources: &Sources,
    name: &str,
    items: Option<&[KeyToPath]>,
    optional: bool,
    default: Option<i32>,
) -> Result<(), PayloadError> {
    keyed(out, sources.secrets.get(name), name, items, optional, mode(default, 0o644))
}

pub fn downward_api(
    out: &mut Payload,
    pod: &Pod,
    facts: &PodFacts<'_>,
    items: &[DownwardAPIVolumeFile],
    default: Option<i32>,
) -> Result<(), PayloadError> {
    for item in items {
        let text = if let Some(reference) = &item.field_ref {
            downward::field(pod, &reference.field_path, facts)?
        } else if let Some(reference) = &item.resource_field_ref {
            downward::resource(pod, None, reference, facts)?
        } else {
            continue;
        };
        let file =
            File { content: text.into_bytes(), mode: mode(item.mode, mode(default, 0o644)), owner: None };
        out.insert(item.path.clone(), file);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_keys_map_to_files() {
        let map = ConfigMap {
            data: Some(BTreeMap::from([("a".to_owned(), "1".to_owned()), ("b".to_owned(), "2".to_owned())])),
            ..ConfigMap::default()
        };
        let sources = Sources { config_maps: BTreeMap::from([("m".to_owned(), map)]), ..Sources::default() };
        let item = |key: &str| KeyToPath { key: key.to_owned(), path: format!("x/{key}"), mode: Some(0o400) };
        let run = |name: &str, items: Option<&[KeyToPath]>, optional| {
            let mut out = Payload::new();
            config_map(&mut out, &sources, name, items, optional, None)
                .map(|()| out.into_iter().map(|(path, file)| (path, file.mode)).collect::<Vec<_>>())
        };
        assert_eq!(run("m", None, false), Ok(vec![("a".to_owned(), 0o644), ("b".to_owned(), 0o644)]));
        assert_eq!(run("m", Some(&[item("a")]), false), Ok(vec![("x/a".to_owned(), 0o400)]));
        assert_eq!(run("none", None, true), Ok(vec![]));
        let error = run("m", Some(&[item("z")]), false).expect_err("no key").to_string();
        assert_eq!(error, "configmap references non-existent config key: z");
        assert_eq!(
            run("none", None, false).expect_err("no map").to_string(),
            r#"configmap "none" not found"#
        );
    }
}
