//! Fast-path parser for stored JSON: compact, valid UTF-8, keys mostly sorted. Every update starts with it.

use super::json_writer;
use serde_json::{Map, Number, Value};
use std::borrow::Cow;

/// Parses a document. `None` for any other form, whether valid JSON or not.
pub fn decode(bytes: &[u8]) -> Option<Value> {
    decode_without(bytes, &[])
}

/// The same without members of these names at any depth; their values are not parsed.
pub fn decode_without(bytes: &[u8], names: &[&str]) -> Option<Value> {
    let mut reader = Reader { input: std::str::from_utf8(bytes).ok()?, at: 0, names };
    let value = reader.value(0)?;
    (reader.at == reader.input.len()).then_some(value)
}

struct Reader<'i> {
    input: &'i str,
    at: usize,
    /// Names of members to skip.
    names: &'i [&'i str],
}

impl<'i> Reader<'i> {
    fn peek(&self) -> Option<u8> {
        self.input.as_bytes().get(self.at).copied()
    }

    /// Consumes an expected byte.
    fn pass(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        match self.peek()? {
            b'"' => self.text().map(|text| Value::String(text.into_owned())),
            b'{' if depth < super::MAX_DEPTH => self.object(depth + 1),
            b'[' if depth < super::MAX_DEPTH => self.array(depth + 1),
            b't' => self.literal("true", Value::Bool(true)),
            b'f' => self.literal("false", Value::Bool(false)),
            b'n' => self.literal("null", Value::Null),
            _ => self.number(),
        }
    }

    fn literal(&mut self, literal: &str, value: Value) -> Option<Value> {
        self.input[self.at..].starts_with(literal).then(|| {
            self.at += literal.len();
            value
        })
    }

    fn object(&mut self, depth: usize) -> Option<Value> {
        self.at += 1;
        let mut map = Map::new();
        if self.peek()? == b'}' {
            self.at += 1;
            return Some(Value::Object(map));
        }
        let first = self.member(depth)?;
        if self.peek()? == b'}' {
            self.at += 1;
            map.extend(first);
            return Some(Value::Object(map));
        }
        // Building a map from sorted members at once takes fewer comparisons than one by one.
        let mut members = Vec::with_capacity(8);
        members.extend(first);
        while self.peek()? == b',' {
            self.at += 1;
            members.extend(self.member(depth)?);
        }
        self.pass(b'}')?;
        Some(Value::Object(members.into_iter().collect()))
    }

    /// Parses a member; `None` if it is skipped.
    fn member(&mut self, depth: usize) -> Option<Option<(String, Value)>> {
        let key = self.text()?;
        self.pass(b':')?;
        if self.names.contains(&key.as_ref()) {
            self.skip()?;
            return Some(None);
        }
        let key = key.into_owned();
        Some(Some((key, self.value(depth)?)))
    }

    /// Skips a value.
    fn skip(&mut self) -> Option<()> {
        let mut open = 0usize;
        loop {
            match self.peek()? {
                b'"' => self.skip_text()?,
                byte => {
                    match byte {
                        b'{' | b'[' => open += 1,
                        b'}' | b']' => open = open.checked_sub(1)?,
                        _ => {}
                    }
                    self.at += 1;
                }
            }
            if open == 0 && matches!(self.peek(), None | Some(b',' | b'}' | b']')) {
                return Some(());
            }
        }
    }

    /// Skips a string, including its quotes.
    fn skip_text(&mut self) -> Option<()> {
        let bytes = self.input.as_bytes();
        self.pass(b'"')?;
        loop {
            self.at += json_writer::plain_length(bytes.get(self.at..)?);
            match self.peek()? {
                b'"' => break self.at += 1,
                b'\\' => self.at += 2,
                _ => self.at += 1,
            }
        }
        Some(())
    }

    fn array(&mut self, depth: usize) -> Option<Value> {
        self.at += 1;
        let mut items = Vec::new();
        if self.peek()? == b']' {
            self.at += 1;
            return Some(Value::Array(items));
        }
        items.push(self.value(depth)?);
        while self.peek()? == b',' {
            self.at += 1;
            items.push(self.value(depth)?);
        }
        self.pass(b']')?;
        Some(Value::Array(items))
    }

    fn text(&mut self) -> Option<Cow<'i, str>> {
        let start = self.at;
        self.pass(b'"')?;
        self.at += json_writer::plain_length(&self.input.as_bytes()[self.at..]);
        if self.peek()? == b'"' {
            self.at += 1;
            return Some(Cow::Borrowed(&self.input[start + 1..self.at - 1]));
        }
        // With escapes.
        self.at = start;
        self.skip_text()?;
        serde_json::from_str(self.input.get(start..self.at)?).ok().map(Cow::Owned)
    }

    fn number(&mut self) -> Option<Value> {
        let rest = &self.input[self.at..];
        let length = rest
            .bytes()
            .take_while(|byte| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E'))
            .count();
        let token = &rest[..length];
        self.at += length;
        let plain = length < 19 && (length == 1 || !token.starts_with('0'));
        let mut whole = 0u64;
        for byte in token.bytes() {
            match byte {
                b'0'..=b'9' if plain => whole = whole * 10 + u64::from(byte - b'0'),
                _ => return serde_json::from_str::<Number>(token).ok().map(Value::Number),
            }
        }
        (length > 0).then(|| Value::from(whole))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::json;
    use proptest::prelude::*;

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            (0u64..1000).prop_map(Value::from),
            (-1e9..1e9f64).prop_map(Value::from),
            "[a-z\"\\\\\u{0}-\u{20}ü€\u{7f}]{0,20}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 64, 8, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::btree_map("[a-d\"ü]{0,3}", inner, 0..20)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    fn leave_out(value: &mut Value, names: &[&str]) {
        match value {
            Value::Object(map) => {
                map.retain(|name, _| !names.contains(&name.as_str()));
                map.values_mut().for_each(|value| leave_out(value, names));
            }
            Value::Array(items) => items.iter_mut().for_each(|value| leave_out(value, names)),
            _ => {}
        }
    }

    proptest! {
        #[test]
        fn stored_json_round_trips(value in any_value()) {
            let written = json::encode(&value);
            prop_assert_eq!(decode(&written), serde_json::from_slice(&written).ok());
        }

        #[test]
        fn skipped_members_are_absent_and_others_present(value in any_value()) {
            let names = ["a", "b\"", ""];
            let written = json::encode(&value);
            let mut rest = serde_json::from_slice(&written).ok();
            rest.iter_mut().for_each(|value| leave_out(value, &names));
            prop_assert_eq!(decode_without(&written, &names), rest);
        }

        #[test]
        fn arbitrary_bytes_parse_like_serde_or_not_at_all(text in "[\\[\\]{}\",:0-9eE+.\\-\\\\a-fnrtu ü]{0,24}") {
            if let Some(value) = decode(text.as_bytes()) {
                prop_assert_eq!(serde_json::from_str::<Value>(&text).ok(), Some(value));
            }
        }
    }

    #[test]
    fn unusual_documents_are_not_misread() {
        for text in [
            "",
            "{",
            "{\"a\":1",
            "{\"a\":1,}",
            "[1,]",
            "[1 ]",
            "01",
            "-",
            "1x",
            "nul",
            "\"a",
            "\"\\",
            "{\"a\" :1}",
        ] {
            assert_eq!(decode(text.as_bytes()), None, "{text}");
        }
        assert_eq!(decode("[".repeat(100_000).as_bytes()), None);
        let twice = decode(br#"{"b":1,"a":2,"b":3}"#).map(|value| value.to_string());
        assert_eq!(twice.as_deref(), Some(r#"{"a":2,"b":3}"#));
    }
}
