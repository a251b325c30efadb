//! Self-signed serving certificate of a kubelet without a configured one.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use jiff::Timestamp;

use super::{Authority, Identity, PkiError, ServingNames, write_error};

/// A kubelet's own authority and its certificates.
#[derive(Debug)]
pub struct KubeletPki {
    pub serving: Identity,
}

impl KubeletPki {
    /// Loads the certificate from `directory`, or creates one there; recreates it when it expires soon or lacks a
    /// name.
    pub fn open(directory: &Path, names: &ServingNames, now: Timestamp) -> Result<Self, PkiError> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(write_error(directory))?;
        let path = directory.join("kubelet.pem");
        if let Some(serving) = Identity::load(&path)?
            && !serving.is_due(now)
            && serving.covers(names)
        {
            return Ok(Self { serving });
        }
        let authority = Authority::create(directory, "kubelet-ca", "ferry-kubelet-ca", now)?;
        let serving = authority.issue_serving("kubelet", names, now)?;
        serving.save(&path)?;
        Ok(Self { serving })
    }
}

impl Identity {
    /// A serving certificate in memory, signed by an authority whose key is discarded, as Kubernetes' components
    /// generate without certificate files.
    pub fn in_memory(name: &str, names: &ServingNames, now: Timestamp) -> Result<Self, PkiError> {
        let (authority, _) = Authority::generate(&format!("{name}-ca"), now)?;
        authority.issue_serving(name, names, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubelet_certificate_is_reused_until_a_name_changes() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut names = ServingNames::default();
        names.dns.insert("n1".to_owned());
        let now = Timestamp::now();
        let open =
            |names: &ServingNames| KubeletPki::open(directory.path(), names, now).expect("a certificate");
        let first = open(&names).serving;
        assert_eq!(open(&names).serving.chain, first.chain);
        names.dns.insert("n2".to_owned());
        assert_ne!(open(&names).serving.chain, first.chain);
    }
}
