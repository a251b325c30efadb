//! Functions of expressions: one file per library, one row per function.

pub mod authorizer;
mod conversions;
pub mod formats;
mod lists;
pub mod net;
pub mod operators;
mod optional;
mod quantity;
pub mod semver;
pub mod strings;
mod text_format;
pub mod time;
pub mod url;

use crate::types::Signature;
use crate::value::{EvaluationResult, Fault, Value};
use std::collections::HashMap;
use std::sync::LazyLock;

/// Implementation of a function; the receiver is the first argument.
pub type Body = for<'a> fn(&[Value<'a>]) -> EvaluationResult<'a>;

/// A function: name, signatures and implementation.
pub type Row = (&'static str, &'static [&'static str], Body);

pub struct Function {
    pub name: &'static str,
    pub signatures: Vec<Signature>,
    /// Functions of this name in all libraries.
    bodies: Vec<Body>,
}

impl Function {
    pub fn call<'a>(&self, arguments: &[Value<'a>]) -> EvaluationResult<'a> {
        let mut outcome = Err(Fault::no_such_overload());
        for body in &self.bodies {
            outcome = body(arguments);
            if !matches!(&outcome, Err(fault) if *fault == Fault::no_such_overload()) {
                break;
            }
        }
        outcome
    }
}

static LIBRARIES: &[&[Row]] = &[
    operators::ROWS,
    conversions::ROWS,
    time::ROWS,
    strings::ROWS,
    text_format::ROWS,
    lists::ROWS,
    optional::ROWS,
    quantity::ROWS,
    net::ROWS,
    url::ROWS,
    semver::ROWS,
    formats::ROWS,
    authorizer::ROWS,
];

static FUNCTIONS: LazyLock<HashMap<&'static str, Function>> = LazyLock::new(|| {
    let mut functions: HashMap<&'static str, Function> = HashMap::new();
    for (name, signatures, body) in LIBRARIES.iter().copied().flatten() {
        let function = functions.entry(name).or_insert_with(|| Function {
            name,
            signatures: Vec::new(),
            bodies: Vec::new(),
        });
        function.signatures.extend(signatures.iter().filter_map(|text| Signature::parse(text)));
        function.bodies.push(*body);
    }
    functions
});

pub fn find(name: &str) -> Option<&'static Function> {
    FUNCTIONS.get(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signature_in_tables_parses() {
        for (name, signatures, _) in LIBRARIES.iter().copied().flatten() {
            for text in *signatures {
                assert!(Signature::parse(text).is_some(), "{name}: {text}");
            }
        }
    }
}
