//! Content of a certificate request, and the rules of each signer. Pure.

use std::collections::BTreeSet;

use base::pki::{SubjectError, SubjectUser, user_of_subject};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer;

pub const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
pub const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
pub const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";
pub const LEGACY: &str = "kubernetes.io/legacy-unknown";

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    #[error("PEM block type must be CERTIFICATE REQUEST")]
    Pem,
    #[error("the request is malformed")]
    Malformed,
    #[error("{0}")]
    Subject(SubjectError),
    #[error("subject organization is not system:nodes")]
    Organization,
    #[error("subject common name does not begin with system:node:")]
    CommonName,
    #[error("DNS or IP subjectAltName is required")]
    NamesRequired,
    #[error("{0} subjectAltNames are not allowed")]
    Names(&'static str),
    #[error("usages did not match {0:?}")]
    Usages(&'static [&'static str]),
    #[error("invalid usage for client certificate: {0}")]
    ClientUsage(String),
    #[error("missing required usage for client certificate: client auth")]
    NoClientAuth,
}

/// Parts of a request that signers check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// User that the certificate would authenticate.
    subject: Result<SubjectUser, SubjectError>,
    pub dns: usize,
    pub ips: usize,
    pub emails: usize,
    pub uris: usize,
}

impl Request {
    /// Parses a PEM request; returns its DER too.
    pub fn parse(pem: &[u8]) -> Result<(Self, Vec<u8>), RequestError> {
        let (_, block) = x509_parser::pem::parse_x509_pem(pem).map_err(|_| RequestError::Pem)?;
        if block.label != "CERTIFICATE REQUEST" {
            return Err(RequestError::Pem);
        }
        let (_, parsed) =
            X509CertificationRequest::from_der(&block.contents).map_err(|_| RequestError::Malformed)?;
        let subject = &parsed.certification_request_info.subject;
        let subject = user_of_subject(subject);
        let mut request = Self { subject, dns: 0, ips: 0, emails: 0, uris: 0 };
        for extension in parsed.requested_extensions().into_iter().flatten() {
            let ParsedExtension::SubjectAlternativeName(names) = extension else { continue };
            for name in &names.general_names {
                match name {
                    GeneralName::DNSName(_) => request.dns += 1,
                    GeneralName::IPAddress(_) => request.ips += 1,
                    GeneralName::RFC822Name(_) => request.emails += 1,
                    GeneralName::URI(_) => request.uris += 1,
                    _ => {}
                }
            }
        }
        Ok((request, block.contents.clone()))
    }

    /// Checks the rules of the signer of this name; `None` for an unknown signer.
    #[must_use]
    pub fn judge(&self, signer: &str, usages: &[String]) -> Option<Result<(), RequestError>> {
        let verdict = match signer {
            CLIENT => client_usages(usages),
            KUBELET_CLIENT => self.kubelet_client(usages),
            KUBELET_SERVING => self.kubelet_serving(usages),
            LEGACY => Ok(()),
            _ => return None,
        };
        Some(self.user().and(verdict))
    }

    /// User that the certificate would authenticate.
    pub fn user(&self) -> Result<&SubjectUser, RequestError> {
        self.subject.as_ref().map_err(|error| RequestError::Subject(error.clone()))
    }

    fn node(&self) -> Result<(), RequestError> {
        let user = self.user()?;
        if user.groups != ["system:nodes"] {
            return Err(RequestError::Organization);
        }
        if !user.name.starts_with("system:node:") {
            return Err(RequestError::CommonName);
        }
        Ok(())
    }

    pub fn kubelet_client(&self, usages: &[String]) -> Result<(), RequestError> {
        self.node()?;
        for (count, kind) in [(self.dns, "DNS"), (self.emails, "Email"), (self.ips, "IP"), (self.uris, "URI")]
        {
            if count > 0 {
                return Err(RequestError::Names(kind));
            }
        }
        exactly(usages, &["client auth", "digital signature", "key encipherment"])
    }

    fn kubelet_serving(&self, usages: &[String]) -> Result<(), RequestError> {
        self.node()?;
        if self.dns == 0 && self.ips == 0 {
            return Err(RequestError::NamesRequired);
        }
        for (count, kind) in [(self.emails, "Email"), (self.uris, "URI")] {
            if count > 0 {
                return Err(RequestError::Names(kind));
            }
        }
        exactly(usages, &["digital signature", "key encipherment", "server auth"])
    }
}

/// Requires these usages and no others; key encipherment may be missing, since only RSA needs it.
fn exactly(usages: &[String], wanted: &'static [&'static str]) -> Result<(), RequestError> {
    let given: BTreeSet<&str> = usages.iter().map(String::as_str).collect();
    let all: BTreeSet<&str> = wanted.iter().copied().collect();
    let mut without = all.clone();
    without.remove("key encipherment");
    if given == all || given == without { Ok(()) } else { Err(RequestError::Usages(wanted)) }
}

fn client_usages(usages: &[String]) -> Result<(), RequestError> {
    let allowed = ["digital signature", "key encipherment", "client auth"];
    if let Some(strange) = usages.iter().find(|usage| !allowed.contains(&usage.as_str())) {
        return Err(RequestError::ClientUsage(strange.clone()));
    }
    if usages.iter().any(|usage| usage == "client auth") { Ok(()) } else { Err(RequestError::NoClientAuth) }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

    /// PEM request for this subject and these names.
    pub fn make(common_name: &str, organization: &str, dns: &[&str]) -> String {
        let names: Vec<String> = dns.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).expect("names");
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.distinguished_name.push(DnType::OrganizationName, organization);
        let key = KeyPair::generate().expect("a key");
        params.serialize_request(&key).expect("a request").pem().expect("PEM")
    }

    /// PEM request whose subject has two common names, that of a node last.
    pub fn make_two_names() -> String {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        // A distinguished name holds one entry per type, so the first common name is set by its OID.
        params
            .distinguished_name
            .push(DnType::CustomDnType(vec![2, 5, 4, 3]), "system:kube-controller-manager");
        params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
        params.distinguished_name.push(DnType::CommonName, "system:node:x");
        let key = KeyPair::generate().expect("a key");
        params.serialize_request(&key).expect("a request").pem().expect("PEM")
    }

    #[test]
    fn request_with_two_common_names_is_rejected_by_every_signer() {
        let (request, _) = Request::parse(make_two_names().as_bytes()).expect("a request");
        let client = usages(&["client auth", "digital signature"]);
        for signer in [CLIENT, KUBELET_CLIENT, KUBELET_SERVING, LEGACY] {
            let verdict = request.judge(signer, &client);
            assert_eq!(verdict, Some(Err(RequestError::Subject(SubjectError::CommonNames(2)))), "{signer}");
        }
    }

    fn usages(list: &[&str]) -> Vec<String> {
        list.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn signer_rules_accept_and_reject_requests() {
        let (kubelet, _) =
            Request::parse(make("system:node:n", "system:nodes", &[]).as_bytes()).expect("a request");
        let (serving, _) =
            Request::parse(make("system:node:n", "system:nodes", &["n"]).as_bytes()).expect("a request");
        let (person, _) = Request::parse(make("ann", "devs", &[]).as_bytes()).expect("a request");
        assert_eq!((kubelet.dns, serving.dns), (0, 1));
        assert_eq!(person.user().map(|user| user.name.as_str()), Ok("ann"));
        let client = usages(&["client auth", "digital signature"]);
        let server = usages(&["server auth", "digital signature", "key encipherment"]);
        for (request, signer, usages, expected) in [
            (&kubelet, KUBELET_CLIENT, &client, Some(true)),
            (&person, KUBELET_CLIENT, &client, Some(false)),
            (&serving, KUBELET_CLIENT, &client, Some(false)),
            (&kubelet, KUBELET_CLIENT, &server, Some(false)),
            (&serving, KUBELET_SERVING, &server, Some(true)),
            (&kubelet, KUBELET_SERVING, &server, Some(false)),
            (&person, CLIENT, &client, Some(true)),
            (&person, CLIENT, &server, Some(false)),
            (&person, LEGACY, &server, Some(true)),
            (&person, "example.com/own", &client, None),
        ] {
            let verdict = request.judge(signer, usages).map(|verdict| verdict.is_ok());
            assert_eq!(verdict, expected, "{signer} {usages:?}");
        }
        assert_eq!(Request::parse(b"nonsense"), Err(RequestError::Pem));
    }
}
