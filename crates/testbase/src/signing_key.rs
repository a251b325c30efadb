//! A key that signs tokens like an issuer.

use anyhow::Result;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Value, json};

/// An EC key with a key id; without one, its tokens have no `kid`.
#[derive(Debug)]
pub struct SigningKey {
    id: String,
    pair: EcdsaKeyPair,
}

impl SigningKey {
    pub fn new(id: &str) -> Result<Self> {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING)?;
        Ok(Self { id: id.to_owned(), pair })
    }

    /// Its entry in a key set.
    #[must_use]
    pub fn jwk(&self) -> Value {
        let point = self.pair.public_key().as_ref();
        let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        json!({
            "kty": "EC", "crv": "P-256", "use": "sig", "kid": self.id, "x": text(&point[1..33]), "y": text(&point[33..]),
        })
    }

    /// The private key in PEM.
    pub fn pem(&self) -> Result<String> {
        let encoded = STANDARD.encode(self.pair.to_pkcs8v1()?.as_ref());
        Ok(format!("-----BEGIN PRIVATE KEY-----\n{encoded}\n-----END PRIVATE KEY-----\n"))
    }

    /// A token with these claims.
    pub fn sign(&self, claims: &Value) -> Result<String> {
        let mut header = json!({"alg": "ES256"});
        if !self.id.is_empty() {
            header["kid"] = self.id.clone().into();
        }
        let text = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", text(&header), text(claims));
        let signature = self.pair.sign(&SystemRandom::new(), signed.as_bytes())?;
        Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref())))
    }
}
