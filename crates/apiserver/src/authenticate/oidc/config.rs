//! `AuthenticationConfiguration`: accepted issuers and their claim mappings.

use crate::configuration::{self, ConfigurationError};
use expressions::{Environment, Program, Type};
use serde::Deserialize;
use std::collections::HashSet;
use std::path::Path;
use std::sync::LazyLock;

const GROUP: &str = "apiserver.config.k8s.io";
const KIND: &str = "AuthenticationConfiguration";
static CLAIMS: LazyLock<Environment> =
    LazyLock::new(|| Environment::new([("claims", Type::map(Type::String, Type::Dyn))]));
static USER: LazyLock<Environment> = LazyLock::new(|| {
    let strings = || Type::list(Type::String);
    let fields = [
        ("username", Type::String),
        ("uid", Type::String),
        ("groups", strings()),
        ("extra", Type::map(Type::String, strings())),
    ];
    Environment::new([("user", Type::object("kubernetes.UserInfo", fields))])
});
/// Supported signature algorithms.
pub const ALGORITHMS: [&str; 9] =
    ["RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512"];

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Configuration {
    pub jwt: Vec<JwtAuthenticator>,
    pub anonymous: Option<Anonymous>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Anonymous {
    pub enabled: bool,
    #[serde(default)]
    pub conditions: Vec<AnonymousCondition>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct AnonymousCondition {
    pub path: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct JwtAuthenticator {
    pub issuer: Issuer,
    pub claim_validation_rules: Vec<ClaimValidationRule>,
    pub claim_mappings: ClaimMappings,
    pub user_validation_rules: Vec<UserValidationRule>,
    /// Not part of the file: algorithms allowed by `--oidc-signing-algs`; empty: all.
    #[serde(skip)]
    pub algorithms: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct Issuer {
    pub url: String,
    #[serde(rename = "discoveryURL")]
    pub discovery_url: Option<String>,
    pub certificate_authority: String,
    pub audiences: Vec<String>,
    pub audience_match_policy: String,
    pub egress_selector_type: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct ClaimValidationRule {
    pub claim: String,
    pub required_value: String,
    pub expression: String,
    pub message: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClaimMappings {
    pub username: Mapping,
    pub groups: Mapping,
    pub uid: Mapping,
    pub extra: Vec<ExtraMapping>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Mapping {
    pub claim: String,
    pub prefix: Option<String>,
    pub expression: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct ExtraMapping {
    pub key: String,
    pub value_expression: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UserValidationRule {
    pub expression: String,
    pub message: String,
}

/// Mapping of claims to a part of the user.
#[derive(Debug)]
pub enum Source {
    Claim { name: String, prefix: String },
    Expression(Program),
}

/// Validation rule for claims.
#[derive(Debug)]
pub enum ClaimRule {
    Required { claim: String, value: String },
    Expression { expression: Program, message: String },
}

/// The rules of one issuer, compiled.
#[derive(Debug)]
pub struct Rules {
    pub claims: Vec<ClaimRule>,
    pub username: Source,
    pub groups: Option<Source>,
    pub uid: Option<Source>,
    pub extra: Vec<(String, Program)>,
    pub user: Vec<(Program, String)>,
}

pub fn read(path: &Path) -> Result<Configuration, ConfigurationError> {
    let found: Configuration = configuration::read(path, GROUP, &["v1", "v1beta1"], KIND)?;
    check(&found).map_err(|reason| ConfigurationError::invalid(path, reason))?;
    Ok(found)
}

/// Validates the configuration as a whole.
pub fn check(configuration: &Configuration) -> Result<(), String> {
    let (mut urls, mut discoveries) = (HashSet::new(), HashSet::new());
    for (index, authenticator) in configuration.jwt.iter().enumerate() {
        let path = format!("jwt[{index}]");
        let issuer = &authenticator.issuer;
        check_issuer(issuer).map_err(|why| format!("{path}.issuer.{why}"))?;
        if !urls.insert(&issuer.url) {
            return Err(format!("{path}.issuer.url: Duplicate value: {:?}", issuer.url));
        }
        if let Some(url) = &issuer.discovery_url
            && !discoveries.insert(url)
        {
            return Err(format!("{path}.issuer.discoveryURL: Duplicate value: {url:?}"));
        }
        authenticator.compile().map_err(|why| format!("{path}.{why}"))?;
    }
    let anonymous = configuration.anonymous.as_ref();
    if anonymous.is_some_and(|anonymous| !anonymous.enabled && !anonymous.conditions.is_empty()) {
        return Err(
            "anonymous.conditions: Invalid value: enabled should be set to true when conditions are defined"
                .to_owned(),
        );
    }
    Ok(())
}

fn check_issuer(issuer: &Issuer) -> Result<(), String> {
    check_url("url", &issuer.url)?;
    if let Some(url) = &issuer.discovery_url {
        check_url("discoveryURL", url)?;
        if url.trim_end_matches('/') == issuer.url.trim_end_matches('/') {
            return Err(format!(
                "discoveryURL: Invalid value: {url:?}: discoveryURL must be different from URL"
            ));
        }
    }
    if issuer.audiences.is_empty() {
        return Err("audiences: Required value: at least one jwt[*].issuer.audiences is required".to_owned());
    }
    if issuer.audiences.iter().any(String::is_empty) {
        return Err("audiences: Required value: audience can't be empty".to_owned());
    }
    if issuer.audiences.len() > 1 && issuer.audience_match_policy != "MatchAny" {
        return Err(format!(
            "audienceMatchPolicy: Invalid value: {:?}: audienceMatchPolicy must be MatchAny for multiple audiences",
            issuer.audience_match_policy
        ));
    }
    if !matches!(issuer.audience_match_policy.as_str(), "" | "MatchAny") {
        return Err(format!(
            "audienceMatchPolicy: Invalid value: {:?}: audienceMatchPolicy must be empty or MatchAny for single audience",
            issuer.audience_match_policy
        ));
    }
    if !issuer.egress_selector_type.is_empty() {
        return Err("egressSelectorType: Forbidden: egressSelectorType is not supported".to_owned());
    }
    Ok(())
}

fn check_url(field: &str, url: &str) -> Result<(), String> {
    let invalid = |why: &str| Err(format!("{field}: Invalid value: {url:?}: {why}"));
    if url.is_empty() {
        return Err(format!("{field}: Required value: URL is required"));
    }
    let Some(rest) = url.strip_prefix("https://") else { return invalid("URL scheme must be https") };
    if rest.split('/').next().is_some_and(|authority| authority.contains('@')) {
        return invalid("URL must not contain a username or password");
    }
    if url.contains('?') {
        return invalid("URL must not contain a query");
    }
    if url.contains('#') {
        return invalid("URL must not contain a fragment");
    }
    Ok(())
}

impl JwtAuthenticator {
    /// Compiles all expressions and rejects contradictions.
    pub fn compile(&self) -> Result<Rules, String> {
        let mut claims = Vec::new();
        for (index, rule) in self.claim_validation_rules.iter().enumerate() {
            claims.push(claim_rule(rule).map_err(|why| format!("claimValidationRules[{index}]{why}"))?);
        }
        let mappings = &self.claim_mappings;
        let username = source(&mappings.username, "claimMappings.username", &[Type::String], true)?
            .ok_or("claimMappings.username: Required value: claim or expression is required")?;
        let groups = source(
            &mappings.groups,
            "claimMappings.groups",
            &[Type::list(Type::String), Type::String],
            true,
        )?;
        let uid = source(&mappings.uid, "claimMappings.uid", &[Type::String], false)?;
        let mut extra = Vec::new();
        for (index, mapping) in mappings.extra.iter().enumerate() {
            let path = format!("claimMappings.extra[{index}]");
            check_extra_key(&mapping.key).map_err(|why| format!("{path}.key: {why}"))?;
            if extra.iter().any(|(key, _)| *key == mapping.key) {
                return Err(format!("{path}.key: Duplicate value: {:?}", mapping.key));
            }
            let compiled =
                compile(&CLAIMS, &mapping.value_expression, &[Type::String, Type::list(Type::String)]);
            extra.push((
                mapping.key.clone(),
                compiled.map_err(|why| format!("{path}.valueExpression: {why}"))?,
            ));
        }
        let mut user = Vec::new();
        for (index, rule) in self.user_validation_rules.iter().enumerate() {
            let compiled = compile(&USER, &rule.expression, &[Type::Bool]);
            let compiled =
                compiled.map_err(|why| format!("userValidationRules[{index}].expression: {why}"))?;
            user.push((compiled, rule.message.clone()));
        }
        let rules = Rules { claims, username, groups, uid, extra, user };
        check_email(&rules)?;
        Ok(rules)
    }
}

fn compile(environment: &Environment, text: &str, results: &[Type]) -> Result<Program, String> {
    if text.is_empty() {
        return Err("Required value: expression is required".to_owned());
    }
    environment.compile_about(text, results).map_err(|error| format!("Invalid value: {text:?}: {error}"))
}

fn claim_rule(rule: &ClaimValidationRule) -> Result<ClaimRule, String> {
    match (rule.claim.is_empty(), rule.expression.is_empty()) {
        (true, true) => Err(": Required value: claim or expression is required".to_owned()),
        (false, false) => {
            Err(format!(": Invalid value: {:?}: claim and expression can't both be set", rule.claim))
        }
        (false, true) if !rule.message.is_empty() => Err(format!(
            ".message: Invalid value: {:?}: message can't be set when claim is set",
            rule.message
        )),
        (false, true) => {
            Ok(ClaimRule::Required { claim: rule.claim.clone(), value: rule.required_value.clone() })
        }
        (true, false) if !rule.required_value.is_empty() => Err(format!(
            ".requiredValue: Invalid value: {:?}: requiredValue can't be set when expression is set",
            rule.required_value
        )),
        (true, false) => {
            let expression = compile(&CLAIMS, &rule.expression, &[Type::Bool]);
            let expression = expression.map_err(|why| format!(".expression: {why}"))?;
            Ok(ClaimRule::Expression { expression, message: rule.message.clone() })
        }
    }
}

fn source(mapping: &Mapping, path: &str, results: &[Type], prefixed: bool) -> Result<Option<Source>, String> {
    match (mapping.claim.is_empty(), mapping.expression.is_empty()) {
        (true, true) if mapping.prefix.is_some() => {
            Err(format!("{path}.prefix: Invalid value: prefix can't be set when claim is not set"))
        }
        (true, true) => Ok(None),
        (false, false) => Err(format!("{path}: Invalid value: \"\": claim and expression can't both be set")),
        (true, false) if mapping.prefix.is_some() => {
            Err(format!("{path}.prefix: Invalid value: prefix can't be set when expression is set"))
        }
        (true, false) => {
            let expression = compile(&CLAIMS, &mapping.expression, results);
            expression.map(|e| Some(Source::Expression(e))).map_err(|why| format!("{path}.expression: {why}"))
        }
        (false, true) => match &mapping.prefix {
            None if prefixed => Err(format!(
                "{path}.prefix: Required value: prefix is required when claim is set. It can be set to an empty string to disable prefixing"
            )),
            prefix => Ok(Some(Source::Claim {
                name: mapping.claim.clone(),
                prefix: prefix.clone().unwrap_or_default(),
            })),
        },
    }
}

fn check_extra_key(key: &str) -> Result<(), String> {
    let invalid = |why: &str| Err(format!("Invalid value: {key:?}: {why}"));
    if key.is_empty() {
        return Err("Required value: key is required".to_owned());
    }
    let Some((domain, path)) = key.split_once('/') else {
        return invalid("must be a domain-prefixed path (such as \"acme.io/foo\")");
    };
    if domain.is_empty() || path.is_empty() {
        return invalid("must be a domain-prefixed path (such as \"acme.io/foo\")");
    }
    if key != key.to_lowercase() {
        return invalid("must be lowercase");
    }
    let reserved = ["k8s.io", "kubernetes.io"];
    let is_in = |parent: &&str| domain == *parent || domain.ends_with(&format!(".{parent}"));
    if reserved.iter().any(is_in) {
        return invalid("k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use");
    }
    Ok(())
}

/// An unverified email address must not become a user name: expressions that use it must also check `email_verified`.
fn check_email(rules: &Rules) -> Result<(), String> {
    let Source::Expression(username) = &rules.username else { return Ok(()) };
    let uses = |expression: &Program, claim: &str| {
        let text = expression.text();
        text.match_indices(&format!("claims.{claim}"))
            .chain(text.match_indices(&format!("claims.?{claim}")))
            .any(|(at, found)| {
                !text[at + found.len()..]
                    .starts_with(|next: char| next.is_ascii_alphanumeric() || next == '_')
            })
    };
    if !uses(username, "email") {
        return Ok(());
    }
    let in_rules = rules.claims.iter().any(|rule| match rule {
        ClaimRule::Expression { expression, .. } => uses(expression, "email_verified"),
        ClaimRule::Required { .. } => false,
    });
    let in_extra = rules.extra.iter().any(|(_, expression)| uses(expression, "email_verified"));
    if in_rules || in_extra || uses(username, "email_verified") {
        return Ok(());
    }
    Err(format!(
        "claimMappings.username.expression: Invalid value: {:?}: claims.email_verified must be used in claimMappings.username.expression or claimMappings.extra[*].valueExpression or claimValidationRules[*].expression when claims.email is used in claimMappings.username.expression",
        username.text()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(jwt: &str) -> Result<Configuration, String> {
        let text = format!("apiVersion: {GROUP}/v1\nkind: {KIND}\njwt:\n{jwt}");
        let found = configuration::parse(text.as_bytes(), GROUP, &["v1"], KIND)?;
        check(&found).map(|()| found)
    }

    #[test]
    fn authentication_configuration_invalid_is_rejected() {
        let with =
            |issuer: &str, rest: &str| format!("- issuer: {{{issuer}}}\n  claimMappings: {{{rest}}}\n");
        let issuer = "url: 'https://i', audiences: [a]";
        let name = "username: {claim: sub, prefix: ''}";
        assert!(parsed(&with(issuer, name)).is_ok());
        for (text, want) in [
            (with("url: 'http://i', audiences: [a]", name), "URL scheme must be https"),
            (with("url: 'https://i'", name), "issuer.audiences: Required value"),
            (with("url: 'https://i', audiences: [a, b]", name), "must be MatchAny for multiple audiences"),
            (with(issuer, "username: {claim: sub}"), "prefix is required when claim is set"),
            (with(issuer, "username: {claim: sub, expression: x}"), "can't both be set"),
            (with(issuer, "username: {expression: 'clams.sub'}"), "undeclared reference to 'clams'"),
            (with(issuer, "username: {expression: 'claims.email'}"), "claims.email_verified must be used"),
            (with(issuer, "username: {expression: '1 == 1'}"), "must evaluate to string"),
            (
                with(
                    issuer,
                    "username: {claim: sub, prefix: ''}, extra: [{key: x, valueExpression: claims.a}]",
                ),
                "domain-prefixed path",
            ),
            (format!("{}{}", with(issuer, name), with(issuer, name)), "jwt[1].issuer.url: Duplicate value"),
            (with("uri: x", name), "unknown field `uri`"),
        ] {
            let error = parsed(&text).expect_err(&text);
            assert!(error.contains(want), "{error}");
        }
    }
}
