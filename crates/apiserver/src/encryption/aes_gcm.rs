//! `aesgcm`: AES in Galois/counter mode with a random nonce.

use super::provider::Cipher;
use aws_lc_rs::aead::{
    AES_128_GCM, AES_192_GCM, AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey,
};

pub struct AesGcm {
    key: LessSafeKey,
}

impl Cipher for AesGcm {
    const NAME: &'static str = "aesgcm";
    const KEY_BYTES: &'static [usize] = &[16, 24, 32];

    fn new(key: &[u8]) -> Option<Self> {
        let algorithm = match key.len() {
            16 => &AES_128_GCM,
            24 => &AES_192_GCM,
            32 => &AES_256_GCM,
            _ => return None,
        };
        UnboundKey::new(algorithm, key).ok().map(|key| Self { key: LessSafeKey::new(key) })
    }

    fn encrypt(&self, storage_key: &str, plain: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        let mut nonce = [0; NONCE_LEN];
        aws_lc_rs::rand::fill(&mut nonce).map_err(|_| "failed to read random bytes")?;
        out.extend_from_slice(&nonce);
        let begin = out.len();
        out.extend_from_slice(plain);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = self
            .key
            .seal_in_place_separate_tag(nonce, Aad::from(storage_key.as_bytes()), &mut out[begin..])
            .map_err(|_| "encrypting failed")?;
        out.extend_from_slice(tag.as_ref());
        Ok(())
    }

    fn decrypt(&self, storage_key: &str, sealed: &[u8]) -> Result<Vec<u8>, String> {
        let short = "the stored data was shorter than the required size";
        let (nonce, rest) = sealed.split_at_checked(NONCE_LEN).ok_or(short)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| short)?;
        let mut plain = rest.to_vec();
        let length = self
            .key
            .open_in_place(nonce, Aad::from(storage_key.as_bytes()), &mut plain)
            .map_err(|_| "message authentication failed: the key is not the one it was written with")?
            .len();
        plain.truncate(length);
        Ok(plain)
    }
}
