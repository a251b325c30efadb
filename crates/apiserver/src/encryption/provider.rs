//! The interface of encryption providers, and the common part of those with keys in a file.

use futures_util::future::BoxFuture;

/// Prefix of every encrypted value; no plain object has it.
pub const ENCRYPTED_PREFIX: &[u8] = b"k8s:enc:";

/// Failure to decrypt a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// [`Provider::fetch`] must be called first: the key is external.
    Unprepared,
    Failed(String),
}

/// A decrypted value.
#[derive(Debug, PartialEq, Eq)]
pub struct Decrypted {
    pub plain: Vec<u8>,
    /// True if it was not written with the current write key.
    pub stale: bool,
}

/// An encryption provider. `storage_key` is the value's key in the store, which is authenticated: values cannot be moved
/// unnoticed.
pub trait Provider: Send + Sync {
    /// Prefix of its values.
    fn prefix(&self) -> &[u8];

    /// The whole stored value, prefix included.
    fn seal(&self, storage_key: &str, plain: &[u8]) -> Result<Vec<u8>, String>;

    /// Decrypts the data after the prefix.
    fn open(&self, storage_key: &str, sealed: &[u8]) -> Result<Decrypted, Failure>;

    /// Ensures that the next [`Provider::seal`] has a key.
    fn prepare(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async { Ok(()) })
    }

    /// Fetches the key of a sealed value that [`Provider::open`] lacked.
    fn fetch<'a>(&'a self, _sealed: &'a [u8]) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async { Ok(()) })
    }
}

/// A cipher with one key.
pub trait Cipher: Send + Sync + Sized {
    /// Name in the prefix.
    const NAME: &'static str;
    const KEY_BYTES: &'static [usize];

    /// `None` for an unsupported key length.
    fn new(key: &[u8]) -> Option<Self>;

    /// Appends the ciphertext to `out`.
    fn encrypt(&self, storage_key: &str, plain: &[u8], out: &mut Vec<u8>) -> Result<(), String>;

    fn decrypt(&self, storage_key: &str, sealed: &[u8]) -> Result<Vec<u8>, String>;
}

/// Keys by name; the first one encrypts, all decrypt.
pub struct Keys<C> {
    prefix: Vec<u8>,
    keys: Vec<(String, C)>,
}

impl<C: Cipher> Keys<C> {
    /// `keys` are names and ciphers, at least one.
    pub fn new(keys: Vec<(String, C)>) -> Self {
        let prefix = [ENCRYPTED_PREFIX, C::NAME.as_bytes(), b":v1:"].concat();
        Self { prefix, keys }
    }
}

impl<C: Cipher> Provider for Keys<C> {
    fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    fn seal(&self, storage_key: &str, plain: &[u8]) -> Result<Vec<u8>, String> {
        let (name, cipher) = self.keys.first().ok_or("no encryption key")?;
        let mut out = Vec::with_capacity(self.prefix.len() + name.len() + plain.len() + 64);
        out.extend_from_slice(&self.prefix);
        out.extend_from_slice(name.as_bytes());
        out.push(b':');
        cipher.encrypt(storage_key, plain, &mut out)?;
        Ok(out)
    }

    fn open(&self, storage_key: &str, sealed: &[u8]) -> Result<Decrypted, Failure> {
        for (index, (name, cipher)) in self.keys.iter().enumerate() {
            let rest = sealed.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b":"));
            if let Some(rest) = rest {
                let plain = cipher.decrypt(storage_key, rest).map_err(Failure::Failed)?;
                return Ok(Decrypted { plain, stale: index > 0 });
            }
        }
        let named = sealed.split(|byte| *byte == b':').next().unwrap_or_default();
        let named = String::from_utf8_lossy(&named[..named.len().min(64)]).into_owned();
        Err(Failure::Failed(format!(
            "no matching key was found for the provided {} transformer: it was written with key {named:?}",
            C::NAME
        )))
    }
}

/// Plain storage.
pub struct Identity;

impl Provider for Identity {
    fn prefix(&self) -> &[u8] {
        b""
    }

    fn seal(&self, _storage_key: &str, plain: &[u8]) -> Result<Vec<u8>, String> {
        Ok(plain.to_vec())
    }

    fn open(&self, _storage_key: &str, sealed: &[u8]) -> Result<Decrypted, Failure> {
        if sealed.starts_with(ENCRYPTED_PREFIX) {
            let why = "identity transformer tried to read encrypted data";
            return Err(Failure::Failed(why.to_owned()));
        }
        Ok(Decrypted { plain: sealed.to_vec(), stale: false })
    }
}
