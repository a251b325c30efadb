//! Keys of service account tokens: the signing key, and the keys accepted for verification.

use super::jwt::{SigningKey, Unverified};
use super::public_key::{PublicKey, key_id};
use machinery::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A key that verifies tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerificationKey {
    pub id: String,
    pub key: PublicKey,
    /// Tokens of the key are accepted here, but the key set omits it.
    pub is_hidden: bool,
}

pub struct KeyRing {
    /// Absent with an external signer.
    pub signing: Option<SigningKey>,
    keys: Vec<VerificationKey>,
}

/// Error of reading a key file.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    #[error("failed to read {}", .path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("no usable key in {}", .path.display())]
    Unusable { path: PathBuf },
}

impl KeyRing {
    /// A signing key, and more keys accepted for verification.
    pub fn new(signing: SigningKey, more: Vec<VerificationKey>) -> Self {
        let own = VerificationKey::new(signing.id.clone(), signing.public.clone());
        let more = more.into_iter().filter(|key| key.id != signing.id);
        Self { keys: std::iter::once(own).chain(more).collect(), signing: Some(signing) }
    }

    /// The keys of an external signer.
    pub fn external(keys: Vec<VerificationKey>) -> Self {
        Self { signing: None, keys }
    }

    pub fn keys(&self) -> &[VerificationKey] {
        &self.keys
    }

    fn shown(&self) -> impl Iterator<Item = &VerificationKey> {
        self.keys.iter().filter(|key| !key.is_hidden)
    }

    /// The key set (JWKS) for relying parties.
    pub fn jwks(&self) -> Value {
        let keys: Vec<Value> = self.shown().map(|key| key.key.jwk(&key.id)).collect();
        serde_json::json!({"keys": keys})
    }

    /// The algorithms of the key set.
    pub fn algorithms(&self) -> BTreeSet<&'static str> {
        self.shown().map(|key| key.key.algorithm()).collect()
    }

    /// Reports whether the ring has the key that a token names.
    pub fn has_key(&self, id: &str) -> bool {
        id.is_empty() || self.keys.iter().any(|key| key.id == id)
    }

    /// Reports whether the key of this name is excluded from the key set.
    pub fn is_excluded(&self, id: &str) -> bool {
        self.keys.iter().any(|key| key.id == id && key.is_hidden)
    }

    /// Verifies the token's signature with the keys; the error is the reason.
    pub fn verify(&self, token: &Unverified<'_>) -> Result<(), &'static str> {
        let named = token.key_id();
        let mut why = "invalid signature, no keys found";
        for known in self.keys.iter().filter(|key| named.is_empty() || key.id == named) {
            match token.verify(&known.key) {
                Ok(()) => return Ok(()),
                Err(error) => why = error,
            }
        }
        Err(why)
    }
}

impl VerificationKey {
    pub fn new(id: String, key: PublicKey) -> Self {
        Self { id, key, is_hidden: false }
    }
}

/// Public keys of a file, including those of private keys.
pub fn read_keys(path: &Path) -> Result<Vec<VerificationKey>, KeyFileError> {
    let text = std::fs::read(path).map_err(|source| KeyFileError::Read { path: path.to_owned(), source })?;
    let mut keys: Vec<VerificationKey> = PublicKey::from_pem(&text)
        .into_iter()
        .map(|(key, spki)| VerificationKey::new(key_id(&spki), key))
        .collect();
    if let Ok(private) = SigningKey::from_pem(&text) {
        keys.push(VerificationKey::new(private.id, private.public));
    }
    if keys.is_empty() { Err(KeyFileError::Unusable { path: path.to_owned() }) } else { Ok(keys) }
}
