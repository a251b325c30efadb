//! The keys of service account tokens: the one that signs, and those whose tokens are accepted.

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
    /// Tokens of the key are accepted here, but relying parties do not learn of it.
    pub is_hidden: bool,
}

pub struct KeyRing {
    /// Absent where an external signer signs.
    pub signing: Option<SigningKey>,
    keys: Vec<VerificationKey>,
}

/// The reason why a file of keys is not usable.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    #[error("reading {}", .path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{} has no key that can be used", .path.display())]
    Unusable { path: PathBuf },
}

impl KeyRing {
    /// A key that signs, and more keys whose tokens are accepted.
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

    /// The key set by which others check tokens.
    pub fn jwks(&self) -> Value {
        let keys: Vec<Value> = self.shown().map(|key| key.key.jwk(&key.id)).collect();
        serde_json::json!({"keys": keys})
    }

    /// The algorithms of the key set.
    pub fn algorithms(&self) -> BTreeSet<&'static str> {
        self.shown().map(|key| key.key.algorithm()).collect()
    }

    /// Reports whether a token that names this key can be checked.
    pub fn knows(&self, id: &str) -> bool {
        id.is_empty() || self.keys.iter().any(|key| key.id == id)
    }

    /// Reports whether a key of this name is kept from relying parties.
    pub fn hides(&self, id: &str) -> bool {
        self.keys.iter().any(|key| key.id == id && key.is_hidden)
    }

    /// Checks that one of the keys signed the token; the error says why not.
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

/// The public keys of a file, those of private keys included.
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
