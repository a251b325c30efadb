//! Removes `metadata.managedFields` from the text of an object before it is decoded: caches do not use it, and it
//! takes longest to decode.

use std::ops::Range;

use bytes::BytesMut;

/// Empties the list in place. Text that is no JSON object stays unmodified; the decoder reports it.
pub fn managed_fields(text: &mut BytesMut, from: usize) {
    let mut scan = Scan { bytes: text, at: from };
    let found = scan.enter("metadata").and_then(|()| scan.enter("managedFields")).and_then(|()| scan.value());
    let Some(Range { start, end }) = found.filter(|found| found.len() > 2) else { return };
    if text[start] == b'[' {
        text[start + 1] = b']';
        text.copy_within(end.., start + 2);
        text.truncate(text.len() - (end - start - 2));
    }
}

struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Scan<'_> {
    fn peek(&mut self) -> Option<u8> {
        loop {
            let byte = *self.bytes.get(self.at)?;
            if !matches!(byte, b' ' | b'\t' | b'\r' | b'\n') {
                return Some(byte);
            }
            self.at += 1;
        }
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    /// Advances to the value of `key` in the object that starts here.
    fn enter(&mut self, key: &str) -> Option<()> {
        self.expect(b'{')?;
        loop {
            self.peek()?;
            let own = self.string()?;
            self.expect(b':')?;
            self.peek()?;
            if self.bytes[own.start + 1..own.end - 1] == *key.as_bytes() {
                return Some(());
            }
            self.value()?;
            self.expect(b',')?;
        }
    }

    /// Range of the string that starts here, including quotes.
    fn string(&mut self) -> Option<Range<usize>> {
        let start = self.at;
        self.expect(b'"')?;
        loop {
            self.at += memchr::memchr2(b'"', b'\\', self.bytes.get(self.at..)?)? + 1;
            match self.bytes[self.at - 1] {
                b'"' => return Some(start..self.at),
                _ => self.at += 1,
            }
        }
    }

    /// Range of the value that starts here.
    fn value(&mut self) -> Option<Range<usize>> {
        let start = self.at;
        let mut depth = 0usize;
        loop {
            match self.peek()? {
                b'"' => {
                    self.string()?;
                }
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                }
                b'}' | b']' => {
                    depth = depth.checked_sub(1)?;
                    self.at += 1;
                }
                b',' | b':' => self.at += 1,
                _ => {
                    let rest = self.bytes.get(self.at..)?;
                    self.at += rest.iter().position(|byte| matches!(byte, b',' | b'}' | b']'))?;
                }
            }
            if depth == 0 {
                return Some(start..self.at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_top_level_managed_fields_are_removed() {
        for (text, expected) in [
            (
                r#"{"metadata":{"name":"a","managedFields":[{"f":"]\""}],"uid":"u"},"spec":{}}"#,
                r#"{"metadata":{"name":"a","managedFields":[],"uid":"u"},"spec":{}}"#,
            ),
            (
                r#"{"kind":"P", "n":-1.5e3, "metadata": { "managedFields" : [ {} , [1] ] } }"#,
                r#"{"kind":"P", "n":-1.5e3, "metadata": { "managedFields" : [] } }"#,
            ),
            (
                r#"{"spec":{"metadata":{"managedFields":[1]}},"metadata":{"name":"managedFields"}}"#,
                r#"{"spec":{"metadata":{"managedFields":[1]}},"metadata":{"name":"managedFields"}}"#,
            ),
            (r#"{"metadata":{"managedFields":[]}}"#, r#"{"metadata":{"managedFields":[]}}"#),
            (r#"{"metadata":{"managedFields":null}}"#, r#"{"metadata":{"managedFields":null}}"#),
            (r#"{"metadata":{"managedFields":[{"a"#, r#"{"metadata":{"managedFields":[{"a"#),
            (r#"{"metadata":{"a\"#, r#"{"metadata":{"a\"#),
            ("[1]", "[1]"),
            ("}", "}"),
            ("", ""),
        ] {
            let mut bytes = BytesMut::from(text);
            managed_fields(&mut bytes, 0);
            assert_eq!(bytes, expected);
        }
    }
}
