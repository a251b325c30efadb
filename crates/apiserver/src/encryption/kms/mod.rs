//! `kms`: the key is held by a key management service, reached over a socket on this machine (KMS API v2).
//!
//! The service encrypts a seed; each value gets a key derived from it, so there is one call per seed and not one per
//! write. The service is polled for a new key at most once a minute, and only on writes.

mod client;
mod envelope;

use super::aes_gcm::AesGcm;
use super::aes_gcm_derived;
use super::provider::{Cipher, Decrypted, ENCRYPTED_PREFIX, Failure, Provider};
use client::KmsClient;
use envelope::{EncryptedObject, SourceType};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use prost::Message;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SEED_BYTES: usize = 32;
/// Time for which the service's status is cached.
const STATUS_INTERVAL: Duration = Duration::from_secs(60);
/// Capacity of the seed cache.
const MAX_SEEDS: usize = 1000;

/// The current write seed.
#[derive(Clone)]
struct Current {
    seed: Arc<[u8]>,
    sealed: EncryptedObject,
    checked: Instant,
}

pub struct Kms {
    prefix: Vec<u8>,
    client: KmsClient,
    current: Mutex<Option<Current>>,
    /// Serializes requests for a new seed.
    renewing: tokio::sync::Mutex<()>,
    /// Plain seeds by their encrypted form.
    seeds: Mutex<HashMap<Vec<u8>, Arc<[u8]>>>,
}

impl Kms {
    pub fn new(name: &str, socket: PathBuf, timeout: Duration) -> Self {
        Self {
            prefix: [ENCRYPTED_PREFIX, b"kms:v2:", name.as_bytes(), b":"].concat(),
            client: KmsClient::new(socket, timeout),
            current: Mutex::new(None),
            renewing: tokio::sync::Mutex::new(()),
            seeds: Mutex::default(),
        }
    }

    fn fresh(&self) -> Option<Current> {
        self.current.lock().clone().filter(|current| current.checked.elapsed() < STATUS_INTERVAL)
    }

    async fn renew(&self) -> Result<(), String> {
        let _turn = self.renewing.lock().await;
        if self.fresh().is_some() {
            return Ok(());
        }
        let status = self.client.status().await?;
        if let Some(current) = self.current.lock().as_mut()
            && current.sealed.key_id == status.key_id
        {
            current.checked = Instant::now();
            return Ok(());
        }
        let mut seed = [0; SEED_BYTES];
        aws_lc_rs::rand::fill(&mut seed).map_err(|_| "failed to read random bytes")?;
        let answer = self.client.encrypt(&seed).await?;
        if answer.key_id.is_empty() || answer.ciphertext.is_empty() {
            return Err("key management service returned no key ID or ciphertext".to_owned());
        }
        let sealed = EncryptedObject {
            encrypted_data: Vec::new(),
            key_id: answer.key_id,
            encrypted_dek_source: answer.ciphertext,
            annotations: answer.annotations,
            encrypted_dek_source_type: SourceType::Seed as i32,
        };
        let seed: Arc<[u8]> = seed.into();
        self.remember(sealed.encrypted_dek_source.clone(), seed.clone());
        *self.current.lock() = Some(Current { seed, sealed, checked: Instant::now() });
        Ok(())
    }

    fn remember(&self, sealed: Vec<u8>, seed: Arc<[u8]>) {
        let mut seeds = self.seeds.lock();
        if seeds.len() >= MAX_SEEDS {
            seeds.clear();
        }
        seeds.insert(sealed, seed);
    }
}

impl Provider for Kms {
    fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    fn prepare(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            if self.fresh().is_some() {
                return Ok(());
            }
            match self.renew().await {
                // The last seed can still encrypt; the service may recover soon.
                Err(why) if self.current.lock().is_some() => {
                    tracing::warn!(why, "key management service unavailable, using its last key");
                    Ok(())
                }
                outcome => outcome,
            }
        })
    }

    fn seal(&self, storage_key: &str, plain: &[u8]) -> Result<Vec<u8>, String> {
        let current = self.current.lock().clone().ok_or("no encryption key available yet")?;
        let mut data = Vec::new();
        aes_gcm_derived::seal(&current.seed, storage_key, plain, &mut data)?;
        let object = EncryptedObject { encrypted_data: data, ..current.sealed };
        let mut out = self.prefix.clone();
        object.encode(&mut out).map_err(|error| error.to_string())?;
        Ok(out)
    }

    fn open(&self, storage_key: &str, sealed: &[u8]) -> Result<Decrypted, Failure> {
        let failed = |why: &str| Failure::Failed(why.to_owned());
        let object = EncryptedObject::decode(sealed).map_err(|error| failed(&error.to_string()))?;
        let seed = self.seeds.lock().get(&object.encrypted_dek_source).cloned();
        let seed = seed.ok_or(Failure::Unprepared)?;
        let data = object.encrypted_data.as_slice();
        let plain = if object.encrypted_dek_source_type == SourceType::Seed as i32 {
            aes_gcm_derived::open(&seed, storage_key, data)
        } else {
            AesGcm::new(&seed).ok_or_else(|| failed("unusable key length"))?.decrypt(storage_key, data)
        };
        let stale =
            self.current.lock().as_ref().is_some_and(|current| current.sealed.key_id != object.key_id);
        plain.map(|plain| Decrypted { plain, stale }).map_err(Failure::Failed)
    }

    fn fetch<'a>(&'a self, sealed: &'a [u8]) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move {
            let object = EncryptedObject::decode(sealed).map_err(|error| error.to_string())?;
            let EncryptedObject { key_id, encrypted_dek_source, annotations, .. } = object;
            let seed = self.client.decrypt(encrypted_dek_source.clone(), key_id, annotations).await?;
            self.remember(encrypted_dek_source, seed.into());
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests;
