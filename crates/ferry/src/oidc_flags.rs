//! The `--oidc-*` flags: one issuer of tokens. A configuration file can say more.

use clap::Args;
use cluster::OidcFlags;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub struct OidcArgs {
    /// An issuer of OpenID Connect tokens that are accepted.
    #[arg(long, value_name = "URL", requires = "oidc_client_id", help_heading = "API server")]
    pub oidc_issuer_url: Option<String>,

    /// Whom its tokens are for.
    #[arg(long, value_name = "ID", requires = "oidc_issuer_url", help_heading = "API server")]
    pub oidc_client_id: Option<String>,

    /// Authorities of the issuer's certificate; by default those that the system trusts.
    #[arg(long, value_name = "FILE", help_heading = "API server")]
    pub oidc_ca_file: Option<PathBuf>,

    /// The claim that names the user.
    #[arg(long, value_name = "CLAIM", default_value = "sub", help_heading = "API server")]
    pub oidc_username_claim: String,

    /// What precedes users' names; by default the issuer and a #, `-` for nothing.
    #[arg(
        long,
        value_name = "PREFIX",
        default_value = "",
        hide_default_value = true,
        help_heading = "API server"
    )]
    pub oidc_username_prefix: String,

    /// The claim with the user's groups.
    #[arg(
        long,
        value_name = "CLAIM",
        default_value = "",
        hide_default_value = true,
        help_heading = "API server"
    )]
    pub oidc_groups_claim: String,

    /// What precedes groups' names.
    #[arg(
        long,
        value_name = "PREFIX",
        default_value = "",
        hide_default_value = true,
        help_heading = "API server"
    )]
    pub oidc_groups_prefix: String,

    /// Algorithms that tokens may be signed with.
    #[arg(
        long,
        value_name = "ALG[,ALG]",
        value_delimiter = ',',
        default_value = "RS256",
        help_heading = "API server"
    )]
    pub oidc_signing_algs: Vec<String>,

    /// A claim that must be in a token, with its value.
    #[arg(long, value_name = "CLAIM=VALUE", value_parser = parse_claim, help_heading = "API server")]
    pub oidc_required_claim: Vec<(String, String)>,
}

impl OidcArgs {
    /// `None`: there is no issuer.
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
