//! Semantic versions with the rules and messages of Go's blang/semver, which Kubernetes uses in CEL and validation.
//! The crate `semver` has other messages.

use std::cmp::Ordering;

/// A version of <https://semver.org>, without its build metadata, which has no precedence.
///
/// ```
/// use machinery::names::SemanticVersion;
///
/// let version = SemanticVersion::parse("1.36.0-rc.1+build")?;
/// assert!(version < SemanticVersion::parse("1.36.0")?);
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SemanticVersion {
    pub major: u64,
    pub minor: u64,
    pub patch: u64,
    pre_release: Vec<Identifier>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Identifier {
    /// Numeric identifiers sort before alphanumeric ones.
    Number(u64),
    Alphanumeric(String),
}

impl PartialOrd for SemanticVersion {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for SemanticVersion {
    /// Order of precedence: a pre-release sorts before its release.
    fn cmp(&self, other: &Self) -> Ordering {
        (self.major, self.minor, self.patch).cmp(&(other.major, other.minor, other.patch)).then_with(
            || match (self.pre_release.is_empty(), other.pre_release.is_empty()) {
                (true, true) => Ordering::Equal,
                (true, false) => Ordering::Greater,
                (false, true) => Ordering::Less,
                (false, false) => self.pre_release.cmp(&other.pre_release),
            },
        )
    }
}

impl SemanticVersion {
    /// Parses `1.2.3-pre.1+build`; the error has Go's message.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("Version string empty".to_owned());
        }
        let mut parts = text.splitn(3, '.');
        let (Some(major), Some(minor), Some(rest)) = (parts.next(), parts.next(), parts.next()) else {
            return Err("No Major.Minor.Patch elements found".to_owned());
        };
        let (rest, build) = rest.split_once('+').map_or((rest, None), |(rest, build)| (rest, Some(build)));
        let (patch, pre) = rest.split_once('-').map_or((rest, None), |(patch, pre)| (patch, Some(pre)));
        let pre_release = pre.map_or(Ok(Vec::new()), |pre| pre.split('.').map(identifier).collect())?;
        for part in build.into_iter().flat_map(|build| build.split('.')) {
            if part.is_empty() {
                return Err("Build meta data is empty".to_owned());
            }
            if !is_alphanumeric(part) {
                return Err(format!("Invalid character(s) found in build meta data {part:?}"));
            }
        }
        Ok(Self {
            major: number(major, "Major")?,
            minor: number(minor, "Minor")?,
            patch: number(patch, "Patch")?,
            pre_release,
        })
    }
}

fn is_alphanumeric(part: &str) -> bool {
    part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

fn has_leading_zero(digits: &str) -> bool {
    digits.len() > 1 && digits.starts_with('0')
}

fn identifier(part: &str) -> Result<Identifier, String> {
    if part.is_empty() {
        return Err("Prerelease is empty".to_owned());
    }
    if part.bytes().all(|byte| byte.is_ascii_digit()) {
        if has_leading_zero(part) {
            return Err(format!("Numeric PreRelease version must not contain leading zeroes {part:?}"));
        }
        return part
            .parse()
            .map(Identifier::Number)
            .map_err(|_| format!("Invalid Prerelease number {part:?}"));
    }
    if !is_alphanumeric(part) {
        return Err(format!("Invalid character(s) found in prerelease {part:?}"));
    }
    Ok(Identifier::Alphanumeric(part.to_owned()))
}

/// A number without leading zeros; `name` is capitalized.
fn number(text: &str, name: &str) -> Result<u64, String> {
    let invalid = || format!("Invalid character(s) found in {} number {text:?}", name.to_lowercase());
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(invalid());
    }
    if has_leading_zero(text) {
        return Err(format!("{name} number must not contain leading zeroes {text:?}"));
    }
    text.parse().map_err(|_| invalid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_by_precedence() {
        let ascending =
            ["0.1.0", "1.0.0-1", "1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-beta", "1.0.0", "1.2.3", "1.10.0"];
        for pair in ascending.windows(2) {
            let [a, b] = pair else { continue };
            let (a, b) = (SemanticVersion::parse(a).expect(a), SemanticVersion::parse(b).expect(b));
            assert_eq!(a.cmp(&b), Ordering::Less, "{a:?} {b:?}");
        }
        let parse = |text| SemanticVersion::parse(text).expect(text);
        assert_eq!(parse("1.2.3+one"), parse("1.2.3+two.2"));
    }

    #[test]
    fn malformed_version_is_rejected() {
        for wrong in [
            "",
            "1",
            "1.2",
            "v1.2.3",
            "1.2.03",
            "1.2.3-",
            "1.2.3+",
            "1.2.3-01",
            "1.2.x",
            "1.2.3.4",
            "1.2.3-a_b",
        ] {
            assert!(SemanticVersion::parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(
            SemanticVersion::parse("01.2.3").expect_err("a leading zero"),
            "Major number must not contain leading zeroes \"01\""
        );
    }
}
