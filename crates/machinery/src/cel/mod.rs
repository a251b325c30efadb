//! The Common Expression Language: rules that users write, compiled once and evaluated on JSON.
//!
//! An [`Environment`] declares the variables; [`Environment::compile`] refuses what can be refused without data: text
//! that is no expression, names nobody declares, results that cannot be of the wanted type, expressions that are too
//! large. [`Expression::evaluate`] refuses what would cost too much on the data at hand.

mod check;
mod convert;

use ::cel::{Context, Env, Program};
use serde_json::Value;
use std::sync::{Arc, LazyLock};

pub use check::Kind;

/// The longest expression, in bytes.
const MAX_TEXT: usize = 10 * 1024;
/// What one evaluation may cost at most: nodes of the expression, times what its loops may run over.
const MAX_COST: u64 = 10_000_000;

/// Functions and macros of the language and of its string and list libraries.
static LANGUAGE: LazyLock<Option<Arc<Env>>> = LazyLock::new(|| {
    let mut env = Env::stdlib();
    env.add_extension(::cel::extensions::strings).ok()?;
    env.add_extension(::cel::extensions::lists).ok()?;
    Some(Arc::new(env))
});

/// Why an expression is refused before it is evaluated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    #[error("expression is longer than {MAX_TEXT} bytes")]
    TooLong,
    #[error("compilation failed: {0}")]
    Syntax(String),
    #[error("compilation failed: undeclared reference to '{0}' (in container '')")]
    Undeclared(String),
    #[error("must evaluate to {wanted} but got {got}")]
    Type { wanted: Kind, got: Kind },
    #[error("expression is too complex: its loops are nested more than {0} deep")]
    Nesting(usize),
    #[error("the language could not be set up")]
    Language,
}

/// Why an evaluation has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvaluateError {
    #[error("{0}")]
    Failed(String),
    #[error("expression cost budget exceeded: it may cost {0} on this data")]
    Cost(u64),
    #[error("expression gave a {got}, not a {wanted}")]
    Type { got: Kind, wanted: Kind },
}

/// The variables that expressions of one place may use.
#[derive(Clone, Copy, Debug)]
pub struct Environment {
    pub variables: &'static [&'static str],
}

/// A compiled expression.
pub struct Expression {
    text: String,
    program: Program,
    language: Arc<Env>,
    variables: &'static [&'static str],
    nodes: u64,
    nesting: u32,
    splits: bool,
}

impl std::fmt::Debug for Expression {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Expression").field(&self.text).finish()
    }
}

impl Environment {
    /// Compiles an expression whose result must be of one of these kinds; none: of any.
    pub fn compile(&self, text: &str, results: &[Kind]) -> Result<Expression, CompileError> {
        if text.len() > MAX_TEXT {
            return Err(CompileError::TooLong);
        }
        let language = LANGUAGE.clone().ok_or(CompileError::Language)?;
        let program = language.compile(text).map_err(|errors| CompileError::Syntax(shown(&errors)))?;
        let shape = check::examine(program.expression(), self.variables)?;
        if let (Some(kind), Some(wanted)) = (shape.kind, results.first())
            && !results.contains(&kind)
        {
            return Err(CompileError::Type { wanted: *wanted, got: kind });
        }
        Ok(Expression {
            text: text.to_owned(),
            program,
            language,
            variables: self.variables,
            nodes: shape.nodes,
            nesting: shape.nesting,
            splits: shape.splits,
        })
    }
}

/// What is wrong where, with the line and a mark below it, as users of Kubernetes know it.
fn shown(errors: &::cel::ParseErrors) -> String {
    let lines = errors.errors.iter().map(|error| {
        let (line, column) = error.pos;
        let mut text = format!("ERROR: <input>:{line}:{column}: {}", error.msg);
        let source = error.source_info.as_ref().and_then(|info| info.snippet(line - 1)).unwrap_or("");
        let dots = ".".repeat(usize::try_from(column - 1).unwrap_or(0));
        text.push_str(&format!("\n | {source}\n | {dots}^"));
        text
    });
    lines.collect::<Vec<_>>().join("\n")
}

impl Expression {
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The result on these values of the variables, in the order of their declaration.
    pub fn evaluate(&self, values: &[&Value]) -> Result<Value, EvaluateError> {
        let widest = values.iter().map(|value| convert::widest(value, self.splits)).max().unwrap_or(0);
        let runs = u64::try_from(widest).unwrap_or(u64::MAX).max(1).saturating_pow(self.nesting);
        let cost = self.nodes.saturating_mul(runs);
        if cost > MAX_COST {
            return Err(EvaluateError::Cost(cost));
        }
        let mut context = Context::with_env(self.language.clone());
        for (name, value) in self.variables.iter().zip(values) {
            context.add_variable_from_value(*name, convert::to_cel(value));
        }
        let result =
            self.program.execute(&context).map_err(|error| EvaluateError::Failed(error.to_string()))?;
        convert::to_json(&result).map_err(EvaluateError::Failed)
    }

    /// As [`Expression::evaluate`], for conditions.
    pub fn evaluate_bool(&self, values: &[&Value]) -> Result<bool, EvaluateError> {
        let result = self.evaluate(values)?;
        result.as_bool().ok_or(EvaluateError::Type { got: Kind::of(&result), wanted: Kind::Bool })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const ENVIRONMENT: Environment = Environment { variables: &["claims", "user"] };

    fn evaluate(text: &str, claims: &Value) -> Result<Value, String> {
        let expression = ENVIRONMENT.compile(text, &[]).map_err(|error| error.to_string())?;
        expression.evaluate(&[claims, &json!({})]).map_err(|error| error.to_string())
    }

    #[test]
    fn expressions_on_json() {
        let claims = json!({
            "sub": "alice", "email": "a@b.c", "email_verified": true, "n": 3, "groups": ["x", "y"],
            "nested": {"deep": [1, 2.5]},
        });
        for (text, want) in [
            ("claims.sub", json!("alice")),
            ("'oidc:' + claims.sub", json!("oidc:alice")),
            ("claims.groups.map(g, 'p:' + g)", json!(["p:x", "p:y"])),
            ("claims.groups.exists(g, g == 'y') && claims.n > 2", json!(true)),
            ("has(claims.absent) ? claims.absent : 'none'", json!("none")),
            ("claims.?absent.orValue('none')", json!("none")),
            ("claims.email.split('@')[0]", json!("a")),
            ("claims.email.endsWith('@b.c')", json!(true)),
            ("claims.nested.deep[1]", json!(2.5)),
            ("{'a': claims.n}", json!({"a": 3})),
            ("'admin' in claims.groups", json!(false)),
            ("size(claims.groups) == 2", json!(true)),
        ] {
            assert_eq!(evaluate(text, &claims), Ok(want), "{text}");
        }
        assert!(evaluate("claims.absent", &claims).is_err());
        assert!(evaluate("claims.sub > 3", &claims).is_err());
    }

    #[test]
    fn what_is_refused_without_data() {
        for (text, results, want) in [
            (
                "claims.",
                &[][..],
                "compilation failed: ERROR: <input>:1:8: Syntax error: no viable alternative at input '.'\n | claims.\n | .......^",
            ),
            ("clams.sub", &[], "undeclared reference to 'clams'"),
            ("nosuchfunction(claims)", &[], "undeclared reference to 'nosuchfunction'"),
            ("'text'", &[Kind::Bool], "must evaluate to bool but got string"),
            ("claims.a == 'b'", &[Kind::String, Kind::List], "must evaluate to string"),
            ("", &[], "compilation failed"),
        ] {
            let error = ENVIRONMENT.compile(text, results).expect_err(text).to_string();
            assert!(error.contains(want), "{text}: {error}");
        }
        assert!(ENVIRONMENT.compile("claims.a", &[Kind::Bool]).is_ok(), "unknown types are checked later");
        let deep = format!("{}claims{}", "(".repeat(4000), ")".repeat(4000));
        assert!(ENVIRONMENT.compile(&deep, &[]).is_err(), "no stack is exhausted");
        assert_eq!(ENVIRONMENT.compile(&"a".repeat(20_000), &[]).expect_err("long"), CompileError::TooLong);
    }

    #[test]
    fn loops_over_much_data_cost_too_much() {
        let text = "claims.l.all(a, claims.l.all(b, claims.l.all(c, a + b + c >= 0)))";
        let expression = ENVIRONMENT.compile(text, &[Kind::Bool]).expect("compiles");
        let run = |n: usize| expression.evaluate_bool(&[&json!({"l": vec![1; n]}), &json!({})]);
        assert_eq!(run(10), Ok(true));
        assert!(matches!(run(1000), Err(EvaluateError::Cost(_))));
        let five =
            "claims.l.all(a, claims.l.all(b, claims.l.all(c, claims.l.all(d, claims.l.all(e, true)))))";
        assert!(matches!(ENVIRONMENT.compile(five, &[]), Err(CompileError::Nesting(_))));
    }
}
