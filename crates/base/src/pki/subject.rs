//! The user that the subject of a certificate or certificate request names. The API server, the kubelet, the approver
//! and the signer share this one function, so that no two of them map a subject to different users.

use x509_parser::oid_registry::{OID_X509_COMMON_NAME, OID_X509_ORGANIZATION_NAME};
use x509_parser::x509::X509Name;

/// The attribute 1.3.6.1.4.1.57683.2 of a subject, in DER: the UID of a user of Kubernetes.
const UID_ATTRIBUTE: &[u8] = &[0x2b, 0x06, 0x01, 0x04, 0x01, 0x83, 0xc2, 0x53, 0x02];

/// The user of a certificate: the common name, and the organizations as groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubjectUser {
    pub name: String,
    pub groups: Vec<String>,
    /// The UID, if the subject has one.
    pub uid: String,
}

/// Reason why a subject names no user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubjectError {
    #[error("the subject must have exactly one common name, found {0}")]
    CommonNames(usize),
    #[error("the common name is empty")]
    Empty,
    #[error("UID cannot be an empty string")]
    EmptyUid,
    #[error("expected 1 UID, but found multiple")]
    SeveralUids,
    #[error("a relative distinguished name must have one value, or organizations only")]
    MultiValued,
    #[error("the {0} is not a readable string")]
    NotText(&'static str),
    #[error("the certificate is malformed")]
    Malformed,
}

/// Maps a certificate, in DER, to its user. Callers verify the certificate.
pub fn user_of_certificate(der: &[u8]) -> Result<SubjectUser, SubjectError> {
    let (_, certificate) = x509_parser::parse_x509_certificate(der).map_err(|_| SubjectError::Malformed)?;
    user_of_subject(certificate.subject())
}

/// End of the validity of a certificate in DER, in seconds since the epoch.
pub fn expiry_of_certificate(der: &[u8]) -> Result<i64, SubjectError> {
    let (_, certificate) = x509_parser::parse_x509_certificate(der).map_err(|_| SubjectError::Malformed)?;
    Ok(certificate.validity().not_after.timestamp())
}

/// Host names of a certificate in DER; its common name if it has none.
pub fn dns_names_of_certificate(der: &[u8]) -> Vec<String> {
    let Ok((_, certificate)) = x509_parser::parse_x509_certificate(der) else { return Vec::new() };
    let alternatives = certificate.subject_alternative_name().ok().flatten();
    let names = alternatives.iter().flat_map(|extension| &extension.value.general_names);
    let names: Vec<String> = names
        .filter_map(|name| match name {
            x509_parser::extensions::GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
            _ => None,
        })
        .collect();
    if !names.is_empty() {
        return names;
    }
    let common = certificate.subject().iter_common_name().filter_map(|name| name.as_str().ok());
    common.map(str::to_ascii_lowercase).collect()
}

/// Maps a subject to its user. A subject without exactly one common name is rejected, and so is a relative
/// distinguished name with several values, except for organizations: Go's `crypto/x509` writes several organizations
/// as one such name.
pub fn user_of_subject(subject: &X509Name<'_>) -> Result<SubjectUser, SubjectError> {
    let names = subject.iter_common_name().count();
    if names != 1 {
        return Err(SubjectError::CommonNames(names));
    }
    let mut user = SubjectUser::default();
    for relative in subject.iter_rdn() {
        let count = relative.iter().count();
        let organizations = relative.iter().all(|value| *value.attr_type() == OID_X509_ORGANIZATION_NAME);
        if count == 0 || (count > 1 && !organizations) {
            return Err(SubjectError::MultiValued);
        }
        for value in relative.iter() {
            if *value.attr_type() == OID_X509_COMMON_NAME {
                value.as_str().map_err(|_| SubjectError::NotText("common name"))?.clone_into(&mut user.name);
            } else if value.attr_type().as_bytes() == UID_ATTRIBUTE {
                let uid = value.as_str().map_err(|_| SubjectError::NotText("UID"))?;
                if uid.is_empty() {
                    return Err(SubjectError::EmptyUid);
                }
                if !user.uid.is_empty() {
                    return Err(SubjectError::SeveralUids);
                }
                uid.clone_into(&mut user.uid);
            } else if organizations {
                let group = value.as_str().map_err(|_| SubjectError::NotText("organization"))?;
                user.groups.push(group.to_owned());
            }
        }
    }
    if user.name.is_empty() {
        return Err(SubjectError::Empty);
    }
    Ok(user)
}

#[cfg(test)]
mod tests {
    use super::*;
    use x509_parser::prelude::FromDer;

    const CN: u8 = 3;
    const COUNTRY: u8 = 6;
    const O: u8 = 10;
    const UTF8: u8 = 0x0c;
    const BMP: u8 = 0x1e;

    fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
        let length = u8::try_from(content.len()).expect("short");
        assert!(length < 0x80, "one byte of length");
        [&[tag, length], content].concat()
    }

    /// The DER of a name: one relative distinguished name per slice.
    fn name(parts: &[&[(u8, u8, &str)]]) -> Vec<u8> {
        let relative = |values: &&[(u8, u8, &str)]| {
            let values = values.iter().map(|(kind, tag, text)| {
                tlv(0x30, &[tlv(6, &[0x55, 4, *kind]), tlv(*tag, text.as_bytes())].concat())
            });
            tlv(0x31, &values.collect::<Vec<_>>().concat())
        };
        tlv(0x30, &parts.iter().map(relative).collect::<Vec<_>>().concat())
    }

    fn user(parts: &[&[(u8, u8, &str)]]) -> Result<SubjectUser, SubjectError> {
        let der = name(parts);
        let (_, parsed) = X509Name::from_der(&der).expect("a name");
        user_of_subject(&parsed)
    }

    fn expected(name: &str, groups: &[&str]) -> Result<SubjectUser, SubjectError> {
        Ok(SubjectUser {
            name: name.to_owned(),
            groups: groups.iter().map(ToString::to_string).collect(),
            uid: String::new(),
        })
    }

    #[test]
    fn uid_attribute_is_the_uid() {
        let relative = |oid: &[u8], text: &str| {
            tlv(0x31, &tlv(0x30, &[tlv(6, oid), tlv(UTF8, text.as_bytes())].concat()))
        };
        let user = |uids: &[&str]| {
            let mut parts = relative(&[0x55, 4, CN], "ann");
            parts.extend(uids.iter().flat_map(|uid| relative(UID_ATTRIBUTE, uid)));
            let der = tlv(0x30, &parts);
            let (_, parsed) = X509Name::from_der(&der).expect("a name");
            user_of_subject(&parsed).map(|user| user.uid)
        };
        assert_eq!(user(&["1-2"]), Ok("1-2".to_owned()));
        assert_eq!(user(&[]), Ok(String::new()));
        assert_eq!(user(&[""]), Err(SubjectError::EmptyUid));
        assert_eq!(user(&["1", "2"]), Err(SubjectError::SeveralUids));
    }

    #[test]
    fn subject_with_one_common_name_is_user_with_groups() {
        let node = user(&[&[(O, UTF8, "system:nodes")], &[(CN, UTF8, "system:node:n")]]);
        assert_eq!(node, expected("system:node:n", &["system:nodes"]));
        let other =
            user(&[&[(COUNTRY, UTF8, "DE")], &[(CN, UTF8, "ann")], &[(O, UTF8, "a")], &[(O, UTF8, "b")]]);
        assert_eq!(other, expected("ann", &["a", "b"]));
        assert_eq!(
            user(&[&[(O, UTF8, "a"), (O, UTF8, "b")], &[(CN, UTF8, "ann")]]),
            expected("ann", &["a", "b"])
        );
    }

    #[test]
    fn subject_without_exactly_one_common_name_is_rejected() {
        let two = [&[(CN, UTF8, "system:kube-controller-manager")][..], &[(O, UTF8, "system:nodes")]];
        let both = user(&[two[0], two[1], &[(CN, UTF8, "system:node:x")]]);
        assert_eq!(both, Err(SubjectError::CommonNames(2)));
        assert_eq!(user(&[two[1]]), Err(SubjectError::CommonNames(0)));
        assert_eq!(user(&[]), Err(SubjectError::CommonNames(0)));
        assert_eq!(user(&[&[(CN, UTF8, "a"), (CN, UTF8, "b")]]), Err(SubjectError::CommonNames(2)));
        assert_eq!(user(&[&[(CN, UTF8, "")]]), Err(SubjectError::Empty));
    }

    #[test]
    fn subject_with_multi_valued_name_is_rejected() {
        let mixed = user(&[&[(CN, UTF8, "ann"), (O, UTF8, "system:masters")]]);
        assert_eq!(mixed, Err(SubjectError::MultiValued));
        let hidden = user(&[&[(CN, UTF8, "ann")], &[(COUNTRY, UTF8, "DE"), (O, UTF8, "system:masters")]]);
        assert_eq!(hidden, Err(SubjectError::MultiValued));
    }

    #[test]
    fn subject_with_unreadable_string_is_rejected() {
        assert_eq!(user(&[&[(CN, BMP, "ab")]]), Err(SubjectError::NotText("common name")));
        let group = user(&[&[(CN, UTF8, "ann")], &[(O, BMP, "ab")]]);
        assert_eq!(group, Err(SubjectError::NotText("organization")));
    }
}
