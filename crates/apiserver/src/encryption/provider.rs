//! What a provider of encryption does, and the part that those with keys in a file share.

use futures_util::future::BoxFuture;

/// Every encrypted value starts with it; no object in plain form does.
pub const MARK: &[u8] = b"k8s:enc:";

/// Why a value cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// [`Provider::fetch`] has to be called first: a key is kept elsewhere.
    Unprepared,
    Failed(String),
}

/// A value in plain form.
#[derive(Debug, PartialEq, Eq)]
pub struct Opened {
    pub plain: Vec<u8>,
    /// It was not written with the key that writes now.
    pub stale: bool,
}

/// One way to encrypt. `place` is the value's key in the store: a value cannot be moved elsewhere unnoticed.
pub trait Provider: Send + Sync {
    /// What its values start with.
    fn prefix(&self) -> &[u8];

    /// The whole stored value, prefix included.
    fn seal(&self, place: &str, plain: &[u8]) -> Result<Vec<u8>, String>;

    /// The plain value of what follows the prefix.
    fn open(&self, place: &str, sealed: &[u8]) -> Result<Opened, Failure>;

    /// Makes sure that the next [`Provider::seal`] has a key.
    fn prepare(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async { Ok(()) })
    }

    /// Gets the key of a sealed value that [`Provider::open`] did not have.
    fn fetch<'a>(&'a self, _sealed: &'a [u8]) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async { Ok(()) })
    }
}

/// A cipher with one key.
pub trait Cipher: Send + Sync + Sized {
    /// As the prefix names it.
    const NAME: &'static str;
    const KEY_BYTES: &'static [usize];

    /// `None`: the key has no length that this cipher takes.
    fn new(key: &[u8]) -> Option<Self>;

    /// Appends the ciphertext to `out`.
    fn encrypt(&self, place: &str, plain: &[u8], out: &mut Vec<u8>) -> Result<(), String>;

    fn decrypt(&self, place: &str, sealed: &[u8]) -> Result<Vec<u8>, String>;
}

/// Keys by name; the first one writes, all read.
pub struct Keys<C> {
    prefix: Vec<u8>,
    keys: Vec<(String, C)>,
}

impl<C: Cipher> Keys<C> {
    /// `keys` are names and ciphers, at least one.
    pub fn new(keys: Vec<(String, C)>) -> Self {
        let prefix = [MARK, C::NAME.as_bytes(), b":v1:"].concat();
        Self { prefix, keys }
    }
}

impl<C: Cipher> Provider for Keys<C> {
    fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    fn seal(&self, place: &str, plain: &[u8]) -> Result<Vec<u8>, String> {
        let (name, cipher) = self.keys.first().ok_or("there is no key")?;
        let mut out = Vec::with_capacity(self.prefix.len() + name.len() + plain.len() + 64);
        out.extend_from_slice(&self.prefix);
        out.extend_from_slice(name.as_bytes());
        out.push(b':');
        cipher.encrypt(place, plain, &mut out)?;
        Ok(out)
    }

    fn open(&self, place: &str, sealed: &[u8]) -> Result<Opened, Failure> {
        for (index, (name, cipher)) in self.keys.iter().enumerate() {
            let rest = sealed.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b":"));
            if let Some(rest) = rest {
                let plain = cipher.decrypt(place, rest).map_err(Failure::Failed)?;
                return Ok(Opened { plain, stale: index > 0 });
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

/// Objects as they are.
pub struct Identity;

impl Provider for Identity {
    fn prefix(&self) -> &[u8] {
        b""
    }

    fn seal(&self, _place: &str, plain: &[u8]) -> Result<Vec<u8>, String> {
        Ok(plain.to_vec())
    }

    fn open(&self, _place: &str, sealed: &[u8]) -> Result<Opened, Failure> {
        if sealed.starts_with(MARK) {
            let why = "identity transformer tried to read encrypted data";
            return Err(Failure::Failed(why.to_owned()));
        }
        Ok(Opened { plain: sealed.to_vec(), stale: false })
    }
}
