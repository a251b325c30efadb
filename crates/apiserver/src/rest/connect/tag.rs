//! Parser of HTML start tags, limited to their attributes.

use std::ops::Range;

/// Attributes with a URL, by element.
const ADDRESSES: [(&str, &[&str]); 25] = [
    ("a", &["href"]),
    ("applet", &["codebase"]),
    ("area", &["href"]),
    ("audio", &["src"]),
    ("base", &["href"]),
    ("blockquote", &["cite"]),
    ("body", &["background"]),
    ("button", &["formaction"]),
    ("command", &["icon"]),
    ("del", &["cite"]),
    ("embed", &["src"]),
    ("form", &["action"]),
    ("frame", &["longdesc", "src"]),
    ("head", &["profile"]),
    ("html", &["manifest"]),
    ("iframe", &["longdesc", "src"]),
    ("img", &["longdesc", "src", "usemap"]),
    ("input", &["src", "usemap", "formaction"]),
    ("ins", &["cite"]),
    ("link", &["href"]),
    ("object", &["classid", "codebase", "data", "usemap"]),
    ("q", &["cite"]),
    ("script", &["src"]),
    ("source", &["src"]),
    ("video", &["poster", "src"]),
];

/// Elements whose content is raw text up to their end tag.
const RAW: [&str; 10] =
    ["iframe", "noembed", "noframes", "noscript", "plaintext", "script", "style", "textarea", "title", "xmp"];

/// Positions of a tag's parts; all ranges count from its `<`.
#[derive(Debug, PartialEq, Eq)]
pub struct Tag {
    pub name: String,
    /// Attribute values, including quotes.
    values: Vec<(String, Range<usize>)>,
    /// Position after its `>`.
    pub end: usize,
}

impl Tag {
    /// Parses a start tag; `None` if it is incomplete.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let until = |from: usize, stop: &dyn Fn(u8) -> bool| {
            bytes.get(from..)?.iter().position(|byte| stop(*byte)).map(|at| from + at)
        };
        let blank = |byte: u8| byte.is_ascii_whitespace();
        let lower = |range: Range<usize>| String::from_utf8_lossy(&bytes[range]).to_ascii_lowercase();
        let mut at = until(1, &|byte| blank(byte) || byte == b'/' || byte == b'>')?;
        let mut tag = Self { name: lower(1..at), values: Vec::new(), end: 0 };
        loop {
            at = until(at, &|byte| !blank(byte) && byte != b'/')?;
            if bytes[at] == b'>' {
                tag.end = at + 1;
                return Some(tag);
            }
            // An equals sign may start a name, but not continue one.
            let end = until(at + 1, &|byte| blank(byte) || b"/=>".contains(&byte))?;
            let name = lower(at..end);
            at = until(end, &|byte| !blank(byte))?;
            if bytes[at] != b'=' {
                continue;
            }
            let start = until(at + 1, &|byte| !blank(byte))?;
            at = match bytes[start] {
                quote @ (b'"' | b'\'') => until(start + 1, &|byte| byte == quote)? + 1,
                _ => until(start, &|byte| blank(byte) || byte == b'>')?,
            };
            tag.values.push((name, start..at));
        }
    }

    /// Reports whether raw text follows, which must not be parsed as tags.
    pub fn is_raw(&self) -> bool {
        RAW.contains(&self.name.as_str())
    }

    /// Writes the tag with its URLs rewritten.
    pub fn write(&self, bytes: &[u8], through: impl Fn(&str) -> Option<String>, out: &mut Vec<u8>) {
        let names =
            ADDRESSES.iter().find(|(name, _)| *name == self.name).map_or(&[][..], |(_, names)| *names);
        let mut written = 0;
        for (name, range) in &self.values {
            if !names.contains(&name.as_str()) {
                continue;
            }
            let quotes = usize::from(matches!(bytes[range.start], b'"' | b'\''));
            let value = String::from_utf8_lossy(&bytes[range.start + quotes..range.end - quotes]);
            if let Some(new) = through(&value) {
                out.extend_from_slice(&bytes[written..range.start]);
                out.extend_from_slice(format!("\"{}\"", new.replace('"', "&#34;")).as_bytes());
                written = range.end;
            }
        }
        out.extend_from_slice(&bytes[written..self.end]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_url_attributes_are_rewritten() {
        for (tag, want) in [
            (r#"<a href="/x">"#, Some(r#"<a href="P/x">"#)),
            ("<A class=b HREF='/x' >", Some(r#"<A class=b HREF="P/x" >"#)),
            ("<a href=/x>", Some(r#"<a href="P/x">"#)),
            ("<a href = /x/>", Some(r#"<a href = "P/x/">"#)),
            (r#"<a href='/"x'>"#, Some(r#"<a href="P/&#34;x">"#)),
            (r#"<a href="y">"#, Some(r#"<a href="y">"#)),
            (r#"<a title="/x>" href>"#, Some(r#"<a title="/x>" href>"#)),
            (
                r#"<img src="/a" alt="/b" usemap="/c"/>rest"#,
                Some(r#"<img src="P/a" alt="/b" usemap="P/c"/>"#),
            ),
            (r#"<p href="/x">"#, Some(r#"<p href="/x">"#)),
            ("<br/>", Some("<br/>")),
            (r#"<a href="/x"#, None),
            (r#"<a href="/x""#, None),
            ("<a", None),
            ("<a href", None),
            ("<a href=", None),
        ] {
            let mut out = Vec::new();
            let read = Tag::read(tag.as_bytes());
            assert_eq!(read.is_some(), want.is_some(), "{tag}");
            let Some(read) = read else { continue };
            let through = |link: &str| link.starts_with('/').then(|| format!("P{link}"));
            read.write(tag.as_bytes(), through, &mut out);
            assert_eq!(Some(String::from_utf8_lossy(&out).as_ref()), want, "{tag}");
        }
    }
}
