//! CertificateSigningRequest.

use crate::{Kind, Scope};

pub static KIND: Kind = Kind {
    ..Kind::new(
        "certificates.k8s.io",
        "v1",
        "CertificateSigningRequest",
        "certificatesigningrequests",
        Scope::Cluster,
    )
};
