//! JSON web tokens: signing and parsing.

use super::public_key::{Curve, PublicKey, key_id};
use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeyPair as RsaKeyPair;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, ECDSA_P521_SHA512_FIXED_SIGNING,
    EcdsaKeyPair, EcdsaSigningAlgorithm, KeyPair, RSA_PKCS1_SHA256,
};
use base::pki::ServiceAccountKey;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use machinery::Value;
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject;
use serde::Deserialize;

#[derive(Debug, thiserror::Error)]
pub enum JwtError {
    #[error("unusable service account token key")]
    Key,
    #[error("failed to sign token")]
    Sign,
}

enum Signer {
    Rsa(RsaKeyPair),
    Ec(EcdsaKeyPair),
}

/// A key pair that signs tokens.
pub struct SigningKey {
    signer: Signer,
    pub public: PublicKey,
    pub id: String,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: String,
}

/// A parsed token that is not verified yet.
pub struct Unverified<'a> {
    pub payload: Vec<u8>,
    signed: &'a str,
    signature: Vec<u8>,
    header: Header,
}

impl<'a> Unverified<'a> {
    /// `None` if the text is not a JWT.
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

    pub fn algorithm(&self) -> &str {
        &self.header.alg
    }

    /// The `kid` header; empty if absent.
    pub fn key_id(&self) -> &str {
        &self.header.kid
    }

    /// Verifies the signature with this key; the error is the reason.
    pub fn verify(&self, key: &PublicKey) -> Result<(), &'static str> {
        key.verify(&self.header.alg, self.signed.as_bytes(), &self.signature)
    }
}

impl SigningKey {
    /// The cluster's own signing key.
    pub fn new(key: &ServiceAccountKey) -> Result<Self, JwtError> {
        Self::from_pem(key.private_pem.as_bytes())
    }

    /// Reads a PEM private key: RSA, or EC on one of the standard curves.
    pub fn from_pem(text: &[u8]) -> Result<Self, JwtError> {
        let key = PrivateKeyDer::from_pem_slice(text).map_err(|_| JwtError::Key)?;
        let signer = signer(&key).ok_or(JwtError::Key)?;
        let spki: PublicKeyX509Der<'_> = match &signer {
            Signer::Rsa(pair) => pair.public_key().as_der(),
            Signer::Ec(pair) => pair.public_key().as_der(),
        }
        .map_err(|_| JwtError::Key)?;
        let public = PublicKey::from_spki(spki.as_ref()).ok_or(JwtError::Key)?;
        Ok(Self { signer, public, id: key_id(spki.as_ref()) })
    }

    /// Signs the claims.
    pub fn sign(&self, claims: &Value) -> Result<String, JwtError> {
        let header = serde_json::json!({"alg": self.public.algorithm(), "kid": self.id});
        let mut token = URL_SAFE_NO_PAD.encode(header.to_string());
        token.push('.');
        URL_SAFE_NO_PAD.encode_string(claims.to_string(), &mut token);
        let signature = match &self.signer {
            Signer::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), token.as_bytes(), &mut signature)
                    .map_err(|_| JwtError::Sign)?;
                signature
            }
            Signer::Ec(pair) => {
                let signature =
                    pair.sign(&SystemRandom::new(), token.as_bytes()).map_err(|_| JwtError::Sign)?;
                signature.as_ref().to_vec()
            }
        };
        token.push('.');
        URL_SAFE_NO_PAD.encode_string(signature, &mut token);
        Ok(token)
    }
}

fn signer(key: &PrivateKeyDer<'_>) -> Option<Signer> {
    let curves = [Curve::P256, Curve::P384, Curve::P521];
    match key {
        PrivateKeyDer::Pkcs1(der) => RsaKeyPair::from_der(der.secret_pkcs1_der()).ok().map(Signer::Rsa),
        PrivateKeyDer::Sec1(der) => curves
            .into_iter()
            .find_map(|curve| EcdsaKeyPair::from_private_key_der(signing(curve), der.secret_sec1_der()).ok())
            .map(Signer::Ec),
        PrivateKeyDer::Pkcs8(der) => {
            let der = der.secret_pkcs8_der();
            RsaKeyPair::from_pkcs8(der).ok().map(Signer::Rsa).or_else(|| {
                let mut pairs = curves.into_iter().map(|curve| EcdsaKeyPair::from_pkcs8(signing(curve), der));
                pairs.find_map(Result::ok).map(Signer::Ec)
            })
        }
        _ => None,
    }
}

fn signing(curve: Curve) -> &'static EcdsaSigningAlgorithm {
    match curve {
        Curve::P256 => &ECDSA_P256_SHA256_FIXED_SIGNING,
        Curve::P384 => &ECDSA_P384_SHA384_FIXED_SIGNING,
        Curve::P521 => &ECDSA_P521_SHA512_FIXED_SIGNING,
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use serde_json::json;
    use std::sync::LazyLock;

    /// One key for all tests, since generation is slow.
    pub static KEY: LazyLock<ServiceAccountKey> = LazyLock::new(|| {
        let directory = tempfile::tempdir().unwrap();
        let names = base::pki::ServingNames::of_the_api_server("cluster.local");
        let pki =
            base::pki::Pki::open(&directory.path().join("pki"), &names, jiff::Timestamp::now()).unwrap();
        pki.service_account_key().unwrap()
    });

    /// A new key on a curve, as PEM.
    pub fn ec_pem(curve: Curve) -> String {
        let pair = EcdsaKeyPair::generate(signing(curve)).unwrap();
        let der = pair.to_pkcs8v1().unwrap();
        let text = base64::engine::general_purpose::STANDARD.encode(der.as_ref());
        format!("-----BEGIN PRIVATE KEY-----\n{text}\n-----END PRIVATE KEY-----\n")
    }

    #[test]
    fn jwt_with_wrong_signature_is_rejected() {
        let key = SigningKey::new(&KEY).unwrap();
        let token = key.sign(&json!({"sub": "x"})).unwrap();
        let parsed = Unverified::parse(&token).unwrap();
        assert_eq!(parsed.payload, br#"{"sub":"x"}"#);
        assert_eq!(parsed.verify(&key.public), Ok(()));

        let (signed, signature) = token.rsplit_once('.').unwrap();
        let (header, _) = signed.split_once('.').unwrap();
        let other_payload = URL_SAFE_NO_PAD.encode(r#"{"sub":"y"}"#);
        let none = URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#);
        let shared = URL_SAFE_NO_PAD.encode(r#"{"alg":"HS256"}"#);
        let payload = URL_SAFE_NO_PAD.encode(r#"{"sub":"x"}"#);
        for (token, why) in [
            (format!("{header}.{other_payload}.{signature}"), "invalid signature"),
            (format!("{none}.{payload}."), "unexpected signature algorithm"),
            (format!("{shared}.{payload}.{signature}"), "unexpected signature algorithm"),
        ] {
            let parsed = Unverified::parse(&token).unwrap();
            assert_eq!(parsed.verify(&key.public), Err(why), "{token}");
        }
        for rubbish in ["", "a", "a.b", "a.b.c", "..", "e30.e30.e30"] {
            assert!(Unverified::parse(rubbish).is_none(), "{rubbish}");
        }
    }

    #[test]
    fn jwt_is_signed_with_ec_keys() {
        for (curve, algorithm) in [(Curve::P256, "ES256"), (Curve::P384, "ES384"), (Curve::P521, "ES512")] {
            let key = SigningKey::from_pem(ec_pem(curve).as_bytes()).unwrap();
            let token = key.sign(&json!({"sub": "x"})).unwrap();
            let parsed = Unverified::parse(&token).unwrap();
            assert_eq!((parsed.algorithm(), parsed.key_id()), (algorithm, key.id.as_str()));
            assert_eq!(parsed.verify(&key.public), Ok(()));
            // Relying parties read the key from the key set.
            let read = PublicKey::from_jwk(&key.public.jwk(&key.id)).unwrap();
            assert_eq!(parsed.verify(&read), Ok(()));
            let other_key = SigningKey::from_pem(ec_pem(curve).as_bytes()).unwrap();
            assert_eq!(parsed.verify(&other_key.public), Err("invalid signature"));
            assert_eq!(
                parsed.verify(&SigningKey::new(&KEY).unwrap().public),
                Err("unexpected signature algorithm")
            );
        }
        assert!(SigningKey::from_pem(b"no key").is_err());
    }

    #[test]
    fn public_key_round_trips_through_jwk() {
        let key = SigningKey::new(&KEY).unwrap();
        let jwk = key.public.jwk(&key.id);
        assert_eq!(jwk["e"], "AQAB");
        assert_eq!(URL_SAFE_NO_PAD.decode(jwk["n"].as_str().unwrap()).unwrap().len(), 256);
        assert_eq!(jwk["kid"], key.id);
        assert_eq!(PublicKey::from_jwk(&jwk), Some(key.public));
    }
}
