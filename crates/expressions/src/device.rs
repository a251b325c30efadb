//! CEL environment of device selectors.

use crate::environment::Environment;
use crate::types::{Type, library};
use std::sync::LazyLock;

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

/// Validation error of a selector's expression.
pub fn check(text: &str) -> Result<(), String> {
    let program = ENVIRONMENT.compile(text).map_err(|error| error.to_string())?;
    match program.result_type() {
        // An attribute may itself be a boolean.
        Type::Bool | Type::Dyn => Ok(()),
        other => Err(format!("must evaluate to bool or the unknown type, not {}", other.runtime_name())),
    }
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
}
