//! The generated encryption key of a cluster: an `EncryptionConfiguration` for secrets, readable by its owner only.

use super::config::{self, Configuration, Empty, EncryptionError, Key, KeysConfiguration};
use super::config::{ProviderConfiguration, ResourceConfiguration};
use super::provider::ENCRYPTED_PREFIX;
use super::rules::Rules;
use crate::configuration::ConfigurationError;
use ::store::{Expect, KeyValue, Op, Outcome, RangeRequest, Store, Txn};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use sha2::{Digest, Sha256};
use std::path::Path;

const KEY_BYTES: usize = 32;
/// Store key of the hash of the first encryption key, which reveals nothing about the key.
const MARKER: &str = "/registry/ferry/encryption-key";
const SECRETS: &str = "/registry/core/secrets/";
/// Page size of the search for an encrypted secret.
const PAGE: usize = 100;

/// Creates the file at a cluster's first start. If it is missing later, that is an error: a new key could not decrypt
/// anything. Servers on a shared store must have the key of the first: a marker in the store identifies it.
pub async fn ensure(path: &Path, store: &dyn Store, shared: bool) -> Result<(), EncryptionError> {
    let missing =
        |object: &str| EncryptionError::KeyMissing { path: path.to_owned(), object: object.to_owned() };
    if path.exists() {
        if shared && !mark(path, store).await? {
            return Err(EncryptionError::OtherKey { path: path.to_owned() });
        }
        return Ok(());
    }
    if let Some(key) = encrypted_secret(store).await? {
        return Err(missing(&key));
    }
    let providers = vec![
        ProviderConfiguration {
            aesgcmderived: Some(KeysConfiguration { keys: vec![new_key("key1")?] }),
            ..ProviderConfiguration::default()
        },
        // Secrets stored before encryption.
        ProviderConfiguration { identity: Some(Empty {}), ..ProviderConfiguration::default() },
    ];
    let resources = vec![ResourceConfiguration { resources: vec!["secrets".to_owned()], providers }];
    write(path, &Configuration { resources })?;
    if shared && !mark(path, store).await? {
        // Another server created the cluster's key first: this one is unused.
        std::fs::remove_file(path)
            .map_err(|source| EncryptionError::Write { path: path.to_owned(), source })?;
        return Err(missing(MARKER));
    }
    Ok(())
}

/// Store key of an encrypted secret, if any.
async fn encrypted_secret(store: &dyn Store) -> Result<Option<String>, EncryptionError> {
    let mut found = None;
    each_secret(store, |kv| {
        if kv.value.starts_with(ENCRYPTED_PREFIX) {
            found = Some(kv.key.to_string());
        }
        found.is_none()
    })
    .await?;
    Ok(found)
}

/// Passes stored secrets to `visit`, page by page, until it returns false.
async fn each_secret(
    store: &dyn Store,
    mut visit: impl FnMut(&KeyValue) -> bool,
) -> Result<(), EncryptionError> {
    let mut start = SECRETS.to_owned();
    loop {
        let end = ::store::prefix_end(SECRETS);
        let page = store.range(RangeRequest { start, end, limit: PAGE, revision: None }).await?;
        let goes_on = page.kvs.iter().all(&mut visit);
        match page.kvs.last() {
            Some(last) if goes_on && page.more => start = format!("{}\0", last.key),
            _ => return Ok(()),
        }
    }
}

/// Stores a marker of this file's first key if absent; reports whether the marker matches one of the keys.
async fn mark(path: &Path, store: &dyn Store) -> Result<bool, EncryptionError> {
    let configuration = config::read(path)?;
    let rows = configuration.resources.iter().flat_map(|row| &row.providers);
    let keys = rows
        .flat_map(|row| [&row.aesgcmderived, &row.aesgcm, &row.secretbox, &row.aescbc])
        .flatten()
        .flat_map(|row| &row.keys);
    let prints: Vec<String> =
        keys.map(|key| hex::encode(Sha256::digest(format!("ferry encryption key {}", key.secret)))).collect();
    let Some(first) = prints.first() else { return Ok(true) };
    let op = Op::Put { value: Bytes::from(first.clone()), lease: None };
    let txn = Txn { key: MARKER.into(), expect: Expect::Absent, op };
    match store.txn(txn).await? {
        Outcome::Conflict { current: Some(kv), .. } => {
            if prints.iter().any(|print| print.as_bytes() == kv.value.as_ref()) {
                return Ok(true);
            }
            // The marked key may have been rotated out: keys that decrypt all secrets are the cluster's.
            if !opens_secrets(path, store).await? {
                return Ok(false);
            }
            let op = Op::Put { value: Bytes::from(first.clone()), lease: None };
            let txn = Txn { key: MARKER.into(), expect: Expect::Revision(kv.mod_revision), op };
            store.txn(txn).await?;
            Ok(true)
        }
        _ => Ok(true),
    }
}

/// Reports whether encrypted secrets exist and the keys of a file decrypt all of them.
async fn opens_secrets(path: &Path, store: &dyn Store) -> Result<bool, EncryptionError> {
    let rules = Rules::read(path)?;
    let opens = |kv: &KeyValue| rules.of(&kv.key).is_some_and(|rule| rule.open(&kv.key, &kv.value).is_ok());
    let (mut found, mut sound) = (false, true);
    each_secret(store, |kv| {
        if kv.value.starts_with(ENCRYPTED_PREFIX) {
            found = true;
            sound &= opens(kv);
        }
        sound
    })
    .await?;
    Ok(found && sound)
}

/// Inserts a new key before the others of a provider in a file; returns its name. Servers encrypt with it once they
/// have read the file.
pub fn add_key(path: &Path) -> Result<String, EncryptionError> {
    let mut configuration = config::read(path)?;
    let mut rows = configuration.resources.iter_mut().flat_map(|row| &mut row.providers);
    let keys = rows.find_map(|row| {
        let aesgcm = row.aesgcmderived.as_mut().or(row.aesgcm.as_mut());
        aesgcm.or(row.secretbox.as_mut()).or(row.aescbc.as_mut())
    });
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
    use crate::encryption::Encrypted;
    use ::store::{Embedded, EmbeddedOptions};
    use std::sync::Arc;

    #[tokio::test]
    async fn second_server_without_first_key_is_rejected() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = Embedded::open(EmbeddedOptions::new(directory.path().join("store"))).expect("a store");
        let (one, two) = (directory.path().join("one.yaml"), directory.path().join("two.yaml"));
        ensure(&one, &store, true).await.expect("the first server");
        ensure(&one, &store, true).await.expect("and its next start");
        let error = ensure(&two, &store, true).await.expect_err("another key");
        assert!(matches!(&error, EncryptionError::KeyMissing { path, .. } if *path == two), "{error}");
        assert!(!two.exists(), "no unusable file is left behind");
        std::fs::copy(&one, &two).expect("copied");
        ensure(&two, &store, true).await.expect("with the first one's key");
        assert_eq!(add_key(&one).expect("a key"), "key2");
        ensure(&one, &store, true).await.expect("keys may be added");
        store.close().await;
    }

    #[tokio::test]
    async fn existing_file_with_other_key_on_shared_store_is_rejected() {
        let directory = tempfile::tempdir().expect("a directory");
        let open =
            |name: &str| Embedded::open(EmbeddedOptions::new(directory.path().join(name))).expect("a store");
        let (shared, other) = (open("shared"), open("other"));
        let (one, two) = (directory.path().join("one.yaml"), directory.path().join("two.yaml"));
        ensure(&one, &shared, true).await.expect("the first server");
        ensure(&two, &other, true).await.expect("a server of another cluster");
        let error = ensure(&two, &shared, true).await.expect_err("the key of another cluster");
        assert!(matches!(&error, EncryptionError::OtherKey { path } if *path == two), "{error}");
        assert!(two.exists(), "the file of another cluster is retained");
        ensure(&two, &shared, false).await.expect("the store of one server has no mark to compare with");
        shared.close().await;
        other.close().await;
    }

    #[tokio::test]
    async fn file_without_marked_key_that_decrypts_all_secrets_is_accepted() {
        let directory = tempfile::tempdir().expect("a directory");
        let store: Arc<dyn Store> =
            Arc::new(Embedded::open(EmbeddedOptions::new(directory.path().join("store"))).expect("a store"));
        let path = directory.path().join("keys.yaml");
        ensure(&path, &*store, true).await.expect("the first start");
        add_key(&path).expect("a second key");
        // Rotation at runtime: secrets are rewritten with the new key, then the old one is removed from the file.
        let encrypted = Encrypted::new(Arc::clone(&store), Rules::read(&path).expect("rules"));
        let op = Op::Put { value: Bytes::from_static(b"{}"), lease: None };
        let txn = Txn { key: format!("{SECRETS}n/s").into(), expect: Expect::Absent, op };
        Store::txn(&encrypted, txn).await.expect("written");
        let mut configuration = config::read(&path).expect("read");
        for row in configuration.resources.iter_mut().flat_map(|row| &mut row.providers) {
            row.aesgcmderived.iter_mut().for_each(|keys| keys.keys.truncate(1));
        }
        write(&path, &configuration).expect("written");
        ensure(&path, &*store, true).await.expect("the next start");
        ensure(&path, &*store, true).await.expect("and the one after it");
    }

    #[tokio::test]
    async fn encrypted_secret_beyond_first_page_is_found() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = Embedded::open(EmbeddedOptions::new(directory.path().join("store"))).expect("a store");
        let put = async |key: String, value: Bytes| {
            let op = Op::Put { value, lease: None };
            store.txn(Txn { key: key.into(), expect: Expect::Absent, op }).await.expect("written");
        };
        for index in 0..2 * PAGE + 1 {
            put(format!("{SECRETS}n/plain-{index:04}"), Bytes::from_static(b"{}")).await;
        }
        assert_eq!(encrypted_secret(&store).await.expect("read"), None);
        let last = format!("{SECRETS}n/z");
        put(last.clone(), Bytes::from([ENCRYPTED_PREFIX, b"x"].concat())).await;
        assert_eq!(encrypted_secret(&store).await.expect("read"), Some(last));
        let error = ensure(&directory.path().join("gone.yaml"), &store, false).await.expect_err("no key");
        assert!(matches!(error, EncryptionError::KeyMissing { .. }), "{error}");
        store.close().await;
    }
}
