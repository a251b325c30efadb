//! What an expression tells of itself without data: which names it uses, how large it is, what it gives.

use super::CompileError;
use ::cel::common::ast::{EntryExpr, Expr, IdedEntryExpr, IdedExpr, LiteralValue, operators};
use serde_json::Value;
use std::fmt;

/// Loops inside loops.
const MAX_NESTING: u32 = 4;

/// Functions that expressions may call, operators aside.
const FUNCTIONS: &[&str] = &[
    // The language.
    "size",
    "contains",
    "startsWith",
    "endsWith",
    "matches",
    "string",
    "int",
    "uint",
    "double",
    "bytes",
    "bool",
    "dyn",
    "type",
    "hasValue",
    "value",
    "or",
    "orValue",
    "optMap",
    "optFlatMap",
    "of",
    "none",
    "ofNonZeroValue",
    // Strings.
    "charAt",
    "indexOf",
    "lastIndexOf",
    "join",
    "lowerAscii",
    "upperAscii",
    "replace",
    "split",
    "substring",
    "trim",
    "reverse",
    "quote",
    "format",
    "strings.quote",
    // Kubernetes' own: the authorizer, URLs, quantities, addresses, versions, formats, regular expressions.
    "group",
    "resource",
    "subresource",
    "namespace",
    "name",
    "check",
    "allowed",
    "reason",
    "errored",
    "error",
    "path",
    "serviceAccount",
    "fieldSelector",
    "labelSelector",
    "url",
    "isURL",
    "getScheme",
    "getHost",
    "getHostname",
    "getPort",
    "getEscapedPath",
    "getQuery",
    "quantity",
    "isQuantity",
    "sign",
    "isGreaterThan",
    "isLessThan",
    "compareTo",
    "asInteger",
    "isInteger",
    "asApproximateFloat",
    "add",
    "sub",
    "ip",
    "isIP",
    "isCanonical",
    "family",
    "isUnspecified",
    "isLoopback",
    "isLinkLocalMulticast",
    "isLinkLocalUnicast",
    "isGlobalUnicast",
    "cidr",
    "isCIDR",
    "containsIP",
    "containsCIDR",
    "prefixLength",
    "masked",
    "semver",
    "isSemver",
    "major",
    "minor",
    "patch",
    "find",
    "findAll",
    "validate",
    "named",
    "isSorted",
    "sum",
    "min",
    "max",
    "sets.contains",
    "sets.equivalent",
    "sets.intersects",
    "equivalent",
    "intersects",
    "duration",
    "timestamp",
    "getFullYear",
    "getMonth",
    "getDayOfYear",
    "getDayOfMonth",
    "getDate",
    "getDayOfWeek",
    "getHours",
    "getMinutes",
    "getSeconds",
    "getMilliseconds",
    "encode",
    "decode",
    "transformList",
    "transformMap",
    "existsOne",
    "transformMapEntry",
    "bind",
    // Lists.
    "slice",
    "flatten",
    "distinct",
    "sort",
    "sortBy",
    "range",
    "lists.range",
    "first",
    "last",
];

/// What an expression gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Null,
    Bool,
    Int,
    Double,
    String,
    List,
    Map,
}

impl Kind {
    pub fn of(value: &Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(_) => Self::Bool,
            Value::Number(number) if number.is_f64() => Self::Double,
            Value::Number(_) => Self::Int,
            Value::String(_) => Self::String,
            Value::Array(_) => Self::List,
            Value::Object(_) => Self::Map,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Null => "null",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Double => "double",
            Self::String => "string",
            Self::List => "list",
            Self::Map => "map",
        })
    }
}

pub struct Shape {
    /// `None`: it depends on the data.
    pub kind: Option<Kind>,
    pub nodes: u64,
    /// How deep loops are nested.
    pub nesting: u32,
    /// It makes lists of strings.
    pub splits: bool,
}

/// Examines an expression that may use these variables. The parser bounds its depth, so recursion is safe.
pub fn examine(expression: &IdedExpr, variables: &[&str]) -> Result<Shape, CompileError> {
    let mut walk = Walk { scope: variables.to_vec(), nodes: 0, nesting: 0, deepest: 0, splits: false };
    walk.visit(expression)?;
    if walk.deepest > MAX_NESTING {
        return Err(CompileError::Nesting(MAX_NESTING as usize));
    }
    Ok(Shape {
        kind: kind_of(&expression.expr),
        nodes: walk.nodes,
        nesting: walk.deepest,
        splits: walk.splits,
    })
}

struct Walk<'a> {
    scope: Vec<&'a str>,
    nodes: u64,
    nesting: u32,
    deepest: u32,
    splits: bool,
}

impl<'a> Walk<'a> {
    fn visit(&mut self, expression: &'a IdedExpr) -> Result<(), CompileError> {
        self.nodes += 1;
        match &expression.expr {
            Expr::Ident(name) => self.known(name),
            Expr::Call(call) => {
                let is_operator = !call.func_name.starts_with(|c: char| c.is_ascii_alphabetic());
                if !is_operator && !FUNCTIONS.contains(&call.func_name.as_str()) {
                    return Err(CompileError::Undeclared(call.func_name.clone()));
                }
                self.splits |= call.func_name == "split";
                if let Some(target) = &call.target {
                    // `optional.of(x)` has a namespace where others have a value.
                    let namespace = matches!(&target.expr, Expr::Ident(name) if is_namespace(name));
                    if !namespace {
                        self.visit(target)?;
                    }
                }
                call.args.iter().try_for_each(|argument| self.visit(argument))
            }
            Expr::Comprehension(loops) => {
                self.visit(&loops.iter_range)?;
                self.visit(&loops.accu_init)?;
                let before = self.scope.len();
                self.scope.push(&loops.iter_var);
                self.scope.extend(loops.iter_var2.as_deref());
                self.scope.push(&loops.accu_var);
                self.nesting += 1;
                self.deepest = self.deepest.max(self.nesting);
                self.visit(&loops.loop_cond)?;
                self.visit(&loops.loop_step)?;
                self.nesting -= 1;
                self.visit(&loops.result)?;
                self.scope.truncate(before);
                Ok(())
            }
            Expr::Select(select) => self.visit(&select.operand),
            Expr::List(list) => list.elements.iter().try_for_each(|element| self.visit(element)),
            Expr::Map(map) => self.entries(&map.entries),
            Expr::Struct(of) => Err(CompileError::Undeclared(of.type_name.clone())),
            Expr::Literal(_) | Expr::Unspecified => Ok(()),
        }
    }

    fn entries(&mut self, entries: &'a [IdedEntryExpr]) -> Result<(), CompileError> {
        for entry in entries {
            match &entry.expr {
                EntryExpr::MapEntry(entry) => {
                    self.visit(&entry.key)?;
                    self.visit(&entry.value)?;
                }
                EntryExpr::StructField(field) => self.visit(&field.value)?,
            }
        }
        Ok(())
    }

    fn known(&self, name: &str) -> Result<(), CompileError> {
        // Names with an @ are made by macros; types are values too.
        let is_type = matches!(
            name,
            "bool" | "int" | "uint" | "double" | "string" | "bytes" | "list" | "map" | "null_type" | "type"
        );
        if name.starts_with('@') || is_type || self.scope.contains(&name) {
            return Ok(());
        }
        Err(CompileError::Undeclared(name.to_owned()))
    }
}

fn is_namespace(name: &str) -> bool {
    matches!(
        name,
        "optional" | "lists" | "strings" | "base64" | "math" | "sets" | "format" | "ip" | "cel" | "jsonpatch"
    )
}

/// What an expression is sure to give.
fn kind_of(expression: &Expr) -> Option<Kind> {
    match expression {
        Expr::Literal(literal) => Some(match literal {
            LiteralValue::Boolean(_) => Kind::Bool,
            LiteralValue::Double(_) => Kind::Double,
            LiteralValue::Int(_) | LiteralValue::UInt(_) => Kind::Int,
            LiteralValue::Null => Kind::Null,
            LiteralValue::String(_) => Kind::String,
            LiteralValue::Bytes(_) => return None,
        }),
        Expr::List(_) => Some(Kind::List),
        Expr::Map(_) => Some(Kind::Map),
        Expr::Select(select) if select.test => Some(Kind::Bool),
        Expr::Call(call) => match call.func_name.as_str() {
            operators::EQUALS
            | operators::NOT_EQUALS
            | operators::GREATER
            | operators::GREATER_EQUALS
            | operators::LESS
            | operators::LESS_EQUALS
            | operators::LOGICAL_AND
            | operators::LOGICAL_OR
            | operators::LOGICAL_NOT
            | operators::IN
            | "contains"
            | "startsWith"
            | "endsWith"
            | "matches" => Some(Kind::Bool),
            operators::CONDITIONAL => {
                let kinds: Vec<Option<Kind>> =
                    call.args.iter().skip(1).map(|branch| kind_of(&branch.expr)).collect();
                kinds
                    .first()
                    .copied()
                    .flatten()
                    .filter(|first| kinds.iter().all(|kind| *kind == Some(*first)))
            }
            operators::ADD => call.args.iter().find_map(|side| kind_of(&side.expr)),
            "string" | "join" | "lowerAscii" | "upperAscii" | "replace" | "trim" | "substring" => {
                Some(Kind::String)
            }
            "size" | "int" | "indexOf" => Some(Kind::Int),
            "split" => Some(Kind::List),
            _ => None,
        },
        _ => None,
    }
}
