//! Syntax of image names, as registries and Kubernetes define it: `[DOMAIN/]PATH[:TAG][@DIGEST]`.

const MAX_NAME: usize = 255;
const MAX_TAG: usize = 128;
const INVALID: &str = "invalid reference format";

/// Checks the syntax of an image name; the error is Kubernetes' text.
pub fn check(image: &str) -> Result<(), String> {
    let invalid = || Err(INVALID.to_owned());
    if image.len() == 64 && image.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        return Err(format!("invalid repository name ({image}), cannot specify 64-byte hexadecimal strings"));
    }
    let (named, digest) = match image.split_once('@') {
        Some((named, digest)) => (named, Some(digest)),
        None => (image, None),
    };
    let (domain, rest) = split_domain(named);
    let (path, tag) = match rest.split_once(':') {
        Some((path, tag)) => (path, Some(tag)),
        None => (rest, None),
    };
    if path.bytes().any(|byte| byte.is_ascii_uppercase()) {
        let library = if domain.is_none() && !path.contains('/') { "library/" } else { "" };
        return Err(format!("{INVALID}: repository name ({library}{path}) must be lowercase"));
    }
    let long = domain.map_or(0, |domain| domain.len() + 1) + path.len() > MAX_NAME;
    let valid = domain.is_none_or(is_domain)
        && path.split('/').all(is_path_component)
        && tag.is_none_or(is_tag)
        && digest.is_none_or(is_digest);
    if !valid {
        return invalid();
    }
    if long {
        return Err(format!("repository name must not be more than {MAX_NAME} characters"));
    }
    Ok(())
}

/// The first component is a domain if it cannot be part of a repository path.
fn split_domain(named: &str) -> (Option<&str>, &str) {
    match named.split_once('/') {
        Some((first, rest))
            if first.contains(['.', ':'])
                || first == "localhost"
                || first.bytes().any(|byte| byte.is_ascii_uppercase()) =>
        {
            (Some(first), rest)
        }
        _ => (None, named),
    }
}

fn is_domain(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    let label = |label: &str| {
        let bytes = label.as_bytes();
        bytes.first().is_some_and(u8::is_ascii_alphanumeric)
            && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
            && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-')
    };
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let named = match address {
        Some(address) => {
            !address.is_empty() && address.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b':')
        }
        None => host.split('.').all(label),
    };
    named && port.is_none_or(|port| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Lower-case letters and digits, separated by a period, one or two underscores, or hyphens.
fn is_path_component(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    let ends = bytes.first().copied().is_some_and(plain) && bytes.last().copied().is_some_and(plain);
    let separator =
        |run: &[u8]| matches!(run, b"" | b"." | b"_" | b"__") || run.iter().all(|byte| *byte == b'-');
    ends && bytes.split(|byte| plain(*byte)).all(separator)
}

fn is_tag(text: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    (1..=MAX_TAG).contains(&text.len())
        && text.bytes().next().is_some_and(word)
        && text.bytes().all(|byte| word(byte) || matches!(byte, b'.' | b'-'))
}

fn is_digest(text: &str) -> bool {
    let Some((algorithm, hex)) = text.split_once(':') else { return false };
    let part = |part: &str| {
        part.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic())
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    let length = match algorithm {
        "sha256" => hex.len() == 64,
        "sha384" => hex.len() == 96,
        "sha512" => hex.len() == 128,
        _ => hex.len() >= 32,
    };
    algorithm.split(['-', '_', '+', '.']).all(part)
        && length
        && hex.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_names_follow_the_reference_syntax() {
        let hex = "a".repeat(64);
        for image in [
            "busybox",
            "busybox:1.36",
            "busybox:Latest",
            "Reg.example.com/a:B",
            "localhost/a",
            "localhost:5000/a/b_c/d__e-f--g.h:v1",
            "[2001:db8::1]:5000/a:1",
            "REGISTRY/a",
            &format!("a@sha256:{hex}"),
            &format!("r.io/a:1@sha256:{hex}"),
        ] {
            assert_eq!(check(image), Ok(()), "{image}");
        }
        for image in [
            "",
            " ",
            "a b",
            "a//b",
            "a/",
            "/a",
            "x:",
            "a:b:c",
            "Foo:BAR/baz",
            "a___b",
            "a..b",
            "-a",
            "r.io:port/a",
            "r.io:/a",
            "a@sha256:123",
            "a@sha256",
            "a:.tag",
            &format!("a:{}", "t".repeat(129)),
            "a\u{0}b",
            "ä",
        ] {
            assert_eq!(check(image), Err(INVALID.to_owned()), "{image}");
        }
        for (image, error) in [
            ("Busybox", "invalid reference format: repository name (library/Busybox) must be lowercase"),
            ("r.io/A/b:1", "invalid reference format: repository name (A/b) must be lowercase"),
        ] {
            assert_eq!(check(image), Err(error.to_owned()), "{image}");
        }
        assert!(check(&hex).unwrap_err().contains("64-byte hexadecimal"));
        assert!(check(&format!("r.io/{}", "a/".repeat(150) + "a")).unwrap_err().contains("255"));
    }
}
