//! Flags of the authorities that sign certificate signing requests: one for all signers, or one per signer.

use anyhow::{Result, bail, ensure};
use clap::Args;
use cluster::{Components, SigningPair};
use std::path::PathBuf;

#[derive(Args, Debug, Default)]
pub struct SigningArgs {
    /// Filename containing a PEM-encoded X509 CA certificate used to issue cluster-scoped certificates. If specified, no
    /// more specific --cluster-signing-* flag may be specified.
    #[arg(long, value_name = "FILE")]
    cluster_signing_cert_file: Option<PathBuf>,

    /// Filename containing a PEM-encoded RSA or ECDSA private key used to sign cluster-scoped certificates. If specified,
    /// no more specific --cluster-signing-* flag may be specified.
    #[arg(long, value_name = "FILE")]
    cluster_signing_key_file: Option<PathBuf>,

    /// Filename containing a PEM-encoded X509 CA certificate used to issue certificates for the
    /// kubernetes.io/kubelet-serving signer. If specified, --cluster-signing-{cert,key}-file must not be set.
    #[arg(long, value_name = "FILE")]
    cluster_signing_kubelet_serving_cert_file: Option<PathBuf>,

    /// Filename containing a PEM-encoded RSA or ECDSA private key used to sign certificates for the
    /// kubernetes.io/kubelet-serving signer. If specified, --cluster-signing-{cert,key}-file must not be set.
    #[arg(long, value_name = "FILE")]
    cluster_signing_kubelet_serving_key_file: Option<PathBuf>,

    /// Filename containing a PEM-encoded X509 CA certificate used to issue certificates for the
    /// kubernetes.io/kube-apiserver-client-kubelet signer. If specified, --cluster-signing-{cert,key}-file must not be set.
    #[arg(long, value_name = "FILE")]
    cluster_signing_kubelet_client_cert_file: Option<PathBuf>,

    /// Filename containing a PEM-encoded RSA or ECDSA private key used to sign certificates for the
    /// kubernetes.io/kube-apiserver-client-kubelet signer. If specified, --cluster-signing-{cert,key}-file must not be set.
    #[arg(long, value_name = "FILE")]
    cluster_signing_kubelet_client_key_file: Option<PathBuf>,

    /// Filename containing a PEM-encoded X509 CA certificate used to issue certificates for the
    /// kubernetes.io/kube-apiserver-client signer. If specified, --cluster-signing-{cert,key}-file must not be set.
    #[arg(long, value_name = "FILE")]
    cluster_signing_kube_apiserver_client_cert_file: Option<PathBuf>,

    /// Filename containing a PEM-encoded RSA or ECDSA private key used to sign certificates for the
    /// kubernetes.io/kube-apiserver-client signer. If specified, --cluster-signing-{cert,key}-file must not be set.
    #[arg(long, value_name = "FILE")]
    cluster_signing_kube_apiserver_client_key_file: Option<PathBuf>,

    /// Filename containing a PEM-encoded X509 CA certificate used to issue certificates for the
    /// kubernetes.io/legacy-unknown signer. If specified, --cluster-signing-{cert,key}-file must not be set.
    #[arg(long, value_name = "FILE")]
    cluster_signing_legacy_unknown_cert_file: Option<PathBuf>,

    /// Filename containing a PEM-encoded RSA or ECDSA private key used to sign certificates for the
    /// kubernetes.io/legacy-unknown signer. If specified, --cluster-signing-{cert,key}-file must not be set.
    #[arg(long, value_name = "FILE")]
    cluster_signing_legacy_unknown_key_file: Option<PathBuf>,
}

impl SigningArgs {
    /// Sets the authorities, certificate and key read from their files.
    pub fn apply(self, components: &mut Components) -> Result<()> {
        let rows = [
            (
                "kubernetes.io/kubelet-serving",
                "cluster-signing-kubelet-serving",
                self.cluster_signing_kubelet_serving_cert_file,
                self.cluster_signing_kubelet_serving_key_file,
            ),
            (
                "kubernetes.io/kube-apiserver-client-kubelet",
                "cluster-signing-kube-apiserver-client",
                self.cluster_signing_kubelet_client_cert_file,
                self.cluster_signing_kubelet_client_key_file,
            ),
            (
                "kubernetes.io/kube-apiserver-client",
                "cluster-signing-kube-apiserver",
                self.cluster_signing_kube_apiserver_client_cert_file,
                self.cluster_signing_kube_apiserver_client_key_file,
            ),
            (
                "kubernetes.io/legacy-unknown",
                "cluster-signing-legacy-unknown",
                self.cluster_signing_legacy_unknown_cert_file,
                self.cluster_signing_legacy_unknown_key_file,
            ),
        ];
        let is_specific = rows.iter().any(|(_, _, certificate, key)| certificate.is_some() || key.is_some());
        let is_general = self.cluster_signing_cert_file.is_some() || self.cluster_signing_key_file.is_some();
        ensure!(
            !(is_general && is_specific),
            "cannot specify --cluster-signing-{{cert,key}}-file and other --cluster-signing-*-file flags at the same time"
        );
        for (signer, flag, certificate, key) in rows {
            if let Some(files) = pair(flag, certificate, key)? {
                components.signers.push((signer, files));
            }
        }
        components.signing =
            pair("cluster-signing", self.cluster_signing_cert_file, self.cluster_signing_key_file)?;
        Ok(())
    }
}

/// Reads both files of an authority, or neither.
fn pair(flag: &str, certificate: Option<PathBuf>, key: Option<PathBuf>) -> Result<Option<SigningPair>> {
    match (certificate, key) {
        (None, None) => Ok(None),
        (Some(certificate), Some(key)) => Ok(Some(SigningPair::read(certificate, key)?)),
        (None, Some(_)) => bail!("{flag:?}: cannot specify key without cert"),
        (Some(_), None) => bail!("{flag:?}: cannot specify cert without key"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: SigningArgs,
    }

    fn configured(flags: &[String]) -> Result<Components> {
        let line = Line::try_parse_from(std::iter::once("x").chain(flags.iter().map(String::as_str)))?;
        let mut components = Components::default();
        line.arguments.apply(&mut components)?;
        Ok(components)
    }

    /// Flags of a signer, with files that contain the names of the flags.
    fn files(directory: &std::path::Path, signer: &str) -> [String; 2] {
        ["cert", "key"].map(|part| {
            let flag = format!("--cluster-signing-{signer}{part}-file");
            let path = directory.join(format!("{signer}{part}"));
            std::fs::write(&path, &flag).expect("written");
            format!("{flag}={}", path.display())
        })
    }

    #[test]
    fn signer_flags_set_signer_authorities() {
        let directory = tempfile::tempdir().expect("a directory");
        let parts = ["kubelet-serving-", "kubelet-client-", "kube-apiserver-client-", "legacy-unknown-"];
        let flags: Vec<String> = parts.iter().flat_map(|part| files(directory.path(), part)).collect();
        let components = configured(&flags).expect("valid");
        let names: Vec<&str> = components.signers.iter().map(|(signer, _)| *signer).collect();
        assert_eq!(names, cluster::SIGNERS);
        for ((_, pair), part) in components.signers.iter().zip(parts) {
            assert_eq!(pair.certificate, format!("--cluster-signing-{part}cert-file"));
            assert_eq!(pair.key, format!("--cluster-signing-{part}key-file"));
        }
        assert!(components.signing.is_none());
        // A missing file is an error, not an absent signer.
        std::fs::remove_file(directory.path().join("kubelet-client-key")).expect("removed");
        assert!(configured(&flags).is_err());
    }

    #[test]
    fn general_and_signer_specific_files_are_mutually_exclusive() {
        let directory = tempfile::tempdir().expect("a directory");
        let [certificate, key] = files(directory.path(), "");
        let [serving_certificate, serving_key] = files(directory.path(), "kubelet-serving-");
        let both = configured(&[certificate.clone(), key.clone()]).expect("valid");
        assert!(both.signing.is_some() && both.signers.is_empty());
        let mixed = [certificate.clone(), key, serving_certificate.clone(), serving_key.clone()];
        for (flags, want) in [
            (
                &mixed[..],
                "cannot specify --cluster-signing-{cert,key}-file and other --cluster-signing-*-file flags at the same time",
            ),
            (&[serving_certificate], "\"cluster-signing-kubelet-serving\": cannot specify cert without key"),
            (&[serving_key], "\"cluster-signing-kubelet-serving\": cannot specify key without cert"),
            (&[certificate], "\"cluster-signing\": cannot specify cert without key"),
        ] {
            let error = configured(flags).expect_err("refused").to_string();
            assert_eq!(error, want);
        }
    }
}
