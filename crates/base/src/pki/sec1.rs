//! SEC 1 form (RFC 5915) of P-256 keys in PKCS #8 form.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

const INTEGER: u8 = 0x02;
const OCTETS: u8 = 0x04;
const SEQUENCE: u8 = 0x30;
const PARAMETERS: u8 = 0xa0;
/// `id-ecPublicKey` with the curve `prime256v1`.
const ALGORITHM: [u8; 19] = [
    0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03,
    0x01, 0x07,
];
/// Offset of the curve's identifier in [`ALGORITHM`].
const CURVE: usize = 9;
const LINE: usize = 64;

/// PEM text of the key; `None` if it is not one of P-256.
pub fn encode(pkcs8: &[u8]) -> Option<String> {
    let (info, _) = element(pkcs8, SEQUENCE)?;
    let (_, info) = element(info, INTEGER)?;
    let (algorithm, info) = element(info, SEQUENCE)?;
    let (key, _) = element(info, OCTETS)?;
    if algorithm != ALGORITHM {
        return None;
    }
    let (fields, _) = element(key, SEQUENCE)?;
    let (version, rest) = element(fields, INTEGER)?;
    let (scalar, rest) = element(rest, OCTETS)?;
    // PKCS #8 names the curve outside, so that this field is usually absent.
    let public = element(rest, PARAMETERS).map_or(rest, |(_, public)| public);
    let parts = [
        wrap(INTEGER, version),
        wrap(OCTETS, scalar),
        wrap(PARAMETERS, &ALGORITHM[CURVE..]),
        public.to_vec(),
    ];
    let text = STANDARD.encode(wrap(SEQUENCE, &parts.concat()));
    let mut pem = "-----BEGIN EC PRIVATE KEY-----\n".to_owned();
    for line in text.as_bytes().chunks(LINE) {
        pem.push_str(std::str::from_utf8(line).ok()?);
        pem.push('\n');
    }
    pem.push_str("-----END EC PRIVATE KEY-----\n");
    Some(pem)
}

/// Content of the first element, which must have this tag, and what follows it.
fn element(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&[found, length], rest) = der.split_first_chunk()?;
    if found != tag {
        return None;
    }
    let (length, rest) = match length {
        0x81 => rest.split_first().map(|(length, rest)| (usize::from(*length), rest))?,
        short if short < 0x80 => (usize::from(short), rest),
        // No P-256 key is that long.
        _ => return None,
    };
    rest.split_at_checked(length)
}

/// An element; `content` is shorter than 256 bytes.
fn wrap(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = u8::try_from(content.len()).unwrap_or(u8::MAX);
    let mut der = vec![tag];
    if length >= 0x80 {
        der.push(0x81);
    }
    der.push(length);
    der.extend_from_slice(content);
    der
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls_pki_types::PrivateKeyDer;
    use rustls_pki_types::pem::PemObject;

    #[test]
    fn encoded_key_is_the_same_key() {
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).expect("a key");
        let pem = encode(&pair.serialize_der()).expect("a key of P-256");
        let key = PrivateKeyDer::from_pem_slice(pem.as_bytes()).expect("PEM");
        assert!(matches!(key, PrivateKeyDer::Sec1(_)), "{pem}");
        let key = rustls::crypto::aws_lc_rs::sign::any_ecdsa_type(&key).expect("a usable key");
        let public = key.public_key().expect("its public key");
        assert_eq!(public.as_ref(), rcgen::PublicKeyData::subject_public_key_info(&pair));
        // The curve is named, without which OpenSSL and Java cannot use the key.
        assert!(pem.lines().all(|line| line.len() <= LINE), "{pem}");
    }

    #[test]
    fn other_keys_and_malformed_ones_are_not_encoded() {
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).expect("a key");
        assert_eq!(encode(&pair.serialize_der()), None);
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).expect("a key");
        let der = pair.serialize_der();
        for end in 0..der.len() {
            assert_eq!(encode(&der[..end]), None, "{end}");
        }
    }
}
