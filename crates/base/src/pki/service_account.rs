//! The key pair of service account tokens.

use std::path::Path;

use rcgen::{KeyPair, PKCS_RSA_SHA256, PublicKeyData, RsaKeySize};

use super::{PkiError, read_optional, write_error};
use crate::file::{self, PRIVATE, PUBLIC};

/// An RSA key: every verifier of Kubernetes tokens supports RS256.
#[derive(Clone)]
pub struct ServiceAccountKey {
    /// PKCS #8.
    pub private_pem: String,
    /// SubjectPublicKeyInfo.
    pub public_pem: String,
    /// SubjectPublicKeyInfo, as bytes.
    pub public_der: Vec<u8>,
}

impl std::fmt::Debug for ServiceAccountKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServiceAccountKey").field("public_pem", &self.public_pem).finish_non_exhaustive()
    }
}

impl ServiceAccountKey {
    pub(super) fn load_or_create(directory: &Path) -> Result<Self, PkiError> {
        let path = directory.join("service-account.key");
        if let Some(text) = read_optional(&path)? {
            let pair = KeyPair::from_pem(&text).map_err(|error| PkiError::Corrupt {
                path: path.clone(),
                what: "key",
                reason: error.to_string(),
            })?;
            return Ok(Self::from_pair(&pair));
        }
        let pair = KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048)
            .map_err(|source| PkiError::Make { what: "the key of service account tokens", source })?;
        let key = Self::from_pair(&pair);
        let public = directory.join("service-account.pub");
        file::replace(&public, key.public_pem.as_bytes(), PUBLIC).map_err(write_error(&public))?;
        file::replace(&path, key.private_pem.as_bytes(), PRIVATE).map_err(write_error(&path))?;
        Ok(key)
    }

    fn from_pair(pair: &KeyPair) -> Self {
        Self {
            private_pem: pair.serialize_pem(),
            public_pem: pair.public_key_pem(),
            public_der: pair.subject_public_key_info(),
        }
    }
}
