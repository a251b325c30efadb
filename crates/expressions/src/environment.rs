//! Environments: the variables, types and functions available to expressions, and their compilation.

use crate::check;
use crate::estimate::{self, Estimate, Extent};
use crate::evaluate::Program;
use crate::functions::{self, Function};
use crate::parse::{self, Issue};
use crate::types::Type;

/// Compilation error of an expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    #[error("compilation failed: {0}")]
    Invalid(String),
    #[error("must evaluate to {0} but got {1}")]
    Type(String, String),
}

/// Variables, types and functions.
///
/// ```
/// use expressions::{Environment, Inputs, Type, Value};
/// use serde_json::json;
///
/// let environment = Environment::new([("object", Type::Dyn)]);
/// assert!(environment.compile("object.spec.replicas +").is_err());
/// let program = environment.compile("object.spec.replicas > 1 && object.metadata.name.startsWith('web')")?;
/// let object = json!({"metadata": {"name": "web-1"}, "spec": {"replicas": 3}});
/// let variables = [Value::from(&object)];
/// let (outcome, _cost) = program.evaluate(&Inputs { variables: &variables, ..Inputs::default() });
/// assert_eq!(outcome.expect("no fault").to_json(), Ok(json!(true)));
/// # Ok::<(), expressions::CompileError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Environment {
    variables: Vec<(String, Type)>,
    pub(crate) composed: Option<Composed>,
    has_patch_types: bool,
    has_bindings: bool,
}

/// Variables that are expressions themselves: `variables.name`.
#[derive(Clone, Debug)]
pub(crate) struct Composed {
    pub name: String,
    pub variables: Vec<(String, Type)>,
}

impl Environment {
    /// Declares the variables; evaluation takes their values in this order.
    pub fn new<'n>(variables: impl IntoIterator<Item = (&'n str, Type)>) -> Self {
        let variables = variables.into_iter().map(|(name, of)| (name.to_owned(), of)).collect();
        Self { variables, ..Self::default() }
    }

    /// Also allows expressions to build patches: `Object{…}`, `JSONPatch{…}`.
    #[must_use]
    pub fn with_patch_types(mut self) -> Self {
        self.has_patch_types = true;
        self
    }

    /// Also allows bindings: `cel.bind(…)`.
    #[must_use]
    pub fn with_bindings(mut self) -> Self {
        self.has_bindings = true;
        self
    }

    /// Also allows composed variables as fields of this name; initially there are none.
    #[must_use]
    pub fn with_composed(mut self, name: &str) -> Self {
        self.composed = Some(Composed { name: name.to_owned(), variables: Vec::new() });
        self
    }

    /// Declares one more composed variable. Evaluation takes their programs in the same order.
    pub fn compose(&mut self, name: &str, of: Type) {
        if let Some(composed) = &mut self.composed {
            composed.variables.push((name.to_owned(), of));
        }
    }

    pub(crate) fn variable(&self, name: &str) -> Option<(usize, &Type)> {
        self.variables
            .iter()
            .enumerate()
            .find(|(_, (known, _))| known == name)
            .map(|(variable_index, (_, of))| (variable_index, of))
    }

    pub(crate) fn function(&self, name: &str) -> Option<&'static Function> {
        let function = functions::find(name)?;
        (self.has_patch_types || name != "jsonpatch.escapeKey").then_some(function)
    }

    pub(crate) fn named_type(&self, name: &str) -> Option<Type> {
        Some(match name {
            "bool" => Type::Bool,
            "int" => Type::Int,
            "uint" => Type::Uint,
            "double" => Type::Double,
            "string" => Type::String,
            "bytes" => Type::Bytes,
            "null_type" => Type::Null,
            "list" => Type::list(Type::Dyn),
            "map" => Type::map(Type::Dyn, Type::Dyn),
            "type" => Type::Type(None),
            "optional_type" => Type::optional(Type::Dyn),
            "google.protobuf.Timestamp" => Type::Timestamp,
            "google.protobuf.Duration" => Type::Duration,
            "net.IP" => Type::Opaque("net.IP"),
            "net.CIDR" => Type::Opaque("net.CIDR"),
            "JSONPatch" if self.has_patch_types => json_patch_type(),
            name if self.has_patch_types && (name == "Object" || name.starts_with("Object.")) => {
                Type::open_object(name)
            }
            _ => return None,
        })
    }

    /// Compiles an expression of any type.
    pub fn compile(&self, text: &str) -> Result<Program, CompileError> {
        let compiled = parse::with_stack(text, || {
            let (tree, positions) = parse::parse(text, self.has_bindings)?;
            check::check(self, &positions, &tree)
        });
        match compiled.unwrap_or_else(|| Err(vec![unparsed()])) {
            Ok(checked) => Ok(Program::new(text, checked)),
            Err(issues) => Err(CompileError::Invalid(parse::show(text, &issues))),
        }
    }

    /// Estimates the maximum cost of an expression if all variables have the sizes of `extent`.
    pub fn estimate(&self, text: &str, extent: &Extent) -> Result<Estimate, CompileError> {
        let estimated = parse::with_stack(text, || {
            let (tree, positions) = parse::parse(text, self.has_bindings)?;
            let facts = check::check_parts(self, &positions, &tree)?;
            Ok(estimate::estimate(&tree, &facts, extent))
        });
        estimated
            .unwrap_or_else(|| Err(vec![unparsed()]))
            .map_err(|issues| CompileError::Invalid(parse::show(text, &issues)))
    }

    /// Compiles an expression that must be of one of these types.
    pub fn compile_to(&self, text: &str, wanted: &[Type]) -> Result<Program, CompileError> {
        let program = self.compile(text)?;
        if wanted.contains(program.result_type()) {
            return Ok(program);
        }
        let wanted = match wanted {
            [one] => one.runtime_name(),
            several => {
                let names: Vec<String> = several.iter().map(Type::runtime_name).collect();
                return Err(CompileError::Type(
                    format!("one of [{}]", names.join(" ")),
                    program.result_type().runtime_name(),
                ));
            }
        };
        Err(CompileError::Type(wanted, program.result_type().runtime_name()))
    }

    /// Compiles an expression that is of one of these types, or of a type known only at evaluation.
    pub fn compile_about(&self, text: &str, wanted: &[Type]) -> Result<Program, CompileError> {
        let program = self.compile(text)?;
        let of = program.result_type();
        let may_be = |wanted: &Type| match (of, wanted) {
            (Type::List(_), Type::List(_)) | (Type::Map(_), Type::Map(_)) => true,
            (of, wanted) => of == wanted,
        };
        match wanted.first() {
            Some(first) if *of != Type::Dyn && !wanted.iter().any(may_be) => {
                let name = first.runtime_name();
                Err(CompileError::Type(name, of.runtime_name()))
            }
            _ => Ok(program),
        }
    }
}

fn unparsed() -> Issue {
    Issue { line: 1, column: 0, message: "failed to parse the expression".to_owned() }
}

/// One operation of a JSON patch.
pub fn json_patch_type() -> Type {
    Type::object(
        "JSONPatch",
        [("op", Type::String), ("path", Type::String), ("from", Type::String), ("value", Type::Dyn)],
    )
}

/// Type of a patch of type `ApplyConfiguration`.
pub fn apply_configuration_type() -> Type {
    Type::open_object("Object")
}

/// Type of a composed variable; types of objects become dynamic.
pub fn composed_type(of: &Type) -> Type {
    match of {
        Type::List(inner) => Type::list(composed_type(inner)),
        Type::Map(inner) => Type::map(composed_type(&inner.0), composed_type(&inner.1)),
        Type::Object(_) | Type::Opaque(_) | Type::Optional(_) | Type::Type(_) | Type::Variable(_) => {
            Type::Dyn
        }
        other => other.clone(),
    }
}
