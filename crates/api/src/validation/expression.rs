//! CEL expressions of policies and webhooks: they must compile, and have the required type.

use expressions::admission::{self, Options};
use expressions::{Environment, Type, composed_type};
use machinery::field::{FieldError, Path};

/// CEL environment of a policy's expressions, extended by each variable in order.
pub struct Scope {
    options: Options,
    /// Names and types of the variables so far.
    variables: Vec<(String, Type)>,
}

impl Scope {
    pub fn new(has_params: bool, has_composed: bool) -> Self {
        let options = Options { has_params, has_composed, has_authorizer: true, has_patch_types: false };
        Self { options, variables: Vec::new() }
    }

    fn environment(&self, options: Options) -> Environment {
        let mut environment = admission::environment(options);
        for (name, of) in &self.variables {
            environment.compose(name, of.clone());
        }
        environment
    }

    /// Declares a variable; others may refer to it even if it is invalid.
    pub fn variable(&mut self, name: &str, text: &str, path: &Path<'_>) -> Option<FieldError> {
        let compiled = self.environment(self.options).compile(text);
        let of = compiled.as_ref().map_or(Type::Dyn, |program| composed_type(program.result_type()));
        self.variables.push((name.to_owned(), of));
        compiled.err().map(|error| FieldError::invalid_str(path, text, error.to_string()))
    }

    /// Error of an expression that must be of one of these types. `shown` is its text in the error.
    pub fn check(&self, text: &str, shown: &str, wanted: &[Type], path: &Path<'_>) -> Option<FieldError> {
        rejected(&self.environment(self.options), text, shown, wanted, path)
    }

    /// Same as [`Scope::check`], without the authorizer.
    pub fn check_message(&self, text: &str, path: &Path<'_>) -> Option<FieldError> {
        let options = Options { has_authorizer: false, ..self.options };
        rejected(&self.environment(options), text, text, &[Type::String], path)
    }

    /// Same as [`Scope::check`], with the types of patches.
    pub fn check_patch(&self, text: &str, wanted: Type, path: &Path<'_>) -> Option<FieldError> {
        let options = Options { has_patch_types: true, ..self.options };
        rejected(&self.environment(options), text, text, &[wanted], path)
    }
}

/// Error of a match condition.
pub fn condition(text: &str, has_params: bool, path: &Path<'_>) -> Option<FieldError> {
    let options = Options { has_params, has_authorizer: true, ..Options::default() };
    rejected(&admission::environment(options), text, text, &[Type::Bool], path)
}

fn rejected(
    environment: &Environment,
    text: &str,
    shown: &str,
    wanted: &[Type],
    path: &Path<'_>,
) -> Option<FieldError> {
    let error = environment.compile_to(text, wanted).err()?;
    Some(FieldError::invalid_str(path, shown, error.to_string()))
}
