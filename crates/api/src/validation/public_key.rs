//! Public keys of pod certificates, and signatures that prove their possession.

use aws_lc_rs::signature::{self as sig, UnparsedPublicKey, VerificationAlgorithm};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::oid_registry::{
    OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_NIST_EC_P384, OID_NIST_EC_P521, OID_PKCS1_RSAENCRYPTION,
    OID_PKCS1_SHA1WITHRSA, OID_SHA1_WITH_RSA, OID_SIG_ECDSA_WITH_SHA256, OID_SIG_ECDSA_WITH_SHA384,
    OID_SIG_ECDSA_WITH_SHA512, OID_SIG_ED25519, Oid,
};
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

/// Error of a rejected key.
#[derive(Debug, PartialEq, Eq)]
pub enum KeyProblem {
    /// The text is not a key.
    Malformed,
    /// Unsupported elliptic curve, by name.
    Curve(String),
    /// Unsupported size of an RSA modulus, in bits.
    Modulus(usize),
    Type,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Curve {
    P256,
    P384,
    P521,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyType {
    Ed25519,
    Elliptic(Curve),
    Rsa,
}

/// Parses a PKIX public key.
pub fn parse(der: &[u8]) -> Option<SubjectPublicKeyInfo<'_>> {
    match SubjectPublicKeyInfo::from_der(der) {
        Ok(([], key)) => Some(key),
        _ => None,
    }
}

/// Parses a PKCS#10 request.
pub fn request(der: &[u8]) -> Option<X509CertificationRequest<'_>> {
    match X509CertificationRequest::from_der(der) {
        Ok(([], request)) => Some(request),
        _ => None,
    }
}

/// Error of a rejected key.
pub fn problem(key: &SubjectPublicKeyInfo<'_>) -> Option<KeyProblem> {
    type_of(key).err()
}

fn type_of(key: &SubjectPublicKeyInfo<'_>) -> Result<KeyType, KeyProblem> {
    let algorithm = &key.algorithm.algorithm;
    if *algorithm == OID_SIG_ED25519 {
        return Ok(KeyType::Ed25519);
    }
    if *algorithm == OID_KEY_TYPE_EC_PUBLIC_KEY {
        let curve = key.algorithm.parameters.as_ref().and_then(|any| any.as_oid().ok());
        let curve = curve.ok_or(KeyProblem::Malformed)?;
        return match curve {
            _ if curve == OID_EC_P256 => Ok(KeyType::Elliptic(Curve::P256)),
            _ if curve == OID_NIST_EC_P384 => Ok(KeyType::Elliptic(Curve::P384)),
            _ if curve == OID_NIST_EC_P521 => Ok(KeyType::Elliptic(Curve::P521)),
            _ => Err(KeyProblem::Curve(curve.to_id_string())),
        };
    }
    if *algorithm == OID_PKCS1_RSAENCRYPTION {
        let Ok(PublicKey::RSA(rsa)) = key.parsed() else { return Err(KeyProblem::Malformed) };
        // The size is rounded to whole bytes.
        return match rsa.key_size() {
            3072 | 4096 => Ok(KeyType::Rsa),
            bits => Err(KeyProblem::Modulus(bits)),
        };
    }
    Err(KeyProblem::Type)
}

/// Reports whether a request is signed with its own key. SHA-1 signatures are invalid.
pub fn is_signed(request: &X509CertificationRequest<'_>) -> bool {
    let key = &request.certification_request_info.subject_pki;
    let algorithm = &request.signature_algorithm.algorithm;
    match type_of(key) {
        Ok(KeyType::Rsa) => {
            *algorithm != OID_PKCS1_SHA1WITHRSA
                && *algorithm != OID_SHA1_WITH_RSA
                && request.verify_signature().is_ok()
        }
        Ok(KeyType::Ed25519) if *algorithm != OID_SIG_ED25519 => false,
        Ok(kind) => {
            let raw = request.certification_request_info.raw;
            match verification(kind, algorithm) {
                Some(verification) => verify(verification, key, raw, &request.signature_value.data),
                None => false,
            }
        }
        Err(_) => false,
    }
}

/// Reports whether the signature over the text was made with the key: RSA keys use PSS, and all but Ed25519 use
/// SHA-256.
pub fn proves_possession(key: &SubjectPublicKeyInfo<'_>, text: &[u8], signature: &[u8]) -> bool {
    let verification: &'static dyn VerificationAlgorithm = match type_of(key) {
        Ok(KeyType::Rsa) => &sig::RSA_PSS_2048_8192_SHA256,
        Ok(kind) => match verification(kind, &OID_SIG_ECDSA_WITH_SHA256) {
            Some(verification) => verification,
            None => return false,
        },
        Err(_) => return false,
    };
    verify(verification, key, text, signature)
}

fn verification(kind: KeyType, algorithm: &Oid<'_>) -> Option<&'static dyn VerificationAlgorithm> {
    let KeyType::Elliptic(curve) = kind else { return Some(&sig::ED25519) };
    let digest = [OID_SIG_ECDSA_WITH_SHA256, OID_SIG_ECDSA_WITH_SHA384, OID_SIG_ECDSA_WITH_SHA512]
        .iter()
        .position(|known| known == algorithm)?;
    Some(match (curve, digest) {
        (Curve::P256, 0) => &sig::ECDSA_P256_SHA256_ASN1,
        (Curve::P256, 1) => &sig::ECDSA_P256_SHA384_ASN1,
        (Curve::P256, _) => &sig::ECDSA_P256_SHA512_ASN1,
        (Curve::P384, 0) => &sig::ECDSA_P384_SHA256_ASN1,
        (Curve::P384, 1) => &sig::ECDSA_P384_SHA384_ASN1,
        (Curve::P384, _) => &sig::ECDSA_P384_SHA512_ASN1,
        (Curve::P521, 0) => &sig::ECDSA_P521_SHA256_ASN1,
        (Curve::P521, 1) => &sig::ECDSA_P521_SHA384_ASN1,
        (Curve::P521, _) => &sig::ECDSA_P521_SHA512_ASN1,
    })
}

fn verify(
    verification: &'static dyn VerificationAlgorithm,
    key: &SubjectPublicKeyInfo<'_>,
    text: &[u8],
    signature: &[u8],
) -> bool {
    UnparsedPublicKey::new(verification, &key.subject_public_key.data).verify(text, signature).is_ok()
}
