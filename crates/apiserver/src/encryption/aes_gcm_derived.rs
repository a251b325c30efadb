//! `aesgcmderived`: AES-GCM with a key for each value, derived from the configured one; the default.
//!
//! Random nonces of one AES-GCM key are safe for 2^32 values. A separate key for each value, from 256 random bits,
//! has no such limit, so the configured key need not be rotated for it. Kubernetes derives keys in the same way for
//! KMS v2.

use super::aes_gcm::AesGcm;
use super::provider::Cipher;
use aws_lc_rs::hmac;

const KEY_BYTES: usize = 32;
const INFO_BYTES: usize = 32;

pub struct AesGcmDerived {
    key: Box<[u8]>,
}

/// The key for one value: HKDF-Expand with SHA-256, one block of output.
pub fn derived(key: &[u8], info: &[u8]) -> Option<AesGcm> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    let mut context = hmac::Context::with_key(&key);
    context.update(info);
    context.update(&[1]);
    AesGcm::new(context.sign().as_ref())
}

/// Encrypts a value with its derived key, prefixed with the derivation input.
pub fn seal(key: &[u8], storage_key: &str, plain: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
    let mut info = [0; INFO_BYTES];
    aws_lc_rs::rand::fill(&mut info).map_err(|_| "failed to read random bytes")?;
    out.extend_from_slice(&info);
    derived(key, &info).ok_or("failed to derive a key")?.encrypt(storage_key, plain, out)
}

/// Decrypts the output of [`seal`].
pub fn open(key: &[u8], storage_key: &str, sealed: &[u8]) -> Result<Vec<u8>, String> {
    let (info, rest) = sealed.split_at_checked(INFO_BYTES).ok_or("the stored data is too short")?;
    derived(key, info).ok_or("failed to derive a key")?.decrypt(storage_key, rest)
}

impl Cipher for AesGcmDerived {
    const NAME: &'static str = "aesgcmderived";
    const KEY_BYTES: &'static [usize] = &[KEY_BYTES];

    fn new(key: &[u8]) -> Option<Self> {
        (key.len() == KEY_BYTES).then(|| Self { key: key.into() })
    }

    fn encrypt(&self, storage_key: &str, plain: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        seal(&self.key, storage_key, plain, out)
    }

    fn decrypt(&self, storage_key: &str, sealed: &[u8]) -> Result<Vec<u8>, String> {
        open(&self.key, storage_key, sealed)
    }
}
