//! Domain names in wire form: lower case and uncompressed, usable as keys.

use std::fmt;

/// A whole domain name: length-prefixed labels and the root's empty one.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Box<[u8]>);

/// Error of a domain name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("a label is empty")]
    EmptyLabel,
    #[error("a label has more than 63 bytes")]
    LongLabel,
    #[error("the name has more than 255 bytes")]
    LongName,
}

impl Name {
    /// Parses text such as `kubernetes.default.svc`, with or without the final dot.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let text = text.strip_suffix('.').unwrap_or(text);
        Self::of(text.split('.').filter(|_| !text.is_empty()))
    }

    /// Builds a name from labels, leftmost first.
    pub fn of<'a>(labels: impl IntoIterator<Item = &'a str>) -> Result<Self, NameError> {
        let mut wire = Vec::with_capacity(64);
        for label in labels {
            push_label(&mut wire, label)?;
        }
        wire.push(0);
        Self::bounded(wire)
    }

    /// Prepends `labels` to this name.
    pub fn under<'a>(&self, labels: impl IntoIterator<Item = &'a str>) -> Result<Self, NameError> {
        let mut wire = Vec::with_capacity(self.0.len() + 32);
        for label in labels {
            push_label(&mut wire, label)?;
        }
        wire.extend_from_slice(&self.0);
        Self::bounded(wire)
    }

    fn bounded(wire: Vec<u8>) -> Result<Self, NameError> {
        if wire.len() > 255 { Err(NameError::LongName) } else { Ok(Self(wire.into())) }
    }

    /// The wire form.
    #[must_use]
    pub fn wire(&self) -> &[u8] {
        &self.0
    }
}

impl std::borrow::Borrow<[u8]> for Name {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

fn push_label(wire: &mut Vec<u8>, label: &str) -> Result<(), NameError> {
    let length = u8::try_from(label.len()).map_err(|_| NameError::LongLabel)?;
    match length {
        0 => return Err(NameError::EmptyLabel),
        64.. => return Err(NameError::LongLabel),
        _ => wire.push(length),
    }
    wire.extend(label.bytes().map(|byte| byte.to_ascii_lowercase()));
    Ok(())
}

/// The labels of a name in wire form, the leftmost first.
pub(crate) fn labels(wire: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = wire;
    std::iter::from_fn(move || {
        let (&length, tail) = rest.split_first()?;
        if length == 0 || usize::from(length) > tail.len() {
            return None;
        }
        let (label, next) = tail.split_at(usize::from(length));
        rest = next;
        Some(label)
    })
}

/// A name in wire form as text, with the final dot; bytes outside printable ASCII are escaped.
pub(crate) fn text(wire: &[u8]) -> String {
    let mut out = String::with_capacity(wire.len());
    for label in labels(wire) {
        for &byte in label {
            match byte {
                b'.' | b'\\' => out.extend(['\\', char::from(byte)]),
                0x21..=0x7e => out.push(char::from(byte)),
                _ => out.push_str(&format!("\\{byte:03}")),
            }
        }
        out.push('.');
    }
    if out.is_empty() {
        out.push('.');
    }
    out
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text(&self.0))
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_converted_between_text_and_wire_form() {
        let name = Name::parse("Kubernetes.default.svc.").expect("a name");
        assert_eq!(name.wire(), b"\x0akubernetes\x07default\x03svc\x00");
        assert_eq!(name.to_string(), "kubernetes.default.svc.");
        assert_eq!(Name::parse("").expect("the root").wire(), b"\0");
        assert_eq!(Name::parse(".").expect("the root").to_string(), ".");
        assert_eq!(Name::parse("a..b"), Err(NameError::EmptyLabel));
        assert_eq!(Name::parse(&"a".repeat(64)), Err(NameError::LongLabel));
        assert_eq!(Name::parse(&["a"; 128].join(".")), Err(NameError::LongName));
        let zone = Name::parse("cluster.local").expect("a zone");
        assert_eq!(
            zone.under(["web", "default", "svc"]).map(|n| n.to_string()).as_deref(),
            Ok("web.default.svc.cluster.local.")
        );
    }
}
