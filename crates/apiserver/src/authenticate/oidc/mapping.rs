//! Mapping of claims to a user.

use super::config::{ClaimRule, Rules, Source};
use crate::user::UserInfo;
use expressions::Program;
use machinery::Value;
use serde_json::json;
use std::collections::BTreeMap;

const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// The user of verified claims, if all rules hold.
pub fn user(rules: &Rules, claims: &Value) -> Result<UserInfo, String> {
    let name = username(&rules.username, claims)?;
    let groups = rules.groups.as_ref().map(|source| groups(source, claims)).transpose()?.unwrap_or_default();
    let uid = rules.uid.as_ref().map(|source| uid(source, claims)).transpose()?.unwrap_or_default();
    let mut extra = BTreeMap::new();
    if let Some(id) = claims["jti"].as_str().filter(|id| !id.is_empty()) {
        extra.insert(CREDENTIAL_ID.to_owned(), vec![format!("JTI={id}")]);
    }
    for (key, expression) in &rules.extra {
        let values = evaluate(expression, claims, "extra claim")?;
        let values = strings(&values).map_err(|why| {
            format!("error evaluating extra claim expression: {}: {why}", expression.text())
        })?;
        if !values.is_empty() {
            extra.insert(key.clone(), values);
        }
    }
    check_claims(rules, claims)?;
    let user = UserInfo { name, uid, groups, extra };
    check_user(rules, &user)?;
    Ok(user)
}

fn evaluate(expression: &Program, claims: &Value, what: &str) -> Result<Value, String> {
    expression
        .evaluate_json(&[claims])
        .map_err(|error| format!("error evaluating {what} expression: {error}"))
}

fn username(source: &Source, claims: &Value) -> Result<String, String> {
    match source {
        Source::Expression(expression) => match evaluate(expression, claims, "username claim")? {
            Value::String(name) if name.is_empty() => {
                Err("empty username via CEL expression is not allowed".to_owned())
            }
            Value::String(name) => Ok(name),
            _ => Err(
                "error evaluating username claim expression: username claim expression must return a string"
                    .to_owned(),
            ),
        },
        Source::Claim { name, prefix } => {
            let value = claims
                .get(name)
                .ok_or_else(|| format!("parse username claims {name:?}: claim not present"))?;
            let text =
                value.as_str().ok_or_else(|| format!("parse username claims {name:?}: not a string"))?;
            if name == "email" && claims.get("email_verified").is_some() {
                match claims["email_verified"].as_bool() {
                    Some(true) => {}
                    Some(false) => return Err("email not verified".to_owned()),
                    None => return Err("parse 'email_verified' claim: not a boolean".to_owned()),
                }
            }
            Ok(format!("{prefix}{text}"))
        }
    }
}

fn groups(source: &Source, claims: &Value) -> Result<Vec<String>, String> {
    match source {
        Source::Expression(expression) => strings(&evaluate(expression, claims, "group claim")?)
            .map_err(|why| format!("error evaluating group claim expression: {why}")),
        Source::Claim { name, prefix } => {
            let Some(value) = claims.get(name) else { return Ok(Vec::new()) };
            let found = match value {
                Value::String(one) => vec![one.clone()],
                Value::Array(many) => many
                    .iter()
                    .map(|group| group.as_str().map(str::to_owned))
                    .collect::<Option<Vec<String>>>()
                    .ok_or_else(|| format!("parse groups claim {name:?}: an element is not a string"))?,
                _ => return Err(format!("parse groups claim {name:?}: neither a string nor a list")),
            };
            Ok(found.into_iter().map(|group| format!("{prefix}{group}")).collect())
        }
    }
}

fn uid(source: &Source, claims: &Value) -> Result<String, String> {
    match source {
        Source::Expression(expression) => match evaluate(expression, claims, "uid claim")? {
            Value::String(uid) => Ok(uid),
            _ => Err("error evaluating uid claim expression: it must return a string".to_owned()),
        },
        Source::Claim { name, .. } => match claims.get(name) {
            Some(Value::String(uid)) => Ok(uid.clone()),
            Some(_) => Err(format!("parse uid claim {name:?}: not a string")),
            None => Err(format!("parse uid claim {name:?}: claim not present")),
        },
    }
}

/// Non-empty strings of a result.
fn strings(value: &Value) -> Result<Vec<String>, String> {
    let retained =
        |texts: Vec<&str>| texts.into_iter().filter(|text| !text.is_empty()).map(str::to_owned).collect();
    match value {
        Value::Null => Ok(Vec::new()),
        Value::String(text) => Ok(retained(vec![text])),
        Value::Array(items) => {
            let texts: Option<Vec<&str>> = items.iter().map(Value::as_str).collect();
            texts
                .map(retained)
                .ok_or_else(|| "expression must return a string or a list of strings".to_owned())
        }
        _ => Err("expression must return a string or a list of strings".to_owned()),
    }
}

fn check_claims(rules: &Rules, claims: &Value) -> Result<(), String> {
    for rule in &rules.claims {
        match rule {
            ClaimRule::Required { claim, value } => {
                let Some(found) = claims.get(claim) else {
                    return Err(format!("required claim {claim} not present in ID token"));
                };
                let found = found.as_str().ok_or_else(|| format!("parse claim {claim}: not a string"))?;
                if found != value {
                    return Err(format!(
                        "required claim {claim} value does not match. Got = {found}, want = {value}"
                    ));
                }
            }
            ClaimRule::Expression { expression, message } => {
                let held = expression.evaluate_bool(&[claims]);
                let held =
                    held.map_err(|error| format!("error evaluating claim validation expression: {error}"))?;
                if !held {
                    return Err(format!(
                        "error evaluating claim validation expression: validation expression '{}' failed: {message}",
                        expression.text()
                    ));
                }
            }
        }
    }
    Ok(())
}

fn check_user(rules: &Rules, user: &UserInfo) -> Result<(), String> {
    if rules.user.is_empty() {
        return Ok(());
    }
    let value = json!({"username": user.name, "uid": user.uid, "groups": user.groups, "extra": user.extra});
    for (expression, message) in &rules.user {
        let held = expression.evaluate_bool(&[&value]);
        let held = held.map_err(|error| format!("error evaluating user info validation rule: {error}"))?;
        if !held {
            return Err(format!(
                "error evaluating user info validation rule: validation expression '{}' failed: {message}",
                expression.text()
            ));
        }
    }
    Ok(())
}
