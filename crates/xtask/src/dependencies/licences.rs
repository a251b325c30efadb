//! Licence expressions of crates.

use std::collections::BTreeSet;

/// Reports whether the allowed licences satisfy an expression. `AND` binds closer than `OR`; the old `/` is an `OR`.
pub fn allows(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let tokens: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    !tokens.is_empty() && any_of(&tokens, &mut at, allowed) && at == tokens.len()
}

fn any_of(tokens: &[&str], at: &mut usize, allowed: &BTreeSet<String>) -> bool {
    let mut met = all_of(tokens, at, allowed);
    while tokens.get(*at) == Some(&"OR") {
        *at += 1;
        met |= all_of(tokens, at, allowed);
    }
    met
}

fn all_of(tokens: &[&str], at: &mut usize, allowed: &BTreeSet<String>) -> bool {
    let mut met = one(tokens, at, allowed);
    while tokens.get(*at) == Some(&"AND") {
        *at += 1;
        met &= one(tokens, at, allowed);
    }
    met
}

fn one(tokens: &[&str], at: &mut usize, allowed: &BTreeSet<String>) -> bool {
    let Some(token) = tokens.get(*at) else { return false };
    *at += 1;
    if *token == "(" {
        let met = any_of(tokens, at, allowed);
        let closed = tokens.get(*at) == Some(&")");
        *at += usize::from(closed);
        return met && closed;
    }
    if tokens.get(*at) == Some(&"WITH") {
        let exception = tokens.get(*at + 1).copied().unwrap_or_default();
        *at += 2;
        return allowed.contains(&format!("{token} WITH {exception}"));
    }
    allowed.contains(*token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licence_expression_needs_an_allowed_licence() {
        let allowed = BTreeSet::from(["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned));
        for (expression, met) in [
            ("MIT", true),
            ("GPL-3.0", false),
            ("GPL-3.0 OR MIT", true),
            ("GPL-3.0/MIT", true),
            ("MIT AND GPL-3.0", false),
            ("ISC AND (GPL-3.0 OR MIT)", true),
            ("GPL-3.0 AND ISC OR MIT", true),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("Apache-2.0", false),
            ("(MIT", false),
            ("", false),
        ] {
            assert_eq!(allows(expression, &allowed), met, "{expression}");
        }
    }
}
