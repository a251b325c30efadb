//! Expressions of policies and hooks: they must compile, and be of the type that their place wants.

use expressions::admission::{self, Options};
use expressions::{Environment, Type, composed_type};
use machinery::field::{FieldError, Path};

/// What a policy's expressions may use, as it is read from the first to the last.
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

    /// Declares a variable; whatever it is, others may name it.
    pub fn variable(&mut self, name: &str, text: &str, path: &Path<'_>) -> Option<FieldError> {
        let compiled = self.environment(self.options).compile(text);
        let of = compiled.as_ref().map_or(Type::Dyn, |program| composed_type(program.result_type()));
        self.variables.push((name.to_owned(), of));
        compiled.err().map(|error| FieldError::invalid_str(path, text, error.to_string()))
    }

    /// What is wrong with an expression that must be of one of these types. `shown` is how the error quotes it.
    pub fn check(&self, text: &str, shown: &str, wanted: &[Type], path: &Path<'_>) -> Option<FieldError> {
        refused(&self.environment(self.options), text, shown, wanted, path)
    }

    /// As [`Scope::check`], where the authorizer cannot be asked.
    pub fn check_message(&self, text: &str, path: &Path<'_>) -> Option<FieldError> {
        let options = Options { has_authorizer: false, ..self.options };
        refused(&self.environment(options), text, text, &[Type::String], path)
    }

    /// As [`Scope::check`], where patches are made.
    pub fn check_patch(&self, text: &str, wanted: Type, path: &Path<'_>) -> Option<FieldError> {
        let options = Options { has_patch_types: true, ..self.options };
        refused(&self.environment(options), text, text, &[wanted], path)
    }
}

/// What is wrong with a match condition.
pub fn condition(text: &str, has_params: bool, path: &Path<'_>) -> Option<FieldError> {
    let options = Options { has_params, has_authorizer: true, ..Options::default() };
    refused(&admission::environment(options), text, text, &[Type::Bool], path)
}

fn refused(
    environment: &Environment,
    text: &str,
    shown: &str,
    wanted: &[Type],
    path: &Path<'_>,
) -> Option<FieldError> {
    let error = environment.compile_to(text, wanted).err()?;
    Some(FieldError::invalid_str(path, shown, error.to_string()))
}
