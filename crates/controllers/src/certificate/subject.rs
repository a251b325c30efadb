//! Certificates with exactly the requested subject, repeated attributes included: a user in several groups has
//! several organizations. rcgen supports each attribute once, so the subject is replaced afterwards and the
//! certificate signed again.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{KeyPair, SigningKey};
use x509_parser::certificate::X509Certificate;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;

const SEQUENCE: u8 = 0x30;
const BIT_STRING: u8 = 0x03;

/// Subject of a request, unmodified.
pub fn of_request(request: &[u8]) -> Option<Vec<u8>> {
    let (_, parsed) = X509CertificationRequest::from_der(request).ok()?;
    Some(parsed.certification_request_info.subject.as_raw().to_vec())
}

/// The certificate with another subject, signed with `key`; all in DER.
pub fn replace(certificate: &[u8], subject: &[u8], key: &KeyPair) -> Option<Vec<u8>> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let old = parsed.tbs_certificate.subject.as_raw();
    let (signed, rest) = split(content(certificate)?)?;
    let inside = content(signed)?;
    // The subject is the last of the two names.
    let at = inside.windows(old.len()).rposition(|window| window == old)?;
    let body = [&inside[..at], subject, &inside[at + old.len()..]].concat();
    let signed = value(SEQUENCE, &body);
    let (algorithm, _) = split(rest)?;
    let mut bits = vec![0];
    bits.extend(key.sign(&signed).ok()?);
    Some(value(SEQUENCE, &[&signed[..], algorithm, &value(BIT_STRING, &bits)].concat()))
}

pub fn to_pem(certificate: &[u8]) -> String {
    let text = STANDARD.encode(certificate);
    let mut pem = "-----BEGIN CERTIFICATE-----\n".to_owned();
    for line in text.as_bytes().chunks(64) {
        pem.push_str(&String::from_utf8_lossy(line));
        pem.push('\n');
    }
    pem.push_str("-----END CERTIFICATE-----\n");
    pem
}

/// Length of tag and length octets, and length of the content.
fn header(bytes: &[u8]) -> Option<(usize, usize)> {
    match *bytes.get(1)? {
        short @ 0..0x80 => Some((2, usize::from(short))),
        long => {
            let count = usize::from(long & 0x7f);
            let digits = bytes.get(2..2 + count).filter(|_| count <= 4)?;
            let length = digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit));
            Some((2 + count, length))
        }
    }
}

fn content(bytes: &[u8]) -> Option<&[u8]> {
    let (start, length) = header(bytes)?;
    bytes.get(start..start + length)
}

/// First value, and the rest.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (start, length) = header(bytes)?;
    bytes.split_at_checked(start + length)
}

fn value(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![tag];
    match u8::try_from(content.len()) {
        Ok(short @ 0..0x80) => bytes.push(short),
        _ => {
            let digits = content.len().to_be_bytes();
            let first = digits.iter().position(|digit| *digit != 0).unwrap_or(digits.len() - 1);
            let count = u8::try_from(digits.len() - first).unwrap_or(0);
            bytes.push(0x80 | count);
            bytes.extend_from_slice(&digits[first..]);
        }
    }
    bytes.extend_from_slice(content);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn der_lengths_round_trip() {
        for length in [0, 1, 0x7f, 0x80, 0xff, 0x100, 0x1_0000] {
            let written = value(SEQUENCE, &vec![7; length]);
            assert_eq!(content(&written).map(<[u8]>::len), Some(length));
            assert_eq!(split(&written).map(|(one, rest)| (one.len(), rest.len())), Some((written.len(), 0)));
        }
        for broken in [&[][..], &[0x30], &[0x30, 0x85, 0, 0, 0, 0, 0], &[0x30, 0x82, 1], &[0x30, 5, 1]] {
            assert_eq!(content(broken), None);
            assert!(split(broken).is_none());
        }
    }
}
