//! Messages about commands that failed.

use anyhow::Error;

/// The error with its causes: without those that repeat the text before, and without the numbers of system errors.
pub fn message(error: &Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    for cause in error.chain() {
        let text = base::errors::without_numbers(&cause.to_string());
        if parts.iter().any(|part| part.contains(&text)) {
            continue;
        }
        parts.push(text);
    }
    parts.join(": ")
}

/// Advice for a user without permission.
pub fn advice(error: &Error, is_root: bool) -> Option<&'static str> {
    let is_denied = |cause: &(dyn std::error::Error + 'static)| {
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
    };
    (!is_root && error.chain().any(is_denied)).then_some(
        "run it with sudo, or set --data-dir to a directory of your own, such as ~/.local/share/ferry (a control plane without a node needs no root)",
    )
}

#[cfg(test)]
mod tests {
    use std::io;

    use anyhow::Context as _;

    use super::*;

    #[test]
    fn causes_are_not_repeated_and_have_no_numbers() {
        let error =
            Err::<(), _>(io::Error::from_raw_os_error(2)).context("failed to read /x").expect_err("fails");
        assert_eq!(message(&error), "failed to read /x: No such file or directory");
        let inner = anyhow::anyhow!("No such file or directory (os error 2)");
        let error =
            inner.context("transport error: No such file or directory (os error 2)").context("failed");
        assert_eq!(message(&error), "failed: transport error: No such file or directory");
        assert_eq!(base::errors::without_numbers("a (os error x) b (os error 7), c"), "a (os error x) b, c");
    }

    #[test]
    fn users_without_permission_are_advised() {
        let denied =
            || Error::from(io::Error::from_raw_os_error(13)).context("failed to create /var/lib/ferry");
        assert!(advice(&denied(), false).is_some_and(|advice| advice.contains("--data-dir")));
        assert_eq!(advice(&denied(), true), None);
        assert_eq!(advice(&anyhow::anyhow!("Permission denied"), false), None);
    }
}
