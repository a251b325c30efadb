//! The signing loop. Watches certificate signing requests; signs approved ones with the cluster's CAs, within the
//! rules of each signer.

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use objects::ByteString;
use objects::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use objects::meta::v1::Time;
use parking_lot::RwLock;
use rcgen::{
    CertificateSigningRequestParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use runtime::{Action, Cache, Context, Descriptor, Key, Loop, LoopError};
use std::collections::BTreeMap;
use std::sync::Arc;
use x509_parser::prelude::FromDer;

use super::request::{CLIENT, KUBELET_CLIENT, KUBELET_SERVING, LEGACY, Request};
use super::{IDENTITY, has, is_issued, subject};
use crate::Settings;

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "certificatesigningrequest-signing-controller",
    resource: "certificatesigningrequests.certificates.k8s.io",
    identity: IDENTITY,
    workers: 5,
};

/// Signers of this loop.
pub const SIGNERS: [&str; 4] = [KUBELET_SERVING, KUBELET_CLIENT, CLIENT, LEGACY];

/// Default and maximum lifetime of a certificate.
const SHORTEST: SignedDuration = SignedDuration::from_mins(10);
/// Backdating of certificates; short ones do not expire earlier for it.
const BACKDATE: SignedDuration = SignedDuration::from_mins(5);
const SHORT: SignedDuration = SignedDuration::from_hours(8);

#[derive(Debug, thiserror::Error)]
pub enum SigningError {
    #[error("failed to parse the CA certificate or key")]
    Authority(#[source] rcgen::Error),
    #[error("failed to parse the CA certificate")]
    AuthorityCertificate,
    #[error("the CA certificate has expired")]
    Expired,
    #[error("failed to sign the certificate request")]
    Request(#[source] rcgen::Error),
    #[error("invalid key usages: unrecognized usage {0:?}")]
    Usage(String),
    #[error("failed to encode the subject of the certificate request")]
    Subject,
}

/// A CA that can be replaced while it is used.
#[derive(Clone)]
pub struct SharedAuthority(Arc<RwLock<Arc<SigningAuthority>>>);

impl SharedAuthority {
    pub fn new(authority: SigningAuthority) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(authority))))
    }

    pub fn current(&self) -> Arc<SigningAuthority> {
        Arc::clone(&self.0.read())
    }

    pub fn replace(&self, authority: SigningAuthority) {
        *self.0.write() = Arc::new(authority);
    }
}

/// Setting: the CAs by signer; without it the loop does nothing.
#[derive(Default)]
pub struct Signers(BTreeMap<&'static str, SharedAuthority>);

impl Signers {
    /// Uses one CA for all signers of the loop.
    pub fn all(authority: SharedAuthority) -> Self {
        Self(SIGNERS.iter().map(|signer| (*signer, authority.clone())).collect())
    }

    /// Sets the CA of one signer.
    pub fn set(&mut self, signer: &'static str, authority: SharedAuthority) {
        self.0.insert(signer, authority);
    }

    /// CA of a signer; requests of a signer without one are left to other controllers.
    fn of(&self, signer: &str) -> Option<Arc<SigningAuthority>> {
        self.0.get(signer).map(SharedAuthority::current)
    }
}

/// A certificate authority with its key.
pub struct SigningAuthority {
    issuer: Issuer<'static, KeyPair>,
    expires: Timestamp,
    name: String,
}

impl SigningAuthority {
    pub fn from_pem(certificate: &str, key: &str) -> Result<Self, SigningError> {
        let key = KeyPair::from_pem(key).map_err(SigningError::Authority)?;
        let issuer = Issuer::from_ca_cert_pem(certificate, key).map_err(SigningError::Authority)?;
        let (_, block) = x509_parser::pem::parse_x509_pem(certificate.as_bytes())
            .map_err(|_| SigningError::AuthorityCertificate)?;
        let (_, parsed) = x509_parser::certificate::X509Certificate::from_der(&block.contents)
            .map_err(|_| SigningError::AuthorityCertificate)?;
        let end = parsed.validity().not_after.timestamp();
        let expires = Timestamp::from_second(end).map_err(|_| SigningError::AuthorityCertificate)?;
        let name = parsed.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
        Ok(Self { issuer, expires, name: name.unwrap_or_default().to_owned() })
    }

    /// Common name of the certificate.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Signs a DER request; returns a PEM certificate.
    pub fn sign(
        &self,
        request: &[u8],
        usages: &[String],
        life: SignedDuration,
        now: Timestamp,
    ) -> Result<String, SigningError> {
        if now >= self.expires {
            return Err(SigningError::Expired);
        }
        let mut signed =
            CertificateSigningRequestParams::from_der(&request.into()).map_err(SigningError::Request)?;
        let params = &mut signed.params;
        params.is_ca = IsCa::ExplicitNoCa;
        params.use_authority_key_identifier_extension = true;
        params.custom_extensions.clear();
        (params.key_usages, params.extended_key_usages) = purposes(usages)?;
        let end = if life < SHORT { life } else { life.saturating_sub(BACKDATE) };
        let end = now.saturating_add(end).unwrap_or(self.expires).min(self.expires);
        let begin = now.saturating_sub(BACKDATE).unwrap_or(now);
        let date = |time: Timestamp| {
            let since = std::time::Duration::from_secs(u64::try_from(time.as_second()).unwrap_or(0));
            let epoch = rcgen::date_time_ymd(1970, 1, 1);
            since.try_into().ok().and_then(|since| epoch.checked_add(since)).unwrap_or(epoch)
        };
        (params.not_before, params.not_after) = (date(begin), date(end));
        let certificate = signed.signed_by(&self.issuer).map_err(SigningError::Request)?;
        let subject = subject::of_request(request).ok_or(SigningError::Subject)?;
        let certificate = subject::replace(certificate.der(), &subject, self.issuer.key());
        Ok(subject::to_pem(&certificate.ok_or(SigningError::Subject)?))
    }
}

fn purposes(usages: &[String]) -> Result<(Vec<KeyUsagePurpose>, Vec<ExtendedKeyUsagePurpose>), SigningError> {
    let (mut keys, mut extended) = (Vec::new(), Vec::new());
    for usage in usages {
        let key = match usage.as_str() {
            "signing" | "digital signature" => Some(KeyUsagePurpose::DigitalSignature),
            "content commitment" => Some(KeyUsagePurpose::ContentCommitment),
            "key encipherment" => Some(KeyUsagePurpose::KeyEncipherment),
            "key agreement" => Some(KeyUsagePurpose::KeyAgreement),
            "data encipherment" => Some(KeyUsagePurpose::DataEncipherment),
            "cert sign" => Some(KeyUsagePurpose::KeyCertSign),
            "crl sign" => Some(KeyUsagePurpose::CrlSign),
            "encipher only" => Some(KeyUsagePurpose::EncipherOnly),
            "decipher only" => Some(KeyUsagePurpose::DecipherOnly),
            _ => None,
        };
        let other = match usage.as_str() {
            "any" => Some(ExtendedKeyUsagePurpose::Any),
            "server auth" => Some(ExtendedKeyUsagePurpose::ServerAuth),
            "client auth" => Some(ExtendedKeyUsagePurpose::ClientAuth),
            "code signing" => Some(ExtendedKeyUsagePurpose::CodeSigning),
            "email protection" | "s/mime" => Some(ExtendedKeyUsagePurpose::EmailProtection),
            "timestamping" => Some(ExtendedKeyUsagePurpose::TimeStamping),
            "ocsp signing" => Some(ExtendedKeyUsagePurpose::OcspSigning),
            "ipsec end system" => Some(ExtendedKeyUsagePurpose::Other(vec![1, 3, 6, 1, 5, 5, 7, 3, 5])),
            "ipsec tunnel" => Some(ExtendedKeyUsagePurpose::Other(vec![1, 3, 6, 1, 5, 5, 7, 3, 6])),
            "ipsec user" => Some(ExtendedKeyUsagePurpose::Other(vec![1, 3, 6, 1, 5, 5, 7, 3, 7])),
            "microsoft sgc" => Some(ExtendedKeyUsagePurpose::Other(vec![1, 3, 6, 1, 4, 1, 311, 10, 3, 3])),
            "netscape sgc" => Some(ExtendedKeyUsagePurpose::Other(vec![2, 16, 840, 1, 113_730, 4, 1])),
            _ => None,
        };
        if key.is_none() && other.is_none() {
            return Err(SigningError::Usage(usage.clone()));
        }
        keys.extend(key);
        extended.extend(other);
    }
    Ok((keys, extended))
}

/// Lifetime of the certificate, within the limits.
fn life(requested: Option<i32>, longest: SignedDuration) -> SignedDuration {
    let requested = requested.map(|seconds| SignedDuration::from_secs(seconds.into()).max(SHORTEST));
    requested.map_or(longest, |requested| requested.min(longest))
}

struct Signing {
    requests: Cache<CertificateSigningRequest>,
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    Box::new(Signing { requests: ctx.watch_self() })
}

#[async_trait]
impl Loop for Signing {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let Some(request) = self.requests.get_key(key) else { return Ok(Action::Done) };
        let Some(signers) = ctx.setting::<Signers>() else { return Ok(Action::Done) };
        if !has(&request, "Approved")
            || has(&request, "Denied")
            || has(&request, "Failed")
            || is_issued(&request)
        {
            return Ok(Action::Done);
        }
        let spec = &request.spec;
        let usages = spec.usages.clone().unwrap_or_default();
        let (parsed, der) = Request::parse(&spec.request.0)?;
        let Some(verdict) = parsed.judge(&spec.signer_name, &usages) else { return Ok(Action::Done) };
        let Some(authority) = signers.of(&spec.signer_name) else { return Ok(Action::Done) };
        let now = ctx.clock.now();
        let certificate = match verdict {
            Err(error) => Err(("SignerValidationFailure", error.to_string())),
            Ok(()) => Ok(authority.sign(
                &der,
                &usages,
                life(spec.expiration_seconds, Settings::of(ctx).signing_duration),
                now,
            )?),
        };
        let mut updated = request.as_ref().clone();
        let status = updated.status.get_or_insert_default();
        match certificate {
            Ok(pem) => status.certificate = Some(ByteString(pem.into_bytes())),
            Err((reason, message)) => {
                status.conditions.get_or_insert_default().push(CertificateSigningRequestCondition {
                    type_: "Failed".to_owned(),
                    status: "True".to_owned(),
                    reason: Some(reason.to_owned()),
                    message: Some(message),
                    last_update_time: Some(Time(now)),
                    ..CertificateSigningRequestCondition::default()
                });
            }
        }
        ctx.client.update_status(&updated).await?;
        Ok(Action::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::super::request::tests::make;
    use super::*;
    use crate::shared::fixture::at;
    use rcgen::{BasicConstraints, CertificateParams, DnType, PublicKeyData};

    const LIFE: SignedDuration = SignedDuration::from_hours(365 * 24);

    fn authority() -> SigningAuthority {
        named_authority("ca")
    }

    fn named_authority(name: &str) -> SigningAuthority {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        params.not_after = rcgen::date_time_ymd(2036, 1, 1);
        let certificate = params.self_signed(&key).expect("a certificate");
        SigningAuthority::from_pem(&certificate.pem(), &key.serialize_pem()).expect("an authority")
    }

    #[test]
    fn certificate_has_requested_subject_and_usages() {
        let authority = authority();
        let (_, der) = Request::parse(make("ann", "devs", &["host"]).as_bytes()).expect("a request");
        let usages = ["client auth".to_owned(), "digital signature".to_owned()];
        let now = at(1_790_000_000);
        let pem = authority.sign(&der, &usages, life(Some(3600), LIFE), now).expect("a certificate");
        let (_, block) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).expect("PEM");
        let (_, certificate) =
            x509_parser::certificate::X509Certificate::from_der(&block.contents).expect("DER");
        assert_eq!(
            certificate.subject().iter_common_name().next().and_then(|name| name.as_str().ok()),
            Some("ann")
        );
        assert!(!certificate.is_ca());
        let key = authority.issuer.key().public_key_raw();
        let key =
            aws_lc_rs::signature::UnparsedPublicKey::new(&aws_lc_rs::signature::ECDSA_P256_SHA256_ASN1, key);
        key.verify(certificate.tbs_certificate.as_ref(), &certificate.signature_value.data).expect("signed");
        let usage = certificate.extended_key_usage().expect("usages").expect("usages");
        assert!(usage.value.client_auth && !usage.value.server_auth);
        let validity = certificate.validity();
        assert_eq!(validity.not_before.timestamp(), now.as_second() - 300);
        assert_eq!(validity.not_after.timestamp(), now.as_second() + 3600);
        assert!(matches!(authority.sign(&der, &["no".to_owned()], LIFE, now), Err(SigningError::Usage(_))));
        assert!(matches!(authority.sign(&der, &usages, LIFE, at(3_000_000_000)), Err(SigningError::Expired)));
    }

    #[test]
    fn each_signer_uses_its_own_ca() {
        let issuer = |signers: &Signers, signer: &str| {
            let (_, der) = Request::parse(make("ann", "devs", &[]).as_bytes()).expect("a request");
            let usages = ["client auth".to_owned()];
            let pem = signers.of(signer)?.sign(&der, &usages, LIFE, at(1_790_000_000)).expect("signed");
            let (_, block) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).expect("PEM");
            let (_, certificate) =
                x509_parser::certificate::X509Certificate::from_der(&block.contents).expect("DER");
            let name = certificate.issuer().iter_common_name().next().and_then(|name| name.as_str().ok());
            name.map(str::to_owned)
        };
        let all = Signers::all(SharedAuthority::new(authority()));
        let mut each = Signers::default();
        for signer in &SIGNERS[..3] {
            each.set(signer, SharedAuthority::new(named_authority(signer)));
        }
        for signer in SIGNERS {
            assert_eq!(issuer(&all, signer).as_deref(), Some("ca"));
            let own = (signer != LEGACY).then_some(signer);
            assert_eq!(issuer(&each, signer).as_deref(), own);
        }
        assert_eq!(issuer(&all, "example.com/other"), None);
    }

    #[test]
    fn subject_with_several_organizations_is_preserved() {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "devs");
        // A distinguished name holds one entry per type, so the second is set by its OID.
        params.distinguished_name.push(DnType::CustomDnType(vec![2, 5, 4, 10]), "ops");
        params.distinguished_name.push(DnType::CommonName, "ann");
        let request = params.serialize_request(&key).expect("a request");
        let usages = ["client auth".to_owned()];
        let pem = authority().sign(request.der(), &usages, LIFE, at(1_790_000_000)).expect("a certificate");
        let (_, block) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).expect("PEM");
        let (_, certificate) =
            x509_parser::certificate::X509Certificate::from_der(&block.contents).expect("DER");
        let groups: Vec<_> =
            certificate.subject().iter_organization().filter_map(|o| o.as_str().ok()).collect();
        assert_eq!(groups, ["devs", "ops"]);
        assert_eq!(certificate.public_key().raw, key.subject_public_key_info());
    }

    #[test]
    fn certificate_lifetime_is_limited() {
        assert_eq!(life(None, LIFE), LIFE);
        assert_eq!(life(Some(7200), SignedDuration::from_hours(1)), SignedDuration::from_hours(1));
        assert_eq!(life(Some(1), LIFE), SHORTEST);
        assert_eq!(life(Some(i32::MAX), LIFE), LIFE);
        assert_eq!(life(Some(7200), LIFE), SignedDuration::from_hours(2));
    }
}
