//! The key that a cluster makes for itself: an `EncryptionConfiguration` for secrets, readable by its owner only.

use super::config::{self, Configuration, Empty, EncryptionError, Key, KeysConfiguration};
use super::config::{ProviderConfiguration, ResourceConfiguration};
use super::provider::MARK;
use crate::configuration::ConfigurationError;
use ::store::{Expect, Op, Outcome, RangeRequest, Store, Txn};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use sha2::{Digest, Sha256};
use std::path::Path;

const KEY_BYTES: usize = 32;
/// Where the hash of the first key is kept; of no use to anybody without the key.
const MARKER: &str = "/registry/ferry/encryption-key";
const SECRETS: &str = "/registry/core/secrets/";
/// Secrets looked at to find out whether there are encrypted ones.
const SAMPLE: usize = 100;

/// Makes the file at a cluster's first start. If it is gone later, that is an error: a new key would not open anything.
/// On a store that servers share, each must have the key of the first: a mark in the store tells that there is one.
pub async fn ensure(path: &Path, store: &dyn Store, shared: bool) -> Result<(), EncryptionError> {
    let missing =
        |object: &str| EncryptionError::KeyMissing { path: path.to_owned(), object: object.to_owned() };
    if path.exists() {
        return if shared { mark(path, store).await.map(drop) } else { Ok(()) };
    }
    let request = RangeRequest {
        start: SECRETS.to_owned(),
        end: ::store::prefix_end(SECRETS),
        limit: SAMPLE,
        revision: None,
    };
    let found = store.range(request).await?;
    if let Some(kv) = found.kvs.iter().find(|kv| kv.value.starts_with(MARK)) {
        return Err(missing(&kv.key));
    }
    let providers = vec![
        ProviderConfiguration {
            aesgcm: Some(KeysConfiguration { keys: vec![new_key("key1")?] }),
            ..ProviderConfiguration::default()
        },
        // Secrets from before there was a key.
        ProviderConfiguration { identity: Some(Empty {}), ..ProviderConfiguration::default() },
    ];
    let resources = vec![ResourceConfiguration { resources: vec!["secrets".to_owned()], providers }];
    write(path, &Configuration { resources })?;
    if shared && !mark(path, store).await? {
        // Another server was first: its key is the cluster's, this one is nobody's.
        std::fs::remove_file(path)
            .map_err(|source| EncryptionError::Write { path: path.to_owned(), source })?;
        return Err(missing(MARKER));
    }
    Ok(())
}

/// Leaves a mark of this file's keys in the store; whether the mark there is of one of them.
async fn mark(path: &Path, store: &dyn Store) -> Result<bool, EncryptionError> {
    let configuration = config::read(path)?;
    let rows = configuration.resources.iter().flat_map(|row| &row.providers);
    let keys =
        rows.flat_map(|row| [&row.aesgcm, &row.secretbox, &row.aescbc]).flatten().flat_map(|row| &row.keys);
    let prints: Vec<String> =
        keys.map(|key| hex::encode(Sha256::digest(format!("ferry encryption key {}", key.secret)))).collect();
    let Some(first) = prints.first() else { return Ok(true) };
    let op = Op::Put { value: Bytes::from(first.clone()), lease: None };
    let txn = Txn { key: MARKER.into(), expect: Expect::Absent, op };
    match store.txn(txn).await? {
        Outcome::Conflict { current: Some(kv), .. } => {
            Ok(prints.iter().any(|print| print.as_bytes() == kv.value.as_ref()))
        }
        _ => Ok(true),
    }
}

/// Puts a new key in front of those that a file has for a provider; returns its name. It writes from the moment
/// servers have read the file.
pub fn add_key(path: &Path) -> Result<String, EncryptionError> {
    let mut configuration = config::read(path)?;
    let mut rows = configuration.resources.iter_mut().flat_map(|row| &mut row.providers);
    let keys = rows.find_map(|row| row.aesgcm.as_mut().or(row.secretbox.as_mut()).or(row.aescbc.as_mut()));
    let Some(keys) = keys else {
        return Err(ConfigurationError::invalid(path, "it has no provider with keys of its own").into());
    };
    let number = |key: &Key| key.name.strip_prefix("key").and_then(|number| number.parse::<u32>().ok());
    let next = keys.keys.iter().filter_map(number).max().unwrap_or(0).saturating_add(1);
    let name = format!("key{next}");
    keys.keys.insert(0, new_key(&name)?);
    write(path, &configuration)?;
    Ok(name)
}

fn new_key(name: &str) -> Result<Key, EncryptionError> {
    let mut key = [0; KEY_BYTES];
    aws_lc_rs::rand::fill(&mut key).map_err(|_| EncryptionError::Random)?;
    Ok(Key { name: name.to_owned(), secret: STANDARD.encode(key) })
}

fn write(path: &Path, configuration: &Configuration) -> Result<(), EncryptionError> {
    base::file::replace(path, &config::render(configuration), base::file::PRIVATE)
        .map_err(|source| EncryptionError::Write { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::store::{Embedded, EmbeddedOptions};

    #[tokio::test]
    async fn a_second_server_needs_the_first_one_s_key() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = Embedded::open(EmbeddedOptions::new(directory.path().join("store"))).expect("a store");
        let (one, two) = (directory.path().join("one.yaml"), directory.path().join("two.yaml"));
        ensure(&one, &store, true).await.expect("the first server");
        ensure(&one, &store, true).await.expect("and its next start");
        let error = ensure(&two, &store, true).await.expect_err("another key");
        assert!(matches!(&error, EncryptionError::KeyMissing { path, .. } if *path == two), "{error}");
        assert!(!two.exists(), "nothing is left that could be used by mistake");
        std::fs::copy(&one, &two).expect("copied");
        ensure(&two, &store, true).await.expect("with the first one's key");
        assert_eq!(add_key(&one).expect("a key"), "key2");
        ensure(&one, &store, true).await.expect("keys may be added");
        store.close().await;
    }
}
