//! Texts of the API documentation of every type, field and operation parameter.
//!
//! They are compressed in the binary (`cargo run -p xtask -- docs` writes them) and inflated on demand, for the
//! lifetime of a [`Docs`].

use flate2::read::DeflateDecoder;
use std::io::Read as _;

const TEXTS: &[u8] = include_bytes!("texts.deflate");

/// The inflated texts, about a megabyte.
#[derive(Debug)]
pub struct Docs {
    text: String,
    /// Start and end of every type's lines in `text`, sorted by type name.
    types: Vec<(usize, usize)>,
}

impl Docs {
    /// Inflates the texts.
    pub fn load() -> Docs {
        let mut text = String::new();
        DeflateDecoder::new(TEXTS).read_to_string(&mut text).expect("the embedded texts inflate");
        let mut types = Vec::new();
        let mut position = 0;
        for line in text.split_inclusive('\n') {
            if line.starts_with('@') {
                types.push((position, position));
            }
            position += line.len();
            if let Some((_, end)) = types.last_mut() {
                *end = position;
            }
        }
        types.sort_by(|a, b| type_name(&text, *a).cmp(type_name(&text, *b)));
        Docs { text, types }
    }

    /// Texts of the types selected by `keep`, by name.
    #[must_use]
    pub fn excerpt(&self, keep: impl Fn(&str) -> bool) -> Docs {
        let (mut text, mut types) = (String::new(), Vec::new());
        for span in self.types.iter().filter(|span| keep(type_name(&self.text, **span))) {
            let start = text.len();
            text.push_str(&self.text[span.0..span.1]);
            types.push((start, text.len()));
        }
        text.shrink_to_fit();
        Docs { text, types }
    }

    /// Description of a type, for example `io.k8s.api.core.v1.Pod`.
    pub fn of_type(&self, name: &str) -> Option<String> {
        self.lines(name)?.next().and_then(|(_, text)| plain(text))
    }

    /// Description of a field of a type, with its possible values.
    pub fn of_field(&self, name: &str, field: &str) -> Option<String> {
        self.lines(name)?.skip(1).find(|(key, _)| *key == field).and_then(|(_, text)| plain(text))
    }

    /// Description of a parameter of operations: `limit`, or `PodExecOptions.stdin` if kinds differ.
    pub fn of_parameter(&self, name: &str) -> Option<String> {
        self.of_field("parameters", name)
    }

    /// Keys and escaped texts of a type, the type's own text first.
    fn lines(&self, name: &str) -> Option<impl Iterator<Item = (&str, &str)>> {
        let index = self.types.binary_search_by(|span| type_name(&self.text, *span).cmp(name)).ok()?;
        let (start, end) = self.types[index];
        Some(self.text[start..end].lines().filter_map(|line| line.split_once('\t')))
    }
}

/// Description of a field of a type, or of the type itself for an empty field. Inflates the texts each time: for more
/// than a few lookups hold a [`Docs`].
pub fn describe(type_name: &str, field: &str) -> Option<String> {
    let docs = Docs::load();
    if field.is_empty() { docs.of_type(type_name) } else { docs.of_field(type_name, field) }
}

fn type_name(text: &str, span: (usize, usize)) -> &str {
    let line = &text[span.0 + 1..span.1];
    line.split('\t').next().unwrap_or(line)
}

/// Unescapes a text; `None` if it is empty.
fn plain(text: &str) -> Option<String> {
    if text.is_empty() {
        return None;
    }
    let mut out = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        out.push(match character {
            '\\' => match characters.next() {
                Some('n') => '\n',
                Some('t') => '\t',
                Some(other) => other,
                None => '\\',
            },
            other => other,
        });
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_types_fields_and_parameters_are_found() {
        let docs = Docs::load();
        let pod = docs.of_type("io.k8s.api.core.v1.Pod").expect("Pod is described");
        assert!(pod.starts_with("Pod is a collection of containers"), "{pod}");
        let policy = docs.of_field("io.k8s.api.core.v1.Container", "imagePullPolicy").expect("described");
        assert!(policy.contains("\n\nPossible enum values:\n - `\"Always\"` means"), "{policy}");
        assert!(docs.of_parameter("limit").is_some());
        assert!(docs.of_parameter("PodExecOptions.stdin").is_some());
        assert_eq!(docs.of_type("io.k8s.api.core.v1.Nothing"), None);
        assert_eq!(docs.of_field("io.k8s.api.core.v1.Pod", "nothing"), None);
    }

    #[test]
    fn describe_returns_single_text() {
        assert!(describe("io.k8s.api.apps.v1.DeploymentList", "kind").is_some());
        assert!(describe("io.k8s.api.apps.v1.DeploymentList", "").is_some());
    }

    #[test]
    fn nearly_every_schema_type_has_description() {
        let docs = Docs::load();
        let schema = crate::schema::schema();
        let served = schema.nodes.iter().filter(|node| !node.name.is_empty() && !node.hidden);
        let silent: Vec<&str> =
            served.filter(|node| docs.of_type(&node.name).is_none()).map(|node| node.name.as_ref()).collect();
        assert!(silent.len() < 30, "{silent:?}");
    }
}
