//! The `--oidc-*` flags: a single token issuer. The authentication configuration file has more options.

use clap::Args;
use cluster::OidcFlags;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub struct OidcArgs {
    /// The URL of the OpenID issuer, only HTTPS scheme will be accepted. If set, it will be used to verify the OIDC
    /// JSON Web Token (JWT).
    #[arg(long, value_name = "URL", requires = "oidc_client_id", help_heading = "API server")]
    pub oidc_issuer_url: Option<String>,

    /// The client ID for the OpenID Connect client, must be set if oidc-issuer-url is set.
    #[arg(long, value_name = "ID", requires = "oidc_issuer_url", help_heading = "API server")]
    pub oidc_client_id: Option<String>,

    /// If set, the OpenID server's certificate will be verified by one of the authorities in the oidc-ca-file,
    /// otherwise the host's root CA set will be used.
    #[arg(long, value_name = "FILE", help_heading = "API server")]
    pub oidc_ca_file: Option<PathBuf>,

    /// The OpenID claim to use as the user name.
    #[arg(long, value_name = "CLAIM", default_value = "sub", help_heading = "API server")]
    pub oidc_username_claim: String,

    /// If provided, all usernames will be prefixed with this value. If not provided, username claims other than
    /// 'email' are prefixed by the issuer URL to avoid clashes. To skip any prefixing, provide the value '-'.
    #[arg(
        long,
        value_name = "PREFIX",
        default_value = "",
        hide_default_value = true,
        help_heading = "API server"
    )]
    pub oidc_username_prefix: String,

    /// If provided, the name of a custom OpenID Connect claim for specifying user groups.
    #[arg(
        long,
        value_name = "CLAIM",
        default_value = "",
        hide_default_value = true,
        help_heading = "API server"
    )]
    pub oidc_groups_claim: String,

    /// If provided, all groups will be prefixed with this value to prevent conflicts with other authentication
    /// strategies.
    #[arg(
        long,
        value_name = "PREFIX",
        default_value = "",
        hide_default_value = true,
        help_heading = "API server"
    )]
    pub oidc_groups_prefix: String,

    /// Comma-separated list of allowed JOSE asymmetric signing algorithms.
    #[arg(
        long,
        value_name = "ALG[,ALG]",
        value_delimiter = ',',
        default_value = "RS256",
        help_heading = "API server"
    )]
    pub oidc_signing_algs: Vec<String>,

    /// A key=value pair that describes a required claim in the ID Token. Repeat this flag to specify multiple claims.
    #[arg(long, value_name = "CLAIM=VALUE", value_parser = parse_claim, help_heading = "API server")]
    pub oidc_required_claim: Vec<(String, String)>,
}

impl OidcArgs {
    /// `None` without an issuer.
    pub fn flags(self) -> Option<OidcFlags> {
        Some(OidcFlags {
            issuer_url: self.oidc_issuer_url?,
            client_id: self.oidc_client_id?,
            ca_file: self.oidc_ca_file,
            username_claim: self.oidc_username_claim,
            username_prefix: self.oidc_username_prefix,
            groups_claim: self.oidc_groups_claim,
            groups_prefix: self.oidc_groups_prefix,
            signing_algs: self.oidc_signing_algs,
            required_claims: self.oidc_required_claim,
        })
    }
}

fn parse_claim(text: &str) -> Result<(String, String), String> {
    let (claim, value) = text.split_once('=').ok_or("CLAIM=VALUE")?;
    Ok((claim.to_owned(), value.to_owned()))
}
