//! PodCertificateRequest: a kubelet's request for a certificate of a pod.
//!
//! The spec never changes. The status changes once, when a signer issues the certificate, denies it or fails; the API
//! server checks that the writer is authorized for the signer.

use crate::field_selectors::{LabelError, Selectable};
use crate::kind::{SelectableField, drop_status, keep_metadata_and_spec, keep_status};
use crate::validation::certificates::{certificates, signer_name};
use crate::validation::checks::{immutable, invalid_each};
use crate::validation::public_key::{self, KeyProblem};
use crate::validation::values::same;
use crate::value::Fields;
use crate::{Kind, Scope, clock};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use machinery::field::{ErrorList, FieldError, Path, show};
use machinery::{Value, names};
use serde_json::Map;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

pub static KIND: Kind = Kind {
    default,
    prepare_create: drop_status,
    prepare_update: keep_status,
    prepare_status_update: keep_metadata_and_spec,
    validate,
    validate_update: |new, old| immutable(&Path::new("spec"), new.field("spec"), old.field("spec")),
    validate_status_update: |new, old| validate_status(new, old, clock::now()),
    unconditional_update: false,
    reset_fields: &[("status", &[&["spec"]])],
    selectable: Selectable::new(SELECTABLE, LabelError::Label),
    table: &crate::tables::certificates::POD_CERTIFICATE_REQUEST,
    ..Kind::new(
        "certificates.k8s.io",
        "v1beta1",
        "PodCertificateRequest",
        "podcertificaterequests",
        Scope::Namespaced,
    )
};

const SELECTABLE: &[SelectableField] = {
    use crate::field_selectors::{NAME, field, text};
    &[
        NAME,
        field("spec.signerName", |request| text(request, "/spec/signerName")),
        field("spec.podName", |request| text(request, "/spec/podName")),
        field("spec.nodeName", |request| text(request, "/spec/nodeName")),
    ]
};

const UID_MAX: usize = 128;
const HOUR_SECONDS: i64 = 3600;
const DAY_SECONDS: i64 = 24 * HOUR_SECONDS;
const KEY_MAX: usize = 10 * 1024;
const ANNOTATIONS_MAX: usize = 256 << 10;
const CHAIN_MAX: usize = 100 * 1024;
const FINAL: [&str; 3] = ["Issued", "Denied", "Failed"];
const OMITTED: &str = "<omitted>";

fn default(request: &mut Value) {
    if let Some(spec) = request.field_mut("spec")
        && !spec.has("maxExpirationSeconds")
    {
        spec.set("maxExpirationSeconds", DAY_SECONDS);
    }
}

fn validate(request: &Value) -> ErrorList {
    let (path, spec) = (Path::new("spec"), request.field("spec"));
    let signer = spec.text("signerName");
    let mut errors = signer_name(signer, &path.child("signerName"));
    let annotations_path = path.child("unverifiedUserAnnotations");
    if let Some(annotations) = spec.field("unverifiedUserAnnotations").as_object() {
        errors.extend(user_annotations(annotations, &annotations_path));
    }
    for (name, uid) in
        [("podName", "podUID"), ("serviceAccountName", "serviceAccountUID"), ("nodeName", "nodeUID")]
    {
        let text = spec.text(name);
        errors.extend(invalid_each(&path.child(name), text, names::dns_subdomain(text, false)));
        match spec.text(uid).len() {
            0 => errors.push(FieldError::invalid_str(&path.child(uid), "", "must not be empty")),
            1..=UID_MAX => {}
            _ => errors.push(FieldError::too_long(&path.child(uid), UID_MAX)),
        }
    }
    let expiration_path = path.child("maxExpirationSeconds");
    let Some(seconds) = spec.opt_int("maxExpirationSeconds") else {
        errors.push(FieldError::required(&expiration_path, "must be set"));
        return errors;
    };
    let of_kubernetes = signer
        .split_once('/')
        .is_some_and(|(domain, _)| domain == "kubernetes.io" || domain.ends_with(".kubernetes.io"));
    let most = if of_kubernetes { DAY_SECONDS } else { 91 * DAY_SECONDS };
    if !(HOUR_SECONDS..=most).contains(&seconds) {
        let detail = format!("must be in the range [{HOUR_SECONDS}, {most}]");
        errors.push(FieldError::invalid(&expiration_path, &seconds.into(), detail));
    }
    let is_set = |field| !spec.text(field).is_empty();
    let problem = match (is_set("stubPKCS10Request"), is_set("pkixPublicKey"), is_set("proofOfPossession")) {
        (true, false, false) => stub_request(spec, &path),
        (false, true, true) => bare_key(spec, &path),
        _ => Some(FieldError::invalid_shown(
            &path,
            OMITTED,
            "exactly one of (stubPKCS10Request) or (pkixPublicKey, proofOfPossession) must be set",
        )),
    };
    errors.extend(problem);
    errors
}

/// Keys with a domain; the total size is limited to that of annotations.
fn user_annotations(annotations: &Map<String, Value>, path: &Path<'_>) -> ErrorList {
    let keys = annotations.keys().map(|key| key.to_lowercase());
    let mut errors: ErrorList = keys.flat_map(|key| names::domain_prefixed_key(path, &key)).collect();
    let size: usize =
        annotations.iter().map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum();
    if size > ANNOTATIONS_MAX {
        errors.push(FieldError::too_long(path, ANNOTATIONS_MAX));
    }
    errors
}

fn bytes(spec: &Value, field: &str) -> Vec<u8> {
    STANDARD.decode(spec.text(field)).unwrap_or_default()
}

fn stub_request(spec: &Value, path: &Path<'_>) -> Option<FieldError> {
    let path = path.child("stubPKCS10Request");
    let der = bytes(spec, "stubPKCS10Request");
    if der.len() > KEY_MAX {
        return Some(FieldError::too_long(&path, KEY_MAX));
    }
    let reject = |shown: &str, detail: &str| Some(FieldError::invalid_shown(&path, shown, detail));
    let Some(request) = public_key::request(&der) else {
        return reject(OMITTED, "must be a valid PKCS#10 CSR");
    };
    match public_key::problem(&request.certification_request_info.subject_pki) {
        None if public_key::is_signed(&request) => None,
        None => reject(OMITTED, "invalid signature"),
        Some(KeyProblem::Malformed) => reject(OMITTED, "must be a valid PKCS#10 CSR"),
        Some(KeyProblem::Curve(name)) => {
            reject(&format!("\"curve {name}\""), "elliptic public keys must use curve P256, P384, or P521")
        }
        Some(KeyProblem::Modulus(bits)) => reject(&format!("\"{bits}-bit modulus\""), MODULUS),
        Some(KeyProblem::Type) => reject(OMITTED, TYPES),
    }
}

const MODULUS: &str = "RSA keys must have modulus size 3072 or 4096";
const TYPES: &str = "unknown public key type; supported types are Ed25519, ECDSA, and RSA";

fn bare_key(spec: &Value, path: &Path<'_>) -> Option<FieldError> {
    let (key_path, proof_path) = (path.child("pkixPublicKey"), path.child("proofOfPossession"));
    let (der, proof) = (bytes(spec, "pkixPublicKey"), bytes(spec, "proofOfPossession"));
    if der.len() > KEY_MAX {
        return Some(FieldError::too_long(&key_path, KEY_MAX));
    }
    if proof.len() > KEY_MAX {
        return Some(FieldError::too_long(&proof_path, KEY_MAX));
    }
    let shown = show(spec.field("pkixPublicKey"));
    let reject = |shown: String, detail: &str| Some(FieldError::invalid_shown(&key_path, shown, detail));
    let malformed = "must be a valid PKIX-serialized public key";
    let Some(key) = public_key::parse(&der) else { return reject(shown, malformed) };
    match public_key::problem(&key) {
        None if public_key::proves_possession(&key, spec.text("podUID").as_bytes(), &proof) => None,
        None => {
            let detail = "could not verify proof-of-possession signature";
            Some(FieldError::invalid_shown(&proof_path, OMITTED, detail))
        }
        Some(KeyProblem::Malformed) => reject(shown, malformed),
        Some(KeyProblem::Curve(name)) => {
            reject(format!("\"curve {name}\""), "elliptic public keys must use curve P256 or P384")
        }
        Some(KeyProblem::Modulus(bits)) => reject(format!("\"{bits}-bit modulus\""), MODULUS),
        Some(KeyProblem::Type) => reject(shown, TYPES),
    }
}

/// The final condition of a status.
fn outcome(request: &Value) -> Option<&str> {
    let conditions = request.field("status").items("conditions");
    let kinds = conditions.iter().filter(|condition| condition.text("status") == "True");
    kinds.map(|condition| condition.text("type")).find(|kind| FINAL.contains(kind))
}

fn validate_status(new: &Value, old: &Value, now: Timestamp) -> ErrorList {
    let path = Path::new("status");
    let status = new.field("status");
    let conditions_path = path.child("conditions");
    let conditions = status.items("conditions");
    let mut errors = Vec::new();
    for (index, condition) in conditions.iter().enumerate() {
        let index = format!("[{index}]");
        let path = conditions_path.child(&index);
        if !FINAL.contains(&condition.text("type")) {
            errors.push(FieldError::not_supported_str(&path.child("type"), condition.text("type"), &FINAL));
            continue;
        }
        if index != "[0]" {
            let detail = r#"There may be at most one condition with type "Issued", "Denied", or "Failed""#;
            errors.push(FieldError::invalid_str(&path.child("type"), condition.text("type"), detail));
        }
        if condition.text("status") != "True" {
            errors.push(FieldError::not_supported(
                &path.child("status"),
                condition.field("status"),
                &["True"],
            ));
        }
    }
    errors.extend(names::validate_conditions(conditions, &conditions_path));
    if !errors.is_empty() {
        return errors;
    }
    let fixed = |holds: bool, detail: &str| match holds {
        true => Vec::new(),
        false => vec![FieldError::invalid_shown(&path, OMITTED, detail)],
    };
    let is_same = same(status, old.field("status"));
    if outcome(old).is_some() {
        return fixed(is_same, "immutable after PodCertificateRequest is issued, denied, or failed");
    }
    match outcome(new) {
        Some("Issued") => issued(new, old, now).err().unwrap_or_default(),
        Some(_) => {
            let only_conditions = status
                .as_object()
                .is_none_or(|map| map.iter().all(|(name, value)| name == "conditions" || is_empty(value)));
            let detail =
                "non-condition status fields must be empty when denying or failing the PodCertificateRequest";
            fixed(only_conditions, detail)
        }
        None => {
            fixed(is_same, r#"status is immutable unless transitioning to "Issued", "Denied", or "Failed""#)
        }
    }
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || value.as_str() == Some("")
}

/// Times in the status of an issued request.
struct Times {
    not_before: Timestamp,
    not_after: Timestamp,
    refresh: Timestamp,
}

impl Times {
    /// Reads the times; missing ones are added to `errors`, the errors found so far.
    fn of(status: &Value, mut errors: ErrorList) -> Result<Self, ErrorList> {
        let path = Path::new("status");
        let mut moment = |field: &'static str, detail: &str| {
            let found = status.text(field).parse::<Timestamp>().ok();
            if found.is_none() {
                errors.push(FieldError::required(&path.child(field), detail));
            }
            found
        };
        let consistent = "must be present and consistent with the issued certificate";
        let not_before = moment("notBefore", consistent);
        let not_after = moment("notAfter", consistent);
        let refresh =
            moment("beginRefreshAt", "must be present and in the range [notbefore+10min, notafter-10min]");
        match (not_before, not_after, refresh) {
            (Some(not_before), Some(not_after), Some(refresh)) if errors.is_empty() => {
                Ok(Self { not_before, not_after, refresh })
            }
            _ => Err(errors),
        }
    }

    /// Compares the times with the certificate and the limits; `most` is the longest lifetime in seconds.
    fn check(&self, leaf: &X509Certificate<'_>, most: i64, now: Timestamp) -> Result<(), ErrorList> {
        let Self { not_before, not_after, refresh } = *self;
        let path = Path::new("status");
        let at = |field: &'static str, time: Timestamp, detail: &str| {
            Err(vec![FieldError::invalid_str(&path.child(field), &time.to_string(), detail)])
        };
        let validity = leaf.validity();
        if not_before.as_second() != validity.not_before.timestamp() {
            let detail = "must be set to the NotBefore time encoded in the leaf certificate";
            return at("notBefore", not_before, detail);
        }
        if not_before.duration_since(now).abs() >= SignedDuration::from_mins(5) {
            let detail = "must be set to within 5 minutes of kube-apiserver's current time";
            return at("notBefore", not_before, detail);
        }
        if not_after.as_second() != validity.not_after.timestamp() {
            let detail = "must be set to the NotAfter time encoded in the leaf certificate";
            return at("notAfter", not_after, detail);
        }
        let lifetime = not_after.as_second() - not_before.as_second();
        let chain_path = path.child("certificateChain");
        let long = |detail: String| Err(vec![FieldError::invalid(&chain_path, &lifetime.into(), detail)]);
        if lifetime < HOUR_SECONDS {
            return long("leaf certificate lifetime must be >= 1 hour".to_owned());
        }
        if lifetime > most {
            return long(format!("leaf certificate lifetime must be <= spec.maxExpirationSeconds ({most})"));
        }
        let margin = SignedDuration::from_mins(10);
        if refresh.duration_since(not_before) < margin {
            return at("beginRefreshAt", refresh, "must be at least 10 minutes after status.notBefore");
        }
        if not_after.duration_since(refresh) < margin {
            return at("beginRefreshAt", refresh, "must be at least 10 minutes before status.notAfter");
        }
        Ok(())
    }
}

/// Validates the issued certificate: for the requested key, with the times of the status.
fn issued(new: &Value, old: &Value, now: Timestamp) -> Result<(), ErrorList> {
    let (path, spec_path) = (Path::new("status"), Path::new("spec"));
    let status = new.field("status");
    let chain_path = path.child("certificateChain");
    let chain = status.text("certificateChain");
    if chain.len() > CHAIN_MAX {
        return Err(vec![FieldError::too_long(&chain_path, CHAIN_MAX)]);
    }
    let reject = |detail: &str| vec![FieldError::invalid_str(&chain_path, chain, detail)];
    let blocks = certificates(chain);
    let mut blocks = blocks.iter();
    let leaf = blocks
        .next()
        .ok_or_else(|| reject("issued certificate chain must contain at least one certificate"))?;
    let leaf = leaf
        .as_ref()
        .ok_or_else(|| reject("issued certificate chain must consist entirely of CERTIFICATE PEM blocks"))?;
    let (_, leaf) = X509Certificate::from_der(leaf)
        .ok()
        .filter(|(rest, _)| rest.is_empty())
        .ok_or_else(|| reject("leaf certificate does not parse as valid X.509"))?;
    let names = leaf_names(&leaf, &chain_path);
    let wanted = requested_key(old, &spec_path)?;
    if leaf.public_key().raw != wanted.as_slice() {
        let mut errors = names;
        errors.extend(reject("leaf certificate was not issued to the requested public key"));
        return Err(errors);
    }
    let times = Times::of(status, names)?;
    times.check(&leaf, new.field("spec").int("maxExpirationSeconds"), now)?;
    for block in blocks {
        let block = block.as_ref().ok_or_else(|| {
            reject("issued certificate chain must consist entirely of CERTFICATE PEM blocks")
        })?;
        if !X509Certificate::from_der(block).is_ok_and(|(rest, _)| rest.is_empty()) {
            return Err(reject("intermediate certificate does not parse as valid X.509"));
        }
    }
    Ok(())
}

/// Public key of the request, in the form of certificates.
fn requested_key(old: &Value, path: &Path<'_>) -> Result<Vec<u8>, ErrorList> {
    let spec = old.field("spec");
    let stub = bytes(spec, "stubPKCS10Request");
    let reject = |field: &'static str, detail: &str| {
        vec![FieldError::invalid_shown(&path.child(field), OMITTED, detail)]
    };
    if stub.is_empty() {
        let key = bytes(spec, "pkixPublicKey");
        return match public_key::parse(&key) {
            Some(_) => Ok(key),
            None => Err(reject("pkixPublicKey", "must be a valid PKIX-serialized public key")),
        };
    }
    let request = public_key::request(&stub)
        .ok_or_else(|| reject("stubPKCS10Request", "must be a valid PKCS#10 CSR"))?;
    Ok(request.certification_request_info.subject_pki.raw.to_vec())
}

fn leaf_names(leaf: &X509Certificate<'_>, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    let Ok(Some(alternative)) = leaf.subject_alternative_name() else { return errors };
    for name in &alternative.value.general_names {
        match name {
            GeneralName::DNSName(name) => {
                let mut reject = |holds: bool, detail: &str| {
                    if holds {
                        errors.push(FieldError::invalid_str(path, name, detail));
                    }
                };
                reject(name.is_empty(), "leaf certificate should not contain empty DNSName");
                reject(name.contains(".."), "leaf certificate's DNSName should not contain '..'");
                reject(
                    name.starts_with('.') || name.ends_with('.'),
                    "leaf certificate's DNSName should not start or end with '.'",
                );
            }
            GeneralName::RFC822Name(address) if !is_address(address) => {
                let detail = "leaf certificate should not contain invalid EmailAddress";
                errors.push(FieldError::invalid_str(path, address, detail));
            }
            _ => {}
        }
    }
    errors
}

/// An email address without a display name, as in certificates.
fn is_address(text: &str) -> bool {
    let is_atom = |part: &str| {
        !part.is_empty()
            && part.split('.').all(|atom| {
                !atom.is_empty()
                    && atom.chars().all(|c| c.is_alphanumeric() || "!#$%&'*+-/=?^_`{|}~".contains(c))
            })
    };
    text.rsplit_once('@').is_some_and(|(local, domain)| is_atom(local) && is_atom(domain))
}

#[cfg(test)]
#[path = "pod_certificate_request_tests.rs"]
mod tests;
