//! Expansion of `$(VAR)` in commands, arguments and values.

/// Replaces `$(NAME)` with the result of `lookup`; unknown references are left unchanged, `$$` is a dollar sign.
#[must_use]
pub fn expand(text: &str, lookup: &dyn Fn(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some(after) = rest.strip_prefix('(') {
            match after.find(')') {
                Some(end) => {
                    let name = &after[..end];
                    match lookup(name) {
                        Some(value) => out.push_str(&value),
                        None => {
                            out.push_str("$(");
                            out.push_str(name);
                            out.push(')');
                        }
                    }
                    rest = &after[end + 1..];
                }
                None => {
                    out.push_str("$(");
                    rest = after;
                }
            }
        } else {
            out.push('$');
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expansion_replaces_known_references() {
        let lookup = |name: &str| match name {
            "A" => Some("1".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        };
        for (text, want) in [
            ("plain", "plain"),
            ("$(A)", "1"),
            ("x$(A)y$(A)", "x1y1"),
            ("$(B)", "$(B)"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$1"),
            ("$(EMPTY)", ""),
            ("$(A", "$(A"),
            ("$A", "$A"),
            ("cost: 5$", "cost: 5$"),
            ("$()", "$()"),
        ] {
            assert_eq!(expand(text, &lookup), want, "{text}");
        }
    }
}
