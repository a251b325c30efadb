//! Current position of a walk through an object: a chain of stack frames, converted to text only for messages.

use crate::schema::SchemaRef;

#[derive(Clone, Copy)]
pub(crate) enum Step<'a> {
    /// A struct's field, with the struct.
    Field(&'a str, SchemaRef<'a>),
    /// A map's key.
    Key(&'a str),
    /// A list's index.
    Index(usize),
}

#[derive(Clone, Copy)]
pub(crate) struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    step: Option<Step<'a>>,
}

impl<'a> Path<'a> {
    pub(crate) const ROOT: Path<'static> = Path { parent: None, step: None };

    pub(crate) fn then(&'a self, step: Step<'a>) -> Path<'a> {
        Path { parent: Some(self), step: Some(step) }
    }

    /// `spec.containers[0].image`, with `name` as the last step.
    pub(crate) fn dotted(&self, name: &str) -> String {
        let mut text = String::new();
        self.write(&mut text);
        push_name(&mut text, name);
        text
    }

    fn write(&self, text: &mut String) {
        if let Some(parent) = self.parent {
            parent.write(text);
        }
        match self.step {
            None => {}
            Some(Step::Field(name, _) | Step::Key(name)) => push_name(text, name),
            Some(Step::Index(index)) => {
                text.push('[');
                text.push_str(&index.to_string());
                text.push(']');
            }
        }
    }

    /// Struct and fields in the form of type errors: `PodSpec.spec.hostname`. Indexes and map keys are omitted,
    /// embedded structs are named. `None` outside any struct.
    pub(crate) fn go_field(&self) -> Option<String> {
        let mut steps = Vec::new();
        let mut at = Some(self);
        while let Some(path) = at {
            if let Some(Step::Field(name, owner)) = path.step {
                steps.push((name, owner));
            }
            at = path.parent;
        }
        let (_, innermost) = steps.first()?;
        let mut text = short_name(&innermost.node().name).to_owned();
        for (name, owner) in steps.iter().rev() {
            push_embedding(&mut text, *owner, name);
            push_name(&mut text, name);
        }
        Some(text)
    }
}

fn push_name(text: &mut String, name: &str) {
    if !text.is_empty() {
        text.push('.');
    }
    text.push_str(name);
}

fn short_name(full: &str) -> &str {
    full.rsplit('.').next().unwrap_or(full)
}

/// Writes the embedded structs of a field, outermost first.
fn push_embedding(text: &mut String, owner: SchemaRef<'_>, name: &str) {
    if matches!(name, "kind" | "apiVersion") && !owner.node().gvks.is_empty() {
        push_name(text, "TypeMeta");
        return;
    }
    let mut nested = owner.node().nested.iter().map(|nested| owner.schema.at(nested.node));
    if let Some(nested) = nested.find(|nested| nested.field_decl(name).is_some()) {
        push_name(text, short_name(&nested.node().name));
        push_embedding(text, nested, name);
    }
}
