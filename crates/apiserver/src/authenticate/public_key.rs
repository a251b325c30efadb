//! Public keys of token issuers, from certificate and key files and key sets; signature verification.

use aws_lc_rs::signature::{
    self, ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ECDSA_P521_SHA512_FIXED,
    RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512,
    RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, RsaParameters,
    RsaPublicKeyComponents, UnparsedPublicKey,
};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use machinery::Value;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, SubjectPublicKeyInfoDer};
use serde_json::json;
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::x509::SubjectPublicKeyInfo;

/// Curves of signing keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Curve {
    P256,
    P384,
    P521,
}

impl Curve {
    const ALL: [Self; 3] = [Self::P256, Self::P384, Self::P521];

    /// Name in key sets.
    fn name(self) -> &'static str {
        match self {
            Self::P256 => "P-256",
            Self::P384 => "P-384",
            Self::P521 => "P-521",
        }
    }

    pub fn algorithm(self) -> &'static str {
        match self {
            Self::P256 => "ES256",
            Self::P384 => "ES384",
            Self::P521 => "ES512",
        }
    }

    /// Bytes of a coordinate.
    fn bytes(self) -> usize {
        match self {
            Self::P256 => 32,
            Self::P384 => 48,
            Self::P521 => 66,
        }
    }

    fn verification(self) -> &'static signature::EcdsaVerificationAlgorithm {
        match self {
            Self::P256 => &ECDSA_P256_SHA256_FIXED,
            Self::P384 => &ECDSA_P384_SHA384_FIXED,
            Self::P521 => &ECDSA_P521_SHA512_FIXED,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublicKey {
    Rsa {
        modulus: Vec<u8>,
        exponent: Vec<u8>,
    },
    /// An uncompressed point.
    Ec {
        curve: Curve,
        point: Vec<u8>,
    },
}

impl PublicKey {
    /// From SubjectPublicKeyInfo.
    pub fn from_spki(der: &[u8]) -> Option<Self> {
        use x509_parser::public_key::PublicKey as Parsed;
        let (_, info) = SubjectPublicKeyInfo::from_der(der).ok()?;
        match info.parsed().ok()? {
            Parsed::RSA(rsa) => Some(Self::rsa(rsa.modulus, rsa.exponent)),
            Parsed::EC(point) => Self::ec(point.data()),
            _ => None,
        }
    }

    fn rsa(modulus: &[u8], exponent: &[u8]) -> Self {
        let trimmed = |number: &[u8]| number.iter().copied().skip_while(|byte| *byte == 0).collect();
        Self::Rsa { modulus: trimmed(modulus), exponent: trimmed(exponent) }
    }

    fn ec(point: &[u8]) -> Option<Self> {
        let curve = Curve::ALL.into_iter().find(|curve| point.len() == 1 + 2 * curve.bytes())?;
        (point.first() == Some(&4)).then(|| Self::Ec { curve, point: point.to_vec() })
    }

    /// Every public key and certificate in a PEM file, with the DER that key names are derived from.
    pub fn from_pem(text: &[u8]) -> Vec<(Self, Vec<u8>)> {
        let mut found = Vec::new();
        for spki in SubjectPublicKeyInfoDer::pem_slice_iter(text).flatten() {
            found.extend(Self::from_spki(&spki).map(|key| (key, spki.to_vec())));
        }
        for certificate in CertificateDer::pem_slice_iter(text).flatten() {
            if let Ok((_, parsed)) = X509Certificate::from_der(&certificate) {
                let spki = parsed.public_key().raw;
                found.extend(Self::from_spki(spki).map(|key| (key, spki.to_vec())));
            }
        }
        found
    }

    /// From an entry of a key set.
    pub fn from_jwk(key: &Value) -> Option<Self> {
        let part = |name: &str| URL_SAFE_NO_PAD.decode(key[name].as_str()?.trim_end_matches('=')).ok();
        match key["kty"].as_str()? {
            "RSA" => Some(Self::rsa(&part("n")?, &part("e")?)),
            "EC" => {
                let curve = Curve::ALL.into_iter().find(|curve| key["crv"] == curve.name())?;
                let padded = |number: Vec<u8>| {
                    let missing = curve.bytes().checked_sub(number.len())?;
                    Some([vec![0; missing], number].concat())
                };
                let point = [vec![4], padded(part("x")?)?, padded(part("y")?)?].concat();
                Some(Self::Ec { curve, point })
            }
            _ => None,
        }
    }

    /// Verifies a signature, with an algorithm that fits the key.
    pub fn verify(&self, algorithm: &str, signed: &[u8], signature: &[u8]) -> Result<(), &'static str> {
        let verified = match self {
            Self::Rsa { modulus, exponent } => {
                let parameters = rsa_parameters(algorithm).ok_or("unexpected signature algorithm")?;
                RsaPublicKeyComponents { n: modulus, e: exponent }.verify(parameters, signed, signature)
            }
            Self::Ec { curve, point } => {
                if algorithm != curve.algorithm() {
                    return Err("unexpected signature algorithm");
                }
                UnparsedPublicKey::new(curve.verification(), point).verify(signed, signature)
            }
        };
        verified.map_err(|_| "invalid signature")
    }

    /// Its signature algorithm.
    pub fn algorithm(&self) -> &'static str {
        match self {
            Self::Rsa { .. } => "RS256",
            Self::Ec { curve, .. } => curve.algorithm(),
        }
    }

    /// As an entry of a key set.
    pub fn jwk(&self, id: &str) -> Value {
        let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        match self {
            Self::Rsa { modulus, exponent } => json!({
                "use": "sig", "kty": "RSA", "kid": id, "alg": self.algorithm(), "n": text(modulus), "e": text(exponent),
            }),
            Self::Ec { curve, point } => {
                let (x, y) = point[1..].split_at(curve.bytes());
                json!({
                    "use": "sig", "kty": "EC", "kid": id, "crv": curve.name(), "alg": self.algorithm(),
                    "x": text(x), "y": text(y),
                })
            }
        }
    }
}

/// The name of a key: the hash of its SubjectPublicKeyInfo.
pub fn key_id(spki: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(Sha256::digest(spki))
}

fn rsa_parameters(algorithm: &str) -> Option<&'static RsaParameters> {
    Some(match algorithm {
        "RS256" => &RSA_PKCS1_2048_8192_SHA256,
        "RS384" => &RSA_PKCS1_2048_8192_SHA384,
        "RS512" => &RSA_PKCS1_2048_8192_SHA512,
        "PS256" => &RSA_PSS_2048_8192_SHA256,
        "PS384" => &RSA_PSS_2048_8192_SHA384,
        "PS512" => &RSA_PSS_2048_8192_SHA512,
        _ => return None,
    })
}
