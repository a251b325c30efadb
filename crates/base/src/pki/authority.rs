//! Certificate authorities and their issued certificates.

use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType, SerialNumber,
};
use rustls_pki_types::CertificateDer;

use super::identity::certificates_from_pem;
use super::{AUTHORITY_LIFE, Identity, LEAF_LIFE, PkiError, ServingNames, read_optional, write_error};
use crate::file::{self, PRIVATE, PUBLIC};

/// Certificates begin a little in the past: the clocks of other machines may be behind.
const SKEW: Duration = Duration::from_secs(300);

/// A certificate authority with its key.
pub struct Authority {
    pub certificate: CertificateDer<'static>,
    pub certificate_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").field("certificate_pem", &self.certificate_pem).finish_non_exhaustive()
    }
}

impl Authority {
    /// Does not force the files to disk; callers do.
    pub(super) fn create(
        directory: &Path,
        file: &str,
        common_name: &str,
        now: Timestamp,
    ) -> Result<Self, PkiError> {
        let (authority, key_pem) = Self::generate(common_name, now)?;
        let key_path = directory.join(format!("{file}.key"));
        file::write(&key_path, key_pem.as_bytes(), PRIVATE).map_err(write_error(&key_path))?;
        let path = directory.join(format!("{file}.crt"));
        file::write(&path, authority.certificate_pem.as_bytes(), PUBLIC).map_err(write_error(&path))?;
        Ok(authority)
    }

    /// Creates an authority in memory; returns it with its key as PEM.
    pub(super) fn generate(common_name: &str, now: Timestamp) -> Result<(Self, String), PkiError> {
        let make = |source| PkiError::Make { what: "a certificate authority", source };
        let key = KeyPair::generate().map_err(make)?;
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        set_life(&mut params, now, AUTHORITY_LIFE);
        params.distinguished_name = distinguished_name(common_name, None);
        let certificate = params.self_signed(&key).map_err(make)?;
        let key_pem = key.serialize_pem();
        let authority = Self {
            certificate: certificate.der().clone(),
            certificate_pem: certificate.pem(),
            issuer: Issuer::new(params, key),
        };
        Ok((authority, key_pem))
    }

    pub(super) fn load(directory: &Path, file: &str) -> Result<Self, PkiError> {
        let path = directory.join(format!("{file}.crt"));
        let key_path = directory.join(format!("{file}.key"));
        let missing = |path: &Path, sibling: &Path| PkiError::Incomplete {
            path: path.to_owned(),
            sibling: sibling.to_owned(),
        };
        let certificate_pem = read_optional(&path)?.ok_or_else(|| missing(&path, &key_path))?;
        let key_pem = read_optional(&key_path)?.ok_or_else(|| missing(&key_path, &path))?;

        let corrupt =
            |path: &Path, what, reason: String| PkiError::Corrupt { path: path.to_owned(), what, reason };
        let certificate = certificates_from_pem(&certificate_pem)
            .map_err(|reason| corrupt(&path, "certificate", reason))?
            .swap_remove(0);
        let key =
            KeyPair::from_pem(&key_pem).map_err(|error| corrupt(&key_path, "key", error.to_string()))?;
        check_pair(&certificate, &key).map_err(|reason| corrupt(&path, "certificate", reason))?;
        let issuer = Issuer::from_ca_cert_der(&certificate, key)
            .map_err(|error| corrupt(&path, "certificate", error.to_string()))?;
        Ok(Self { certificate, certificate_pem, issuer })
    }

    /// Loads the authority of client certificates from the certificates of a control plane.
    pub fn of_clients(directory: &Path) -> Result<Self, PkiError> {
        Self::load(directory, "client-ca")
    }

    /// A client certificate: the common name is the user, the organization its group.
    pub fn issue_client(
        &self,
        common_name: &str,
        organization: Option<&str>,
        now: Timestamp,
    ) -> Result<Identity, PkiError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = distinguished_name(common_name, organization);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(params, now)
    }

    /// A client certificate of a user with at most two groups, as for service accounts.
    pub fn issue_client_in(
        &self,
        common_name: &str,
        groups: &[&str],
        now: Timestamp,
    ) -> Result<Identity, PkiError> {
        let mut params = CertificateParams::default();
        let mut name = distinguished_name(common_name, groups.first().copied());
        if let Some(second) = groups.get(1) {
            // A name keeps one entry per type, so the second organization is added by its OID.
            name.push(DnType::CustomDnType(vec![2, 5, 4, 10]), *second);
        }
        params.distinguished_name = name;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(params, now)
    }

    /// A serving certificate for `names`.
    pub fn issue_serving(
        &self,
        common_name: &str,
        names: &ServingNames,
        now: Timestamp,
    ) -> Result<Identity, PkiError> {
        let make = |source| PkiError::Make { what: "a serving certificate", source };
        let mut params = CertificateParams::new(Vec::from_iter(names.dns.iter().cloned())).map_err(make)?;
        params.subject_alt_names.extend(names.ips.iter().map(|ip| SanType::IpAddress(*ip)));
        params.distinguished_name = distinguished_name(common_name, None);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.issue(params, now)
    }

    fn issue(&self, mut params: CertificateParams, now: Timestamp) -> Result<Identity, PkiError> {
        let make = |source| PkiError::Make { what: "a certificate", source };
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        params.is_ca = IsCa::ExplicitNoCa;
        set_life(&mut params, now, LEAF_LIFE);
        let key = KeyPair::generate().map_err(make)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(make)?;
        Ok(Identity::new(&certificate, &key, params_life(now)))
    }
}

fn distinguished_name(common_name: &str, organization: Option<&str>) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    if let Some(organization) = organization {
        name.push(DnType::OrganizationName, organization);
    }
    name.push(DnType::CommonName, common_name);
    name
}

fn set_life(params: &mut CertificateParams, now: Timestamp, life: Duration) {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let begin = Duration::from_secs(u64::try_from(now.as_second()).unwrap_or(0)).saturating_sub(SKEW);
    params.not_before = epoch + begin;
    params.not_after = epoch + begin + SKEW + life;
    // A positive serial of 16 random bytes; two certificates of one authority never share it.
    params.serial_number = random_serial();
}

/// Begin and end of a leaf issued now, in seconds since the epoch.
fn params_life(now: Timestamp) -> (i64, i64) {
    let begin = now.as_second().saturating_sub(i64::try_from(SKEW.as_secs()).unwrap_or(0));
    (begin, now.as_second().saturating_add(i64::try_from(LEAF_LIFE.as_secs()).unwrap_or(i64::MAX)))
}

/// A random serial number, or `None` to derive one from the key.
fn random_serial() -> Option<SerialNumber> {
    let mut bytes = [0u8; 16];
    rustls::crypto::aws_lc_rs::default_provider().secure_random.fill(&mut bytes).ok()?;
    bytes[0] = bytes[0] & 0x7f | 0x40;
    Some(SerialNumber::from_slice(&bytes))
}

/// Rejects a key that does not match its certificate, which would otherwise fail at the first handshake.
fn check_pair(certificate: &CertificateDer<'_>, key: &KeyPair) -> Result<(), String> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).map_err(|error| error.to_string())?;
    let public = &parsed.public_key().subject_public_key.data;
    if public.as_ref() == key.public_key_raw() {
        Ok(())
    } else {
        Err("it does not belong to its key".to_owned())
    }
}
