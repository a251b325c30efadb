//! `aescbc`: AES in cipher block chaining mode. It does not authenticate data; supported for existing configurations.

use super::provider::Cipher;
use aws_lc_rs::cipher::{
    AES_128, AES_192, AES_256, DecryptionContext, PaddedBlockDecryptingKey, PaddedBlockEncryptingKey,
    UnboundCipherKey,
};
use aws_lc_rs::iv::{FixedLength, IV_LEN_128_BIT};

pub struct AesCbc {
    encrypt: PaddedBlockEncryptingKey,
    decrypt: PaddedBlockDecryptingKey,
}

impl Cipher for AesCbc {
    const NAME: &'static str = "aescbc";
    const KEY_BYTES: &'static [usize] = &[16, 24, 32];

    fn new(key: &[u8]) -> Option<Self> {
        let algorithm = match key.len() {
            16 => &AES_128,
            24 => &AES_192,
            32 => &AES_256,
            _ => return None,
        };
        let key = || UnboundCipherKey::new(algorithm, key).ok();
        Some(Self {
            encrypt: PaddedBlockEncryptingKey::cbc_pkcs7(key()?).ok()?,
            decrypt: PaddedBlockDecryptingKey::cbc_pkcs7(key()?).ok()?,
        })
    }

    fn encrypt(&self, _storage_key: &str, plain: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        let mut buffer = plain.to_vec();
        let context = self.encrypt.encrypt(&mut buffer).map_err(|_| "encrypting failed")?;
        let DecryptionContext::Iv128(iv) = context else { return Err("encrypting failed".to_owned()) };
        out.extend_from_slice(iv.as_ref());
        out.extend_from_slice(&buffer);
        Ok(())
    }

    fn decrypt(&self, _storage_key: &str, sealed: &[u8]) -> Result<Vec<u8>, String> {
        let short = "the stored data was shorter than the required size";
        let (iv, rest) = sealed.split_first_chunk::<IV_LEN_128_BIT>().ok_or(short)?;
        let mut buffer = rest.to_vec();
        let context = DecryptionContext::Iv128(FixedLength::from(*iv));
        let plain = self.decrypt.decrypt(&mut buffer, context);
        plain
            .map(|plain| plain.to_vec())
            .map_err(|_| "invalid padding: the key is not the one it was written with".to_owned())
    }
}
