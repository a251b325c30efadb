//! Parses the tag of an image reference.

/// True if the reference has the `latest` tag, or neither tag nor digest. A malformed reference counts as not latest.
pub fn is_latest(image: &str) -> bool {
    match parse(image) {
        Some(Reference { tag: Some(tag), .. }) => tag == "latest",
        Some(Reference { tag: None, digest }) => digest.is_none(),
        None => false,
    }
}

/// Tag and digest of a well-formed reference.
#[derive(Debug, PartialEq, Eq)]
struct Reference<'a> {
    tag: Option<&'a str>,
    digest: Option<&'a str>,
}

/// Parses `[domain/]path[:tag][@digest]`; `None` if malformed.
fn parse(image: &str) -> Option<Reference<'_>> {
    if image.len() == 64 && image.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) {
        return None;
    }
    let (rest, digest) = match image.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (image, None),
    };
    if digest.is_some_and(|digest| !is_digest(digest)) {
        return None;
    }
    let (domain, path_and_tag) = match rest.split_once('/') {
        Some((first, path)) if is_domain_like(first) => (Some(first), path),
        _ => (None, rest),
    };
    let (path, tag) = match path_and_tag.split_once(':') {
        Some((path, tag)) => (path, Some(tag)),
        None => (path_and_tag, None),
    };
    let well_formed = domain.is_none_or(is_domain)
        && path.split('/').all(is_path_component)
        && tag.is_none_or(is_tag)
        && domain.map_or("docker.io/library".len(), str::len) + 1 + path.len() <= 255;
    well_formed.then_some(Reference { tag, digest })
}

/// True if the text before the first slash is a host, not a path component.
fn is_domain_like(text: &str) -> bool {
    text.contains(['.', ':']) || text == "localhost" || text.bytes().any(|b| b.is_ascii_uppercase())
}

fn is_domain(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, port)) => {
            let is_address = address.bytes().all(|b| b.is_ascii_hexdigit() || b == b':') && address.len() > 1;
            if !is_address {
                return false;
            }
            (None, port.strip_prefix(':').map(Some).unwrap_or((!port.is_empty()).then_some("x")))
        }
        None => match text.split_once(':') {
            Some((host, port)) => (Some(host), Some(port)),
            None => (Some(text), None),
        },
    };
    let host_is_fine = host.is_none_or(|host| {
        host.split('.').all(|part| {
            !part.is_empty()
                && !part.starts_with('-')
                && !part.ends_with('-')
                && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        })
    });
    host_is_fine && port.is_none_or(|port| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()))
}

/// Lower-case letters and digits, joined by `.`, `_`, `__` or dashes.
fn is_path_component(text: &str) -> bool {
    let is_word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    if !(bytes.first().copied().is_some_and(is_word) && bytes.last().copied().is_some_and(is_word)) {
        return false;
    }
    bytes
        .split(|b| is_word(*b))
        .filter(|separator| !separator.is_empty())
        .all(|separator| matches!(separator, b"." | b"_" | b"__") || separator.iter().all(|b| *b == b'-'))
}

fn is_tag(text: &str) -> bool {
    let is_word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    text.len() <= 128
        && text.bytes().next().is_some_and(is_word)
        && text.bytes().all(|b| is_word(b) || b == b'.' || b == b'-')
}

fn is_digest(text: &str) -> bool {
    let Some((algorithm, hex)) = text.split_once(':') else { return false };
    let is_algorithm = algorithm.split(['-', '_', '+', '.']).all(|part| {
        part.starts_with(|c: char| c.is_ascii_alphabetic()) && part.bytes().all(|b| b.is_ascii_alphanumeric())
    });
    let length = match algorithm {
        "sha256" => hex.len() == 64,
        "sha384" => hex.len() == 96,
        "sha512" => hex.len() == 128,
        _ => hex.len() >= 32,
    };
    is_algorithm && length && hex.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latest_tag_is_detected() {
        let digest = "sha256:0000000000000000000000000000000000000000000000000000000000000000";
        for (image, latest) in [
            ("nginx", true),
            ("nginx:latest", true),
            ("nginx:1.25", false),
            ("reg.example.com:5000/a/b", true),
            ("reg.example.com:5000/a/b:v1", false),
            ("localhost/a", true),
            ("[::1]:5000/a", true),
            ("[::1]x/a", false),
            ("Upper/a", true),
            ("Upper", false),
            ("a/B", false),
            ("", false),
            ("a b", false),
            ("a:bad tag", false),
            ("a--b__c.d", true),
            ("a..b", false),
            (digest, false),
        ] {
            assert_eq!(is_latest(image), latest, "{image}");
        }
        assert!(!is_latest(&format!("nginx@{digest}")));
        assert!(is_latest(&format!("nginx:latest@{digest}")));
    }
}
