//! One issuer configured by flags, the predecessor of the configuration file.

use super::config::{
    self, ALGORITHMS, ClaimMappings, ClaimValidationRule, Configuration, Issuer, JwtAuthenticator, Mapping,
};
use std::path::PathBuf;

/// The values of the `--oidc-*` flags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OidcFlags {
    pub issuer_url: String,
    pub client_id: String,
    pub ca_file: Option<PathBuf>,
    pub username_claim: String,
    pub username_prefix: String,
    pub groups_claim: String,
    pub groups_prefix: String,
    pub signing_algs: Vec<String>,
    /// Required claims with their values.
    pub required_claims: Vec<(String, String)>,
}

impl OidcFlags {
    /// The equivalent configuration.
    pub fn configuration(&self) -> Result<Configuration, String> {
        if let Some(unknown) = self.signing_algs.iter().find(|name| !ALGORITHMS.contains(&name.as_str())) {
            return Err(format!("unsupported signing algorithm {unknown}"));
        }
        let certificate_authority = match &self.ca_file {
            Some(path) => std::fs::read_to_string(path)
                .map_err(|error| format!("failed to read {}: {error}", path.display()))?,
            None => String::new(),
        };
        // Without a prefix flag, names other than email addresses get the issuer as prefix; a dash disables it.
        let username_prefix = match (self.username_prefix.as_str(), self.username_claim.as_str()) {
            ("-", _) | ("", "email") => String::new(),
            ("", _) => format!("{}#", self.issuer_url),
            (prefix, _) => prefix.to_owned(),
        };
        let groups = if self.groups_claim.is_empty() {
            Mapping::default()
        } else {
            Mapping {
                claim: self.groups_claim.clone(),
                prefix: Some(self.groups_prefix.clone()),
                ..Mapping::default()
            }
        };
        let rules = self.required_claims.iter().map(|(claim, value)| ClaimValidationRule {
            claim: claim.clone(),
            required_value: value.clone(),
            ..ClaimValidationRule::default()
        });
        let username = Mapping {
            claim: self.username_claim.clone(),
            prefix: Some(username_prefix),
            ..Mapping::default()
        };
        let authenticator = JwtAuthenticator {
            issuer: Issuer {
                url: self.issuer_url.clone(),
                certificate_authority,
                audiences: vec![self.client_id.clone()],
                ..Issuer::default()
            },
            claim_validation_rules: rules.collect(),
            claim_mappings: ClaimMappings { username, groups, ..ClaimMappings::default() },
            algorithms: self.signing_algs.clone(),
            ..JwtAuthenticator::default()
        };
        let configuration = Configuration { jwt: vec![authenticator], anonymous: None };
        config::check(&configuration)?;
        Ok(configuration)
    }
}
