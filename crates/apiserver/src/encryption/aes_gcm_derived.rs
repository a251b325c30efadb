//! `aesgcmderived`: AES-GCM with a key for each value, derived from the configured one; the default.
//!
//! Random nonces of one AES-GCM key are safe for 2^32 values. A key of its own for each value, from 256 random bits, has
//! no such limit, so the configured key need not be rotated for it. Kubernetes derives keys in the same way for KMS v2.

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

/// Seals a value with a key of its own; what the key is derived with comes first.
pub fn seal(key: &[u8], place: &str, plain: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
    let mut info = [0; INFO_BYTES];
    aws_lc_rs::rand::fill(&mut info).map_err(|_| "no random numbers")?;
    out.extend_from_slice(&info);
    derived(key, &info).ok_or("deriving a key failed")?.encrypt(place, plain, out)
}

/// Opens what [`seal`] made.
pub fn open(key: &[u8], place: &str, sealed: &[u8]) -> Result<Vec<u8>, String> {
    let (info, rest) = sealed.split_at_checked(INFO_BYTES).ok_or("the stored data is too short")?;
    derived(key, info).ok_or("deriving a key failed")?.decrypt(place, rest)
}

impl Cipher for AesGcmDerived {
    const NAME: &'static str = "aesgcmderived";
    const KEY_BYTES: &'static [usize] = &[KEY_BYTES];

    fn new(key: &[u8]) -> Option<Self> {
        (key.len() == KEY_BYTES).then(|| Self { key: key.into() })
    }

    fn encrypt(&self, place: &str, plain: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        seal(&self.key, place, plain, out)
    }

    fn decrypt(&self, place: &str, sealed: &[u8]) -> Result<Vec<u8>, String> {
        open(&self.key, place, sealed)
    }
}
