//! `secretbox`: XSalsa20 with Poly1305, as in NaCl.

use super::provider::Cipher;
use crypto_secretbox::aead::{Aead, KeyInit};
use crypto_secretbox::{Nonce, XSalsa20Poly1305};

const NONCE_BYTES: usize = 24;

pub struct Secretbox {
    cipher: XSalsa20Poly1305,
}

impl Cipher for Secretbox {
    const NAME: &'static str = "secretbox";
    const KEY_BYTES: &'static [usize] = &[32];

    fn new(key: &[u8]) -> Option<Self> {
        XSalsa20Poly1305::new_from_slice(key).ok().map(|cipher| Self { cipher })
    }

    fn encrypt(&self, _storage_key: &str, plain: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        let mut nonce = [0; NONCE_BYTES];
        aws_lc_rs::rand::fill(&mut nonce).map_err(|_| "failed to read random bytes")?;
        let sealed =
            self.cipher.encrypt(Nonce::from_slice(&nonce), plain).map_err(|_| "encrypting failed")?;
        out.extend_from_slice(&nonce);
        out.extend_from_slice(&sealed);
        Ok(())
    }

    fn decrypt(&self, _storage_key: &str, sealed: &[u8]) -> Result<Vec<u8>, String> {
        let short = "the stored data was shorter than the required size";
        let (nonce, rest) = sealed.split_at_checked(NONCE_BYTES).ok_or(short)?;
        self.cipher.decrypt(Nonce::from_slice(nonce), rest).map_err(|_| {
            "output array was not large enough for encryption: the key is not the one it was written with"
                .to_owned()
        })
    }
}
