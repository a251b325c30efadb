//! JSON web tokens signed RS256: making and checking them, and the key set by which others can.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeyPair;
use aws_lc_rs::signature::{RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_SHA256, UnparsedPublicKey};
use base::pki::ServiceAccountKey;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use machinery::Value;
use rustls_pki_types::PrivatePkcs8KeyDer;
use rustls_pki_types::pem::PemObject;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

#[derive(Debug, thiserror::Error)]
pub enum JwtError {
    #[error("the key of service account tokens cannot be used")]
    Key,
    #[error("signing a token")]
    Sign,
}

/// A key pair that signs tokens and checks its own signatures.
pub struct SigningKey {
    pair: KeyPair,
    /// RSAPublicKey or SubjectPublicKeyInfo, DER.
    public: Vec<u8>,
    pub id: String,
    modulus: Vec<u8>,
    exponent: Vec<u8>,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: String,
}

/// A token taken apart; nothing about it is proven yet.
pub struct Unverified<'a> {
    pub payload: Vec<u8>,
    signed: &'a str,
    signature: Vec<u8>,
    header: Header,
}

impl<'a> Unverified<'a> {
    /// `None`: it is no such token at all.
    pub fn parse(token: &'a str) -> Option<Self> {
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, payload) = signed.split_once('.')?;
        let decode = |text: &str| URL_SAFE_NO_PAD.decode(text).ok();
        Some(Self {
            header: serde_json::from_slice(&decode(header)?).ok()?,
            payload: decode(payload)?,
            signature: decode(signature)?,
            signed,
        })
    }
}

impl SigningKey {
    pub fn new(key: &ServiceAccountKey) -> Result<Self, JwtError> {
        let private =
            PrivatePkcs8KeyDer::from_pem_slice(key.private_pem.as_bytes()).map_err(|_| JwtError::Key)?;
        let pair = KeyPair::from_pkcs8(private.secret_pkcs8_der()).map_err(|_| JwtError::Key)?;
        let (_, info) = SubjectPublicKeyInfo::from_der(&key.public_der).map_err(|_| JwtError::Key)?;
        let Ok(PublicKey::RSA(rsa)) = info.parsed() else { return Err(JwtError::Key) };
        let trimmed = |number: &[u8]| number.iter().copied().skip_while(|byte| *byte == 0).collect();
        Ok(Self {
            pair,
            public: info.subject_public_key.data.to_vec(),
            id: URL_SAFE_NO_PAD.encode(Sha256::digest(&key.public_der)),
            modulus: trimmed(rsa.modulus),
            exponent: trimmed(rsa.exponent),
        })
    }

    /// The signed token.
    pub fn sign(&self, claims: &Value) -> Result<String, JwtError> {
        let header = serde_json::json!({"alg": "RS256", "kid": self.id});
        let mut token = URL_SAFE_NO_PAD.encode(header.to_string());
        token.push('.');
        URL_SAFE_NO_PAD.encode_string(claims.to_string(), &mut token);
        let mut signature = vec![0; self.pair.public_modulus_len()];
        self.pair
            .sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), token.as_bytes(), &mut signature)
            .map_err(|_| JwtError::Sign)?;
        token.push('.');
        URL_SAFE_NO_PAD.encode_string(signature, &mut token);
        Ok(token)
    }

    /// Whether this key signed the token; why not, otherwise.
    pub fn verify(&self, token: &Unverified<'_>) -> Result<(), &'static str> {
        if !token.header.kid.is_empty() && token.header.kid != self.id {
            return Err("invalid signature, no keys found");
        }
        if token.header.alg != "RS256" {
            return Err("unexpected signature algorithm");
        }
        let key = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, &self.public);
        key.verify(token.signed.as_bytes(), &token.signature).map_err(|_| "invalid signature")
    }

    /// The public part as a JSON web key.
    pub fn public_jwk(&self) -> Value {
        serde_json::json!({
            "use": "sig",
            "kty": "RSA",
            "kid": self.id,
            "alg": "RS256",
            "n": URL_SAFE_NO_PAD.encode(&self.modulus),
            "e": URL_SAFE_NO_PAD.encode(&self.exponent),
        })
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::sync::LazyLock;

    /// One key for all tests: making one takes a while.
    pub static KEY: LazyLock<ServiceAccountKey> = LazyLock::new(|| {
        let directory = tempfile::tempdir().unwrap();
        let names = base::pki::ServingNames::of_the_api_server("cluster.local");
        let pki =
            base::pki::Pki::open(&directory.path().join("pki"), &names, jiff::Timestamp::now()).unwrap();
        pki.service_account_key().unwrap()
    });

    #[test]
    fn signatures() {
        let key = SigningKey::new(&KEY).unwrap();
        let token = key.sign(&serde_json::json!({"sub": "x"})).unwrap();
        let parsed = Unverified::parse(&token).unwrap();
        assert_eq!(parsed.payload, br#"{"sub":"x"}"#);
        assert_eq!(key.verify(&parsed), Ok(()));

        let (signed, signature) = token.rsplit_once('.').unwrap();
        let (header, _) = signed.split_once('.').unwrap();
        let other_payload = URL_SAFE_NO_PAD.encode(r#"{"sub":"y"}"#);
        let none = URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#);
        let stranger = URL_SAFE_NO_PAD.encode(r#"{"alg":"RS256","kid":"other"}"#);
        let payload = URL_SAFE_NO_PAD.encode(r#"{"sub":"x"}"#);
        for (token, why) in [
            (format!("{header}.{other_payload}.{signature}"), "invalid signature"),
            (format!("{none}.{payload}."), "unexpected signature algorithm"),
            (format!("{stranger}.{payload}.{signature}"), "invalid signature, no keys found"),
        ] {
            let parsed = Unverified::parse(&token).unwrap();
            assert_eq!(key.verify(&parsed), Err(why), "{token}");
        }
        for rubbish in ["", "a", "a.b", "a.b.c", "..", "e30.e30.e30"] {
            assert!(Unverified::parse(rubbish).is_none(), "{rubbish}");
        }
    }

    #[test]
    fn the_public_key() {
        let key = SigningKey::new(&KEY).unwrap();
        let jwk = key.public_jwk();
        assert_eq!(jwk["e"], "AQAB");
        assert_eq!(URL_SAFE_NO_PAD.decode(jwk["n"].as_str().unwrap()).unwrap().len(), 256);
        assert_eq!(jwk["kid"], key.id);
    }
}
