//! Form of certificates and certificate requests: PEM blocks and signer names.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use machinery::field::{ErrorList, FieldError, Path};
use machinery::names;
use std::collections::HashMap;
use x509_parser::prelude::{FromDer, X509Certificate};

/// One block of PEM.
struct Block<'a> {
    kind: &'a str,
    has_headers: bool,
    bytes: Vec<u8>,
}

/// Blocks of a PEM text; other text between them is skipped.
fn blocks(text: &str) -> Vec<Block<'_>> {
    let mut found = Vec::new();
    let mut lines = text.lines().map(str::trim_end);
    while let Some(line) = lines.next() {
        let Some(kind) = line.strip_prefix("-----BEGIN ").and_then(|line| line.strip_suffix("-----")) else {
            continue;
        };
        let end = format!("-----END {kind}-----");
        let mut body = String::new();
        let mut has_headers = false;
        for line in lines.by_ref() {
            if line == end {
                if let Some(bytes) = STANDARD.decode(&body).ok().filter(|bytes| !bytes.is_empty()) {
                    found.push(Block { kind, has_headers, bytes });
                }
                break;
            }
            if line.contains(':') {
                has_headers = true;
            } else {
                body.push_str(line);
            }
        }
    }
    found
}

/// Text in a base64 field, if it is UTF-8.
fn decoded(base64: &str) -> Option<String> {
    String::from_utf8(STANDARD.decode(base64).ok()?).ok()
}

/// Error of a certificate request (base64 of PEM).
pub fn request_problem(request: &str) -> Option<String> {
    let text = decoded(request).unwrap_or_default();
    match blocks(&text).first() {
        Some(block) if block.kind == "CERTIFICATE REQUEST" => None,
        _ => Some("PEM block type must be CERTIFICATE REQUEST".to_owned()),
    }
}

/// Error of a certificate chain (base64 of PEM). An empty one is valid.
pub fn certificate_problem(certificate: &str) -> Option<String> {
    if certificate.is_empty() {
        return None;
    }
    let text = decoded(certificate).unwrap_or_default();
    let blocks = blocks(&text);
    for block in &blocks {
        if block.kind != "CERTIFICATE" {
            return Some(format!("only CERTIFICATE PEM blocks are allowed, found {:?}", block.kind));
        }
        if block.has_headers {
            return Some("no PEM block headers are permitted".to_owned());
        }
    }
    blocks.is_empty().then(|| "must contain at least one CERTIFICATE PEM block".to_owned())
}

/// The certificates of a PEM text; `None` for a block of another type.
pub fn certificates(text: &str) -> Vec<Option<Vec<u8>>> {
    blocks(text).into_iter().map(|block| (block.kind == "CERTIFICATE").then_some(block.bytes)).collect()
}

/// Distinct errors of a PEM text of CA certificates.
pub fn trust_bundle(text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let mut anchors: Vec<(Vec<u8>, Vec<usize>)> = Vec::new();
    let mut known: HashMap<Vec<u8>, usize> = HashMap::new();
    for (index, block) in blocks(text).into_iter().enumerate() {
        if block.kind != "CERTIFICATE" {
            problems.push(format!("entry {index} has bad block type: {}", block.kind));
            continue;
        }
        if block.has_headers {
            problems.push(format!("entry {index} has PEM block headers"));
            continue;
        }
        let is_authority = match X509Certificate::from_der(&block.bytes) {
            Ok(([], certificate)) => certificate.is_ca(),
            _ => {
                problems.push(format!("entry {index} does not parse as X.509"));
                continue;
            }
        };
        if !is_authority {
            problems.push(format!("entry {index} does not have the CA bit set"));
            continue;
        }
        match known.get(&block.bytes) {
            Some(at) => anchors[*at].1.push(index),
            None => {
                known.insert(block.bytes.clone(), anchors.len());
                anchors.push((block.bytes, vec![index]));
            }
        }
    }
    if !problems.is_empty() {
        return problems;
    }
    if anchors.is_empty() {
        problems.push("at least one trust anchor must be provided".to_owned());
    }
    for (_, indices) in anchors.iter().filter(|(_, indices)| indices.len() > 1) {
        let indices: Vec<String> = indices.iter().map(ToString::to_string).collect();
        problems.push(format!("duplicate trust anchor (indices [{}])", indices.join(" ")));
    }
    problems
}

/// `example.com/signer-name`.
pub fn signer_name(signer: &str, path: &Path<'_>) -> ErrorList {
    if signer.is_empty() {
        return vec![FieldError::required(path, "")];
    }
    let Some((domain, name)) = signer.split_once('/').filter(|(_, name)| !name.contains('/')) else {
        let detail = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        return vec![FieldError::invalid_str(path, signer, detail)];
    };
    let mut errors = Vec::new();
    if domain.len() > names::DNS_SUBDOMAIN_MAX {
        errors.push(FieldError::too_long(path, names::DNS_SUBDOMAIN_MAX));
    }
    errors.extend(first_bad_label(path, domain, |label| names::dns_label(label, false)));
    if !domain.contains('.') {
        let detail = "should be a domain with at least two segments separated by dots";
        errors.push(FieldError::invalid_str(path, domain, detail));
    }
    errors.extend(first_bad_label(path, name, |label| names::dns_subdomain(label, false)));
    let max = names::DNS_SUBDOMAIN_MAX + names::DNS_LABEL_MAX + 1;
    if name.len() > max {
        errors.push(FieldError::too_long(path, max));
    }
    errors
}

/// Errors of the first invalid label.
fn first_bad_label(path: &Path<'_>, segment: &str, check: fn(&str) -> Vec<String>) -> ErrorList {
    let bad =
        segment.split('.').map(|label| (label, check(label))).find(|(_, problems)| !problems.is_empty());
    let Some((label, problems)) = bad else { return Vec::new() };
    let reject =
        |problem| FieldError::invalid_str(path, segment, format!("validating label {label:?}: {problem}"));
    problems.into_iter().map(reject).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pem_requests_and_chains_are_validated() {
        let encode = |text: &str| STANDARD.encode(text);
        let request =
            encode("-----BEGIN CERTIFICATE REQUEST-----\neHg=\n-----END CERTIFICATE REQUEST-----\n");
        assert_eq!(request_problem(&request), None);
        assert!(request_problem(&encode("x")).is_some());
        assert!(request_problem("not base64!").is_some());
        assert_eq!(
            certificate_problem(&request).unwrap(),
            "only CERTIFICATE PEM blocks are allowed, found \"CERTIFICATE REQUEST\""
        );
        let certificate = encode("-----BEGIN CERTIFICATE-----\neHg=\n-----END CERTIFICATE-----\n");
        assert_eq!(certificate_problem(&certificate), None);
    }

    #[test]
    fn signer_names_are_validated() {
        let path = Path::new("s");
        for (signer, count) in
            [("example.com/s", 0), ("", 1), ("x", 1), ("a/b/c", 1), ("nodots/x", 1), ("example.com/B_", 1)]
        {
            assert_eq!(signer_name(signer, &path).len(), count, "{signer}");
        }
    }
}
