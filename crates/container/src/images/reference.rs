//! Names of images: `busybox`, `registry.example/app:v1`, `app@sha256:…`.

use std::fmt;

/// A complete image reference: registry, repository, and a tag or digest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
    pub registry: String,
    pub repository: String,
    pub tag: Option<String>,
    pub digest: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a valid image name")]
pub struct BadReference(pub String);

const DEFAULT_REGISTRY: &str = "docker.io";

impl Reference {
    /// Parses a name and fills in omitted parts, as all registry clients do.
    pub fn parse(name: &str) -> Result<Self, BadReference> {
        let wrong = || BadReference(name.to_owned());
        let (rest, digest) = match name.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest)),
            None => (name, None),
        };
        if digest.is_some_and(|digest| !is_digest(digest)) {
            return Err(wrong());
        }
        let (path, tag) = match rest.rsplit_once(':') {
            Some((path, tag)) if !tag.contains('/') => (path, Some(tag)),
            _ => (rest, None),
        };
        let (registry, repository) = match path.split_once('/') {
            Some((host, repository)) if host.contains(['.', ':']) || host == "localhost" => {
                (host, repository.to_owned())
            }
            Some(_) => (DEFAULT_REGISTRY, path.to_owned()),
            None => (DEFAULT_REGISTRY, format!("library/{path}")),
        };
        let registry = if registry == "index.docker.io" { DEFAULT_REGISTRY } else { registry };
        let good_part = |part: &str| {
            !part.is_empty()
                && part.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || b"._-".contains(&c))
                && !part.starts_with(['.', '_', '-'])
        };
        let good_tag = |tag: &str| {
            !tag.is_empty()
                && tag.len() <= 128
                && !tag.starts_with(['.', '-'])
                && tag.bytes().all(|c| c.is_ascii_alphanumeric() || b"._-".contains(&c))
        };
        let good_host = registry.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '[')
            && registry.bytes().all(|c| c.is_ascii_alphanumeric() || b".:-[]".contains(&c));
        if !good_host
            || !repository.split('/').all(good_part)
            || !tag.is_none_or(good_tag)
            || repository.len() > 255
        {
            return Err(wrong());
        }
        let tag = match (tag, digest) {
            (None, None) => Some("latest".to_owned()),
            (tag, _) => tag.map(str::to_owned),
        };
        Ok(Self { registry: registry.to_owned(), repository, tag, digest: digest.map(str::to_owned) })
    }

    /// Registry and repository.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}/{}", self.registry, self.repository)
    }

    /// The name with a digest instead of tags.
    #[must_use]
    pub fn with_digest(&self, digest: &str) -> String {
        format!("{}@{digest}", self.name())
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        match (&self.digest, &self.tag) {
            (Some(digest), _) => write!(f, "@{digest}"),
            (None, Some(tag)) => write!(f, ":{tag}"),
            (None, None) => Ok(()),
        }
    }
}

/// Reports whether this is `sha256:` and 64 hex digits.
#[must_use]
pub fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:").is_some_and(|hex| {
        hex.len() == 64 && hex.bytes().all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reference_omitted_parts_get_defaults() {
        let digest = format!("sha256:{}", "0".repeat(64));
        for (name, whole) in [
            ("busybox", "docker.io/library/busybox:latest"),
            ("me/app:v1", "docker.io/me/app:v1"),
            ("index.docker.io/library/x", "docker.io/library/x:latest"),
            ("localhost/app", "localhost/app:latest"),
            ("127.0.0.1:5000/a/b:c", "127.0.0.1:5000/a/b:c"),
            ("registry.example:5000/app", "registry.example:5000/app:latest"),
            (&format!("app:v1@{digest}"), &format!("docker.io/library/app@{digest}")),
        ] {
            assert_eq!(Reference::parse(name).unwrap().to_string(), whole);
        }
        for bad in ["", "UPPER", "a//b", "a:", "a@sha256:12", "../x", "a/../b", "x:y z", "-a", "a b/c.d"] {
            assert!(Reference::parse(bad).is_err(), "{bad}");
        }
    }
}
