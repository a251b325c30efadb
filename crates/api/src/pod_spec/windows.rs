//! Rules of Windows pods: credential specs, user names, host process containers.

use super::for_each_container;
use crate::pod_spec::checks::invalid_texts;
use crate::value::Fields;
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, names};

const MAX_CREDENTIAL_SPEC: usize = 64 * 1024;
const MAX_DOMAIN: usize = 256;
const MAX_USER: usize = 104;

/// `windowsOptions` of a security context.
pub fn validate_options(options: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    if options.is_null() {
        return;
    }
    if let Some(name) = options.opt_text("gmsaCredentialSpecName") {
        invalid_texts(names::dns_subdomain(name, false), name, &path.child("gmsaCredentialSpecName"), errors);
    }
    if let Some(spec) = options.opt_text("gmsaCredentialSpec") {
        let path = path.child("gmsaCredentialSpec");
        if spec.is_empty() {
            let detail = "gmsaCredentialSpec cannot be an empty string";
            errors.push(FieldError::invalid_str(&path, spec, detail));
        } else if spec.len() > MAX_CREDENTIAL_SPEC {
            let detail = "gmsaCredentialSpec size must be under 64 KiB";
            errors.push(FieldError::invalid_str(&path, spec, detail));
        }
    }
    if let Some(name) = options.opt_text("runAsUserName") {
        let path = path.child("runAsUserName");
        errors.extend(user_name_problems(name).into_iter().map(|p| FieldError::invalid_str(&path, name, p)));
    }
}

fn user_name_problems(name: &str) -> Vec<String> {
    let whole = if name.is_empty() {
        Some("runAsUserName cannot be an empty string")
    } else if name.chars().any(|c| c.is_ascii_control()) {
        Some("runAsUserName cannot contain control characters")
    } else if name.matches('\\').count() > 1 {
        Some("runAsUserName cannot contain more than one backslash")
    } else {
        None
    };
    if let Some(problem) = whole {
        return vec![problem.to_owned()];
    }
    let (domain, user) = match name.split_once('\\') {
        Some((domain, user)) => (Some(domain), user),
        None => (None, name),
    };
    let mut problems = Vec::new();
    if domain.is_some_and(|domain| domain.len() >= MAX_DOMAIN) {
        problems.push(format!("runAsUserName's Domain length must be under {MAX_DOMAIN} characters"));
    }
    if domain.is_some_and(|domain| !is_netbios(domain) && !is_dns(domain)) {
        problems.push("runAsUserName's Domain doesn't match the NetBios nor the DNS format".to_owned());
    }
    if user.is_empty() {
        problems.push("runAsUserName's User cannot be empty".to_owned());
    } else if user.len() > MAX_USER {
        problems.push(format!("runAsUserName's User length must not be longer than {MAX_USER} characters"));
    }
    if !user.is_empty() && user.chars().all(|c| matches!(c, '.' | ' ')) {
        problems.push("runAsUserName's User cannot contain only periods or spaces".to_owned());
    }
    if user.contains(['"', '/', '\\', ':', ';', '|', '=', ',', '+', '*', '?', '<', '>', '@', '[', ']']) {
        let detail = r#"runAsUserName's User cannot contain the following characters: "/\:;|=,+*?<>@[]"#;
        problems.push(detail.to_owned());
    }
    problems
}

fn is_netbios(domain: &str) -> bool {
    let length = domain.chars().count();
    (1..=15).contains(&length)
        && !domain.starts_with('.')
        && !domain.contains(['\\', '/', ':', '*', '?', '"', '<', '>', '|'])
}

fn is_dns(domain: &str) -> bool {
    domain.split('.').all(|label| {
        let bytes = label.as_bytes();
        (1..=63).contains(&bytes.len())
            && bytes.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'-')
            && bytes[0] != b'-'
            && bytes[bytes.len() - 1] != b'-'
    })
}

/// Host process containers: all or none, and on the host's network.
pub fn validate_host_process(spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let setting = |context: &Value| context.field("windowsOptions").opt_flag("hostProcess");
    let of_pod = setting(spec.field("securityContext"));
    let (mut containers, mut host_processes) = (0, 0);
    for_each_container(spec, path, |container, path| {
        containers += 1;
        let own = setting(container.field("securityContext"));
        if let (Some(pod), Some(own)) = (of_pod, own)
            && pod != own
        {
            let context = path.child("securityContext");
            let options = context.child("windowsOptions");
            let detail = format!("pod hostProcess value must be identical if both are specified, was {pod}");
            let path = options.child("hostProcess");
            errors.push(FieldError::invalid(&path, &Value::from(own), detail));
        }
        if own.or(of_pod) == Some(true) {
            host_processes += 1;
        }
    });
    if host_processes == 0 {
        return;
    }
    if host_processes != containers {
        let detail =
            "If pod contains any hostProcess containers then all containers must be HostProcess containers";
        errors.push(FieldError::invalid_str(path, "", detail));
    }
    if !spec.flag("hostNetwork") {
        let detail = "hostNetwork must be true if pod contains any hostProcess containers";
        errors.push(FieldError::invalid(&path.child("hostNetwork"), &Value::from(false), detail));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_user_names_are_validated() {
        for (name, problems) in [
            ("user", 0),
            (r"DOMAIN\user", 0),
            (r"a.b-c\user", 0),
            ("", 1),
            ("a\tb", 1),
            (r"a\b\c", 1),
            (r"a\", 1),
            ("...", 1),
            ("a@b", 1),
            (r"bad*domain\u", 1),
        ] {
            assert_eq!(user_name_problems(name).len(), problems, "{name}");
        }
    }
}
