//! Device selectors: their CEL environment, and the value of a device.

use crate::environment::Environment;
use crate::evaluate::{Inputs, Program};
use crate::types::{Type, library};
use crate::value::{Key, Map, Text, Value};
use machinery::names::SemanticVersion;
use machinery::quantity::Quantity;
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

static ENVIRONMENT: LazyLock<Environment> = LazyLock::new(|| {
    let by_domain = |of: Type| Type::map(Type::String, Type::map(Type::String, of));
    let device = Type::object(
        "kubernetes.DRADevice",
        [
            ("driver", Type::String),
            ("allowMultipleAllocations", Type::Bool),
            ("attributes", by_domain(Type::Dyn)),
            ("capacity", by_domain(library("kubernetes.Quantity"))),
        ],
    );
    Environment::new([("device", device)]).with_bindings()
});

/// Value of a device attribute.
#[derive(Clone, Copy, Debug)]
pub enum Attribute<'a> {
    Bool(bool),
    Int(i64),
    String(&'a str),
    /// A semantic version.
    Version(&'a str),
}

/// Compiles a selector's expression.
pub fn compile(text: &str) -> Result<Program, String> {
    let program = ENVIRONMENT.compile(text).map_err(|error| error.to_string())?;
    match program.result_type() {
        // An attribute may itself be a boolean.
        Type::Bool | Type::Dyn => Ok(program),
        other => Err(format!("must evaluate to bool or the unknown type, not {}", other.runtime_name())),
    }
}

/// Validation error of a selector's expression.
pub fn check(text: &str) -> Result<(), String> {
    compile(text).map(drop)
}

/// Value of the variable `device`. A name without a domain belongs to the driver's domain; looking up an unknown domain
/// returns an empty map.
pub fn value<'a>(
    driver: &'a str,
    allows_multiple: bool,
    attributes: impl Iterator<Item = (&'a str, Attribute<'a>)>,
    capacity: impl Iterator<Item = (&'a str, Quantity)>,
) -> Result<Value<'a>, String> {
    let attributes = attributes.map(|(name, attribute)| {
        let value = match attribute {
            Attribute::Bool(value) => Value::Bool(value),
            Attribute::Int(value) => Value::Int(value),
            Attribute::String(value) => Value::String(Text::Borrowed(value)),
            Attribute::Version(value) => {
                let version = SemanticVersion::parse(value)
                    .map_err(|error| format!("attribute {name}: parse semantic version: {error}"))?;
                Value::Semver(Arc::new(version))
            }
        };
        Ok((name, value))
    });
    let attributes = by_domain(driver, attributes)?;
    let capacity = by_domain(driver, capacity.map(|(name, value)| Ok((name, Value::Quantity(value)))))?;
    Ok(Value::map(BTreeMap::from([
        (key("driver"), Value::String(Text::Borrowed(driver))),
        (key("allowMultipleAllocations"), Value::Bool(allows_multiple)),
        (key("attributes"), attributes),
        (key("capacity"), capacity),
    ])))
}

/// Evaluates a selector for a device.
pub fn matches(program: &Program, device: &Value<'_>) -> Result<bool, String> {
    let variables = [device.clone()];
    let (outcome, _) = program.evaluate(&Inputs { variables: &variables, ..Inputs::default() });
    let value = outcome.map_err(|fault| fault.to_string())?;
    value.as_bool().ok_or_else(|| {
        format!(
            "CEL result of type {} could not be converted to bool: type conversion error",
            value.type_name()
        )
    })
}

fn key(name: &str) -> Key {
    Key::String(Arc::from(name))
}

fn by_domain<'a>(
    driver: &str,
    values: impl Iterator<Item = Result<(&'a str, Value<'a>), String>>,
) -> Result<Value<'a>, String> {
    let mut domains: BTreeMap<Key, BTreeMap<Key, Value<'a>>> = BTreeMap::new();
    for value in values {
        let (name, value) = value?;
        let (domain, id) = name.split_once('/').unwrap_or((driver, name));
        domains.entry(key(domain)).or_default().insert(key(id), value);
    }
    let domains = domains.into_iter().map(|(domain, values)| (domain, Value::map(values))).collect();
    Ok(Value::Map(Map::Defaulted(Arc::new(domains))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_selectors_are_type_checked() {
        for (text, holds) in [
            ("device.driver == 'gpu.example.com'", true),
            ("device.attributes['gpu.example.com'].model == 'x' && device.allowMultipleAllocations", true),
            ("device.capacity['gpu.example.com'].memory.isGreaterThan(quantity('10Gi'))", true),
            ("cel.bind(a, device.attributes['gpu.example.com'], a.one && a.two)", true),
            ("device.attributes['gpu.example.com'].healthy", true),
            ("device.driver", false),
            ("device.nosuch == 1", false),
            ("", false),
        ] {
            assert_eq!(check(text).is_ok(), holds, "{text}: {:?}", check(text));
        }
    }

    #[test]
    fn device_matches_selector_by_attributes_and_capacity() {
        let attributes = [
            ("model", Attribute::String("a100")),
            ("other.example.com/numa", Attribute::Int(1)),
            ("healthy", Attribute::Bool(true)),
            ("firmware", Attribute::Version("1.2.3")),
        ];
        let memory = Quantity::parse("16Gi").expect("a quantity");
        let device = value("d.example.com", true, attributes.into_iter(), [("memory", memory)].into_iter());
        let device = device.expect("a device");
        let domain = "device.attributes['d.example.com']";
        for (text, expected) in [
            ("device.driver == 'd.example.com'".to_owned(), Ok(true)),
            ("device.allowMultipleAllocations".to_owned(), Ok(true)),
            (format!("{domain}.model == 'a100'"), Ok(true)),
            (format!("{domain}.healthy"), Ok(true)),
            (format!("{domain}.firmware.isGreaterThan(semver('1.2.0'))"), Ok(true)),
            ("device.attributes['other.example.com'].numa == 2".to_owned(), Ok(false)),
            ("'other.example.com' in device.attributes".to_owned(), Ok(true)),
            ("'absent.example.com' in device.attributes".to_owned(), Ok(false)),
            ("has(device.attributes['absent.example.com'].x)".to_owned(), Ok(false)),
            ("device.attributes['absent.example.com'].x == 1".to_owned(), Err("no such key: x".to_owned())),
            ("device.capacity['d.example.com'].memory.compareTo(quantity('16Gi')) == 0".to_owned(), Ok(true)),
            (
                format!("{domain}.model"),
                Err("CEL result of type string could not be converted to bool: type conversion error"
                    .to_owned()),
            ),
        ] {
            let program = compile(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(matches(&program, &device), expected, "{text}");
        }
    }

    #[test]
    fn device_with_invalid_version_has_no_value() {
        let attributes = [("firmware", Attribute::Version("one"))];
        let failed = value("d", false, attributes.into_iter(), std::iter::empty()).map(drop);
        assert!(failed.expect_err("invalid").starts_with("attribute firmware: parse semantic version: "));
    }
}
