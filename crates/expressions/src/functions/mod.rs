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

    /// Functions whose calls cost 1: they read a part of a value, or compute a number.
    const CONSTANT: &[&str] = &[
        "add",
        "allowed",
        "asApproximateFloat",
        "asInteger",
        "bool",
        "charAt",
        "check",
        "compareTo",
        "double",
        "duration",
        "dyn",
        "error",
        "errored",
        "family",
        "first",
        "format.named",
        "getDate",
        "getDayOfMonth",
        "getDayOfWeek",
        "getDayOfYear",
        "getEscapedPath",
        "getFullYear",
        "getHost",
        "getHostname",
        "getHours",
        "getMilliseconds",
        "getMinutes",
        "getMonth",
        "getPort",
        "getQuery",
        "getScheme",
        "getSeconds",
        "group",
        "hasValue",
        "int",
        "isGlobalUnicast",
        "isGreaterThan",
        "isInteger",
        "isLessThan",
        "isLinkLocalMulticast",
        "isLinkLocalUnicast",
        "isLoopback",
        "isURL",
        "isUnspecified",
        "last",
        "major",
        "masked",
        "minor",
        "name",
        "namespace",
        "optional.none",
        "optional.of",
        "optional.ofNonZeroValue",
        "optional.unwrap",
        "or",
        "orValue",
        "patch",
        "path",
        "prefixLength",
        "reason",
        "resource",
        "serviceAccount",
        "sign",
        "size",
        "sub",
        "subresource",
        "timestamp",
        "type",
        "uint",
        "unwrapOpt",
        "value",
    ];

    #[test]
    fn every_function_has_a_cost_or_is_constant() {
        let arguments = ["text", "text"].map(|text| Value::from(text.to_owned()));
        let names = LIBRARIES.iter().copied().flatten().map(|(name, ..)| *name);
        // Operators cost 1 unless `cost` has another one.
        let names = names.filter(|name| name.starts_with(char::is_alphabetic) && !name.contains('@'));
        let unclear: Vec<&str> = names
            .filter(|name| {
                // `format.NAME` returns a value of a table.
                let is_constant = CONSTANT.contains(name) || name.starts_with("format.");
                is_constant == crate::cost::own_cost(name, &arguments, None).is_some()
            })
            .collect();
        assert!(unclear.is_empty(), "in neither or both of `cost` and `CONSTANT`: {unclear:?}");
    }
}
