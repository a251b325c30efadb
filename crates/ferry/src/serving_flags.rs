//! Flags of kube-apiserver for certificates, TLS, HTTP and timeouts.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use cluster::{Config, NamedFiles};

use crate::flags::parse_duration;

#[derive(Args, Debug)]
pub struct ServingArgs {
    /// Path to a client cert file for TLS to kubelets; by default a certificate of the cluster's own authority.
    #[arg(long, value_name = "FILE", requires = "kubelet_client_key", help_heading = "Certificates")]
    pub kubelet_client_certificate: Option<PathBuf>,

    /// Path to a client key file for TLS to kubelets.
    #[arg(long, value_name = "FILE", requires = "kubelet_client_certificate", help_heading = "Certificates")]
    pub kubelet_client_key: Option<PathBuf>,

    /// Path to a cert file for the certificate authority of kubelets; other kubelet certificates are rejected.
    #[arg(long, value_name = "FILE", help_heading = "Certificates")]
    pub kubelet_certificate_authority: Option<PathBuf>,

    /// Client certificate used to prove the identity of the aggregator when it must call out during a request.
    #[arg(long, value_name = "FILE", requires = "proxy_client_key_file", help_heading = "Certificates")]
    pub proxy_client_cert_file: Option<PathBuf>,

    /// Private key for the client certificate used to prove the identity of the aggregator when it must call out
    /// during a request.
    #[arg(long, value_name = "FILE", requires = "proxy_client_cert_file", help_heading = "Certificates")]
    pub proxy_client_key_file: Option<PathBuf>,

    /// Comma-separated list of cipher suites for the server (TLS 1.2); by default all secure ones.
    #[arg(long, value_name = "NAME[,NAME]", value_delimiter = ',', help_heading = "Certificates")]
    pub tls_cipher_suites: Vec<String>,

    /// Minimum TLS version supported: VersionTLS12, VersionTLS13.
    #[arg(
        long,
        value_name = "VERSION",
        default_value = "",
        hide_default_value = true,
        help_heading = "Certificates"
    )]
    pub tls_min_version: String,

    /// A pair of x509 certificate and private key file paths, optionally suffixed with a list of domain patterns:
    /// `example.crt,example.key:*.foo.com,foo.com`.
    #[arg(long, value_name = "CERT,KEY[:NAMES]", value_parser = parse_named, help_heading = "Certificates")]
    pub tls_sni_cert_key: Vec<NamedFiles>,

    /// Amount of time to retain events.
    #[arg(long, value_name = "DURATION", default_value = "1h0m0s", value_parser = parse_duration, help_heading = "API server")]
    pub event_ttl: Duration,

    /// Indicates the tolerationSeconds of the toleration for notReady:NoExecute that is added by default to every pod
    /// that does not already have such a toleration.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 300,
        allow_hyphen_values = true,
        help_heading = "API server"
    )]
    pub default_not_ready_toleration_seconds: i64,

    /// Indicates the tolerationSeconds of the toleration for unreachable:NoExecute that is added by default to every pod
    /// that does not already have such a toleration.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 300,
        allow_hyphen_values = true,
        help_heading = "API server"
    )]
    pub default_unreachable_toleration_seconds: i64,

    /// An optional field indicating the minimum number of seconds a handler must keep a request open before timing it
    /// out. Currently only honored by the watch request handler, which picks a randomized value above this number as
    /// the connection timeout, to spread out load.
    #[arg(long, value_name = "SECONDS", default_value_t = 1800, help_heading = "API server")]
    pub min_request_timeout: u32,

    /// To prevent HTTP/2 clients from getting stuck on a single apiserver, randomly close a connection (GOAWAY) with
    /// this probability per request. Min is 0 (off), Max is .02 (1/50 requests).
    #[arg(long, value_name = "CHANCE", default_value_t = 0.0, help_heading = "API server")]
    pub goaway_chance: f64,

    /// List of directives for HSTS; if empty, HSTS directives are not added. Example: max-age=31536000,preload
    #[arg(long, value_name = "DIRECTIVE[,...]", value_delimiter = ',', help_heading = "API server")]
    pub strict_transport_security_directives: Vec<String>,

    /// List of allowed origins for CORS: regular expressions. If this list is empty CORS will not be enabled.
    #[arg(long, value_name = "REGEX[,...]", value_delimiter = ',', help_heading = "API server")]
    pub cors_allowed_origins: Vec<String>,

    /// Time to delay the termination. During that time the server keeps serving requests normally. The endpoints /healthz
    /// and /livez will return success, but /readyz immediately returns failure.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = parse_duration, help_heading = "API server")]
    pub shutdown_delay_duration: Duration,

    /// If true the server will continue listening until all requests in flight have been drained; during this window all
    /// incoming requests will be rejected with a status code 429 and a 'Retry-After' response header.
    #[arg(long, value_name = "BOOL", default_value_t = false, action = clap::ArgAction::Set, num_args = 0..=1,
          default_missing_value = "true", require_equals = true, help_heading = "API server")]
    pub shutdown_send_retry_after: bool,
}

impl ServingArgs {
    /// Applies the flags to the configuration.
    pub fn apply(self, config: &mut Config) -> Result<()> {
        let files = &mut config.files;
        files.kubelet_client = self.kubelet_client_certificate.zip(self.kubelet_client_key);
        files.kubelet_ca = self.kubelet_certificate_authority;
        files.proxy_client = self.proxy_client_cert_file.zip(self.proxy_client_key_file);
        files.named = self.tls_sni_cert_key;
        files.tls = cluster::TlsOptions::parse(&self.tls_min_version, &self.tls_cipher_suites)
            .context("--tls-min-version and --tls-cipher-suites")?;
        let weak = files.tls.without_effect();
        if !weak.is_empty() {
            eprintln!("ferry: --tls-cipher-suites: not offered, because insecure: {}", weak.join(", "));
        }
        let tuning = &mut config.api.tuning;
        ensure!(!self.event_ttl.is_zero(), "--event-ttl must be more than zero");
        tuning.event_ttl = self.event_ttl;
        tuning.not_ready_toleration = self.default_not_ready_toleration_seconds;
        tuning.unreachable_toleration = self.default_unreachable_toleration_seconds;
        tuning.min_request_timeout = Duration::from_secs(self.min_request_timeout.into());
        ensure!(
            (0.0..=0.02).contains(&self.goaway_chance),
            "--goaway-chance can not be less than 0 or greater than 0.02"
        );
        config.serving.goaway_chance = self.goaway_chance;
        config.shutdown_delay = self.shutdown_delay_duration;
        config.serving.accept_while_draining = self.shutdown_send_retry_after;
        let chain = &mut config.api.chain;
        chain.retry_after_while_draining = self.shutdown_send_retry_after;
        if !self.strict_transport_security_directives.is_empty() {
            let value = self.strict_transport_security_directives.join("; ");
            let value = value.parse().context("--strict-transport-security-directives")?;
            chain.strict_transport_security = Some(value);
        }
        let origins = self.cors_allowed_origins.iter().map(String::as_str);
        chain.cors = cluster::Cors::new(origins).context("--cors-allowed-origins")?;
        Ok(())
    }
}

/// Parses `certificate,key` or `certificate,key:names`.
fn parse_named(text: &str) -> Result<NamedFiles, String> {
    let (files, names) = text.split_once(':').map_or((text, ""), |(files, names)| (files, names));
    let (certificate, key) =
        files.split_once(',').ok_or("expected comma separated certificate and key file paths")?;
    let names = names.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned);
    Ok(NamedFiles { certificate: certificate.trim().into(), key: key.trim().into(), names: names.collect() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes_flags::tests::configured;

    #[test]
    fn kubeadm_manifest_flags_set_config() {
        let config = configured(&[
            "--kubelet-client-certificate=/pki/kubelet.crt",
            "--kubelet-client-key=/pki/kubelet.key",
            "--kubelet-certificate-authority=/pki/kubelet-ca.crt",
            "--proxy-client-cert-file=/pki/proxy.crt",
            "--proxy-client-key-file=/pki/proxy.key",
            "--tls-min-version=VersionTLS13",
            "--tls-sni-cert-key=/a.crt,/a.key:*.foo.com,foo.com",
            "--event-ttl=10m",
            "--default-not-ready-toleration-seconds=20",
            "--min-request-timeout=60",
            "--goaway-chance=0.001",
            "--strict-transport-security-directives=max-age=31536000,preload",
            "--shutdown-delay-duration=70s",
            "--shutdown-send-retry-after",
        ]);
        let config = config.expect("accepted");
        assert_eq!(config.files.kubelet_client, Some(("/pki/kubelet.crt".into(), "/pki/kubelet.key".into())));
        assert_eq!(config.files.proxy_client, Some(("/pki/proxy.crt".into(), "/pki/proxy.key".into())));
        assert_eq!(config.files.named[0].names, ["*.foo.com", "foo.com"]);
        assert!(config.files.tls.only_tls13);
        assert_eq!(config.api.tuning.event_ttl, Duration::from_secs(600));
        assert_eq!(config.api.tuning.not_ready_toleration, 20);
        let header = config.api.chain.strict_transport_security.expect("a header");
        assert_eq!(header, "max-age=31536000; preload");
        assert_eq!(config.shutdown_delay, Duration::from_secs(70));
        assert!(config.serving.accept_while_draining && config.api.chain.retry_after_while_draining);
    }

    #[test]
    fn invalid_serving_flag_value_is_rejected() {
        for (flag, want) in [
            ("--tls-min-version=VersionTLS9", "unknown tls version"),
            ("--tls-cipher-suites=NONE", "not supported or doesn't exist"),
            ("--goaway-chance=0.5", "greater than 0.02"),
            ("--cors-allowed-origins=(", "--cors-allowed-origins"),
            ("--tls-sni-cert-key=a", "comma separated"),
            ("--kubelet-client-key=x", "--kubelet-client-certificate"),
            ("--event-ttl=0s", "more than zero"),
        ] {
            let error = configured(&[flag]).expect_err(flag);
            assert!(error.contains(want), "{flag}: {error}");
        }
    }
}
