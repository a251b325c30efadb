//! Type checker. Reports every error that needs no data, and builds the evaluation plan.

use crate::environment::Environment;
use crate::functions::{self, Function};
use crate::parse::{Issue, MAX_SHOWN, Positions};
use crate::plan::{self, Loop, Node};
use crate::types::{Fields, Signature, Type};
use crate::unify::{Bindings, instantiate, most_general};
use crate::value::{Text, Value};
use cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedEntryExpr, IdedExpr, ListExpr, LiteralValue,
    SelectExpr, StructExpr, operators,
};
use std::collections::HashMap;
use std::sync::Arc;

/// Maximum nesting of an expression: evaluation is recursive.
const MAX_DEPTH: usize = 250;

/// A checked expression.
pub struct Checked {
    pub node: Node,
    pub of: Type,
}

/// A checked subexpression; its type may still contain variables.
type Part = (Node, Type);

/// Results of the checker by expression id.
#[derive(Default)]
pub struct CheckResults {
    types: HashMap<u64, Type>,
    calls: HashMap<u64, ResolvedCall>,
}

/// A resolved function call.
pub struct ResolvedCall {
    pub name: &'static str,
    pub is_member: bool,
    /// All matching overloads.
    pub signatures: Vec<&'static Signature>,
}

impl CheckResults {
    pub fn type_of(&self, id: u64) -> Type {
        self.types.get(&id).cloned().unwrap_or(Type::Dyn)
    }

    pub fn called(&self, id: u64) -> Option<&ResolvedCall> {
        self.calls.get(&id)
    }
}

pub fn check(
    environment: &Environment,
    positions: &Positions,
    tree: &IdedExpr,
) -> Result<Checked, Vec<Issue>> {
    run(environment, positions, tree, None).map(|(checked, _)| checked)
}

/// Same as [`check`], and returns the results for every subexpression.
pub fn check_parts(
    environment: &Environment,
    positions: &Positions,
    tree: &IdedExpr,
) -> Result<CheckResults, Vec<Issue>> {
    run(environment, positions, tree, Some(CheckResults::default())).map(|(_, facts)| facts)
}

fn run(
    environment: &Environment,
    positions: &Positions,
    tree: &IdedExpr,
    facts: Option<CheckResults>,
) -> Result<(Checked, CheckResults), Vec<Issue>> {
    let mut checker = Checker {
        environment,
        positions,
        bindings: Bindings::default(),
        scope: Vec::new(),
        issues: Vec::new(),
        literal_issues: Vec::new(),
        depth: 0,
        facts,
    };
    let (node, of) = checker.part(tree);
    if checker.issues.is_empty() {
        checker.issues.append(&mut checker.literal_issues);
    }
    if !checker.issues.is_empty() {
        return Err(checker.issues);
    }
    let mut facts = checker.facts.unwrap_or_default();
    for of in facts.types.values_mut() {
        *of = checker.bindings.substitute(of, true);
    }
    Ok((Checked { node, of: checker.bindings.substitute(&of, true) }, facts))
}

struct Checker<'c> {
    environment: &'c Environment,
    positions: &'c Positions,
    bindings: Bindings,
    /// Loop variables, the innermost last; a variable's slot is its index.
    scope: Vec<(String, Type)>,
    issues: Vec<Issue>,
    /// Errors in literals; reported only if the types are correct.
    literal_issues: Vec<Issue>,
    depth: usize,
    /// Results by subexpression, if requested.
    facts: Option<CheckResults>,
}

/// Placeholder for an erroneous subexpression.
fn wrong() -> Part {
    (Node::Constant(Value::Null), Type::Error)
}

/// Dotted name that an expression spells, if any.
fn qualified_name(of: &IdedExpr) -> Option<String> {
    let mut segments = Vec::new();
    let mut expr = &of.expr;
    loop {
        match expr {
            Expr::Ident(name) => {
                segments.push(name.as_str());
                segments.reverse();
                return Some(segments.join("."));
            }
            Expr::Select(select) if !select.test => {
                segments.push(&select.field);
                expr = &select.operand.expr;
            }
            _ => return None,
        }
    }
}

impl Checker<'_> {
    fn issue(&mut self, id: u64, message: String) {
        // Further errors are not shown, so their positions are not computed.
        if self.issues.len() >= MAX_SHOWN {
            self.issues.push(Issue { line: usize::MAX, column: 0, message: String::new() });
            return;
        }
        let (line, column) = self.positions.of(id);
        self.issues.push(Issue { line, column, message });
    }

    fn literal_issue(&mut self, id: u64, message: String) {
        if self.literal_issues.len() >= MAX_SHOWN {
            return;
        }
        let (line, column) = self.positions.of(id);
        self.literal_issues.push(Issue { line, column, message });
    }

    fn mismatch(&mut self, id: u64, expected: &Type, found: &Type) {
        let (expected, found) =
            (self.bindings.substitute(expected, false), self.bindings.substitute(found, false));
        self.issue(id, format!("expected type '{expected}' but found '{found}'"));
    }

    fn undeclared(&mut self, id: u64, name: &str) -> Part {
        self.issue(id, format!("undeclared reference to '{name}' (in container '')"));
        wrong()
    }

    fn part(&mut self, expr: &IdedExpr) -> Part {
        if self.depth >= MAX_DEPTH {
            if self.depth == MAX_DEPTH {
                self.issue(expr.id, "expression is nested too deeply".to_owned());
                // Reported once, even if other subexpressions are as deep.
                self.depth = usize::MAX;
            }
            return wrong();
        }
        self.depth += 1;
        let part = match &expr.expr {
            Expr::Literal(literal) => constant(literal),
            Expr::Ident(name) => match self.name(name) {
                Some(part) => part,
                None => self.undeclared(expr.id, name),
            },
            Expr::Select(select) => self.select(expr, select),
            Expr::Call(call) => self.call(expr, call),
            Expr::List(list) => self.list(list),
            Expr::Map(map) => self.map(&map.entries),
            Expr::Struct(of) => self.make(expr.id, of),
            Expr::Comprehension(of) => self.comprehension(of),
            Expr::Unspecified => wrong(),
        };
        if self.depth != usize::MAX {
            self.depth -= 1;
        }
        if let Some(facts) = &mut self.facts {
            facts.types.insert(expr.id, part.1.clone());
        }
        part
    }

    /// Resolves a name: a loop variable, a variable of the environment, or a type.
    fn name(&self, name: &str) -> Option<Part> {
        let name = name.strip_prefix('.').unwrap_or(name);
        if let Some(variable_index) = self.scope.iter().rposition(|(known, _)| known == name) {
            let (_, of) = self.scope.get(variable_index)?;
            return Some((Node::Local(variable_index), of.clone()));
        }
        if let Some((variable_index, of)) = self.environment.variable(name) {
            return Some((Node::Variable(variable_index), of.clone()));
        }
        let of = self.environment.named_type(name)?;
        let shown = of.runtime_name();
        let shown = shown.split('(').next().unwrap_or(&shown);
        Some((Node::Constant(Value::Type(Arc::from(shown))), Type::Type(Some(Arc::new(of)))))
    }

    fn select(&mut self, expr: &IdedExpr, select: &SelectExpr) -> Part {
        if let Some(found) = qualified_name(expr).and_then(|name| self.name(&name)) {
            return found;
        }
        if let Some(resolved) = self.composed(select) {
            return match resolved {
                Ok((variable_index, of)) if !select.test => (Node::Composed(variable_index), of),
                Ok(_) => (Node::Constant(Value::Bool(true)), Type::Bool),
                Err(()) => {
                    self.issue(expr.id, format!("undefined field '{}'", select.field));
                    wrong()
                }
            };
        }
        let (operand, of) = self.part(&select.operand);
        let of = self.field(expr.id, &of, &select.field, false);
        let (operand, field) = (Box::new(operand), Arc::from(select.field.as_str()));
        if select.test {
            return (Node::Has(operand, field), Type::Bool);
        }
        (Node::Select(operand, field), of)
    }

    /// Index of the selected composed variable; `None` if the selection is on another operand, `Err` if no such
    /// variable is declared.
    fn composed(&self, select: &SelectExpr) -> Option<Result<(usize, Type), ()>> {
        let Expr::Ident(name) = &select.operand.expr else {
            return None;
        };
        if self.scope.iter().any(|(known, _)| known == name) {
            return None;
        }
        let composed = self.environment.composed.as_ref().filter(|composed| composed.name == *name)?;
        let index = composed.variables.iter().rposition(|(name, _)| *name == select.field);
        Some(index.and_then(|index| Some((index, composed.variables.get(index)?.1.clone()))).ok_or(()))
    }

    /// Type of a field of a value of this type.
    fn field(&mut self, id: u64, of: &Type, name: &str, optional: bool) -> Type {
        let of = self.bindings.substitute(of, false);
        let (target, is_optional) = match &of {
            Type::Optional(inner) => ((**inner).clone(), true),
            _ => (of, false),
        };
        let field = match &target {
            Type::Map(of) => of.1.clone(),
            Type::Object(object) => match object.field(name) {
                Some(of) => of,
                None => {
                    let message = match object.fields {
                        Fields::None => format!("unexpected failed resolution of '{}'", object.name),
                        _ => format!("undefined field '{name}'"),
                    };
                    self.issue(id, message);
                    Type::Error
                }
            },
            Type::Variable(_) => {
                self.bindings.assignable(&Type::Dyn, &target);
                Type::Dyn
            }
            Type::Dyn | Type::Error => Type::Dyn,
            other => {
                let message = format!("type '{other}' does not support field selection");
                self.issue(id, message);
                Type::Dyn
            }
        };
        if is_optional || optional { Type::optional(field) } else { field }
    }

    fn call(&mut self, expr: &IdedExpr, call: &CallExpr) -> Part {
        if call.func_name == operators::OPT_SELECT {
            return self.optional_select(expr, call);
        }
        let arguments: Vec<Part> = call.args.iter().map(|argument| self.part(argument)).collect();
        let Some(target) = &call.target else {
            let name = call.func_name.strip_prefix('.').unwrap_or(&call.func_name);
            return match self.environment.function(name) {
                Some(function) => self.apply(expr, call, function, None, arguments),
                None => self.undeclared(expr.id, &call.func_name),
            };
        };
        // `strings.quote(…)`: the apparent receiver is a part of the function's name.
        if let Some(prefix) = qualified_name(target) {
            let full = format!("{}.{}", prefix.strip_prefix('.').unwrap_or(&prefix), call.func_name);
            if let Some(function) = self.environment.function(&full) {
                return self.apply(expr, call, function, None, arguments);
            }
        }
        let target = self.part(target);
        match self.environment.function(&call.func_name) {
            Some(function) => self.apply(expr, call, function, Some(target), arguments),
            None => self.undeclared(expr.id, &call.func_name),
        }
    }

    fn optional_select(&mut self, expr: &IdedExpr, call: &CallExpr) -> Part {
        let [operand, IdedExpr { expr: Expr::Literal(LiteralValue::String(name)), .. }] =
            call.args.as_slice()
        else {
            self.issue(expr.id, "unsupported optional field selection".to_owned());
            return wrong();
        };
        let name = name.inner();
        let (operand, of) = self.part(operand);
        let of = self.field(expr.id, &of, name, true);
        (Node::SelectOptional(Box::new(operand), Arc::from(name)), of)
    }

    fn apply(
        &mut self,
        expr: &IdedExpr,
        call: &CallExpr,
        function: &'static Function,
        target: Option<Part>,
        arguments: Vec<Part>,
    ) -> Part {
        let is_member = target.is_some();
        let (nodes, types): (Vec<Node>, Vec<Type>) = target.into_iter().chain(arguments).unzip();
        if matches!(function.name, operators::LOGICAL_AND | operators::LOGICAL_OR) {
            self.note_call(expr.id, function, is_member, function.signatures.iter().take(1).collect());
            return self.logical(call, function.name, nodes, &types);
        }
        let mut result: Option<Type> = None;
        let mut fitting = Vec::new();
        for signature in &function.signatures {
            if signature.is_member != is_member || signature.arguments.len() != types.len() {
                continue;
            }
            let Some(found) = self.fits(signature, &types) else {
                continue;
            };
            fitting.push(signature);
            result = Some(match result {
                None => found,
                Some(before) if before != Type::Dyn && before != found => Type::Dyn,
                Some(before) => before,
            });
        }
        let Some(of) = result else {
            let types: Vec<String> =
                types.iter().map(|of| self.bindings.substitute(of, true).to_string()).collect();
            let shown = match types.split_first() {
                Some((target, arguments)) if is_member => format!("{target}.({})", arguments.join(", ")),
                _ => format!("({})", types.join(", ")),
            };
            let message = format!("found no matching overload for '{}' applied to '{shown}'", function.name);
            self.issue(expr.id, message);
            return wrong();
        };
        self.check_literal(function.name, call);
        self.note_call(expr.id, function, is_member, fitting);
        (plan::call(function, nodes), of)
    }

    fn note_call(
        &mut self,
        id: u64,
        function: &'static Function,
        is_member: bool,
        signatures: Vec<&'static Signature>,
    ) {
        if let Some(facts) = &mut self.facts {
            facts.calls.insert(id, ResolvedCall { name: function.name, is_member, signatures });
        }
    }

    /// Result type of the overload if it accepts these argument types.
    fn fits(&mut self, signature: &Signature, types: &[Type]) -> Option<Type> {
        let fresh: Vec<Type> = (0..signature.variables).map(|_| self.bindings.fresh()).collect();
        let wanted: Vec<Type> = signature.arguments.iter().map(|of| instantiate(of, &fresh)).collect();
        if !self.bindings.assignable_all(types.iter().zip(&wanted)) {
            return None;
        }
        Some(self.bindings.substitute(&instantiate(&signature.result, &fresh), false))
    }

    fn logical(&mut self, call: &CallExpr, name: &str, nodes: Vec<Node>, types: &[Type]) -> Part {
        let mut fits = true;
        for (argument, of) in call.args.iter().zip(types) {
            if !self.bindings.assignable(of, &Type::Bool) {
                self.mismatch(argument.id, &Type::Bool, of);
                fits = false;
            }
        }
        let mut nodes = nodes.into_iter();
        let (Some(left), Some(right), true) = (nodes.next(), nodes.next(), fits) else {
            return wrong();
        };
        let (left, right) = (Box::new(left), Box::new(right));
        let node =
            if name == operators::LOGICAL_AND { Node::And(left, right) } else { Node::Or(left, right) };
        (node, Type::Bool)
    }

    /// Reports literals whose evaluation can only fail.
    fn check_literal(&mut self, name: &str, call: &CallExpr) {
        let Some(IdedExpr { id, expr: Expr::Literal(LiteralValue::String(text)) }) = call.args.last() else {
            return;
        };
        let holds = match name {
            "duration" => functions::time::parse_duration(text.inner()).is_ok(),
            "timestamp" => functions::time::parse_timestamp(text.inner()).is_ok(),
            "matches" => functions::strings::pattern(text.inner()).is_ok(),
            _ => return,
        };
        if !holds {
            self.literal_issue(*id, format!("invalid {name} argument"));
        }
    }

    /// Common type of elements.
    fn join(&mut self, id: u64, before: Option<Type>, now: &Type) -> Type {
        let Some(before) = before else {
            return now.clone();
        };
        if self.bindings.assignable(&before, now) {
            return most_general(&before, now);
        }
        self.mismatch(id, &before, now);
        Type::Error
    }

    /// Type inside an optional element.
    fn unwrapped(&mut self, id: u64, of: Type) -> Type {
        let of = self.bindings.substitute(&of, false);
        match of {
            Type::Optional(inner) => (*inner).clone(),
            Type::Dyn | Type::Error => of,
            other => {
                self.mismatch(id, &Type::optional(other.clone()), &other);
                other
            }
        }
    }

    fn list(&mut self, list: &ListExpr) -> Part {
        let mut elements = Vec::with_capacity(list.elements.len());
        let mut common = None;
        let mut optionals = list.optional_indices.iter().copied().peekable();
        for (index, element) in list.elements.iter().enumerate() {
            let optional = optionals.next_if_eq(&index).is_some();
            let (node, mut of) = self.part(element);
            if optional {
                of = self.unwrapped(element.id, of);
            }
            common = Some(self.join(element.id, common, &of));
            elements.push((node, optional));
        }
        let of = common.unwrap_or_else(|| self.bindings.fresh());
        (Node::List(elements), Type::list(of))
    }

    fn map(&mut self, entries: &[IdedEntryExpr]) -> Part {
        let mut made = Vec::with_capacity(entries.len());
        let (mut keys, mut values) = (None, None);
        for entry in entries {
            let EntryExpr::MapEntry(entry) = &entry.expr else {
                continue;
            };
            let (key, of) = self.part(&entry.key);
            keys = Some(self.join(entry.key.id, keys, &of));
            let (value, mut of) = self.part(&entry.value);
            if entry.optional {
                of = self.unwrapped(entry.value.id, of);
            }
            values = Some(self.join(entry.value.id, values, &of));
            made.push((key, value, entry.optional));
        }
        let keys = keys.unwrap_or_else(|| self.bindings.fresh());
        let values = values.unwrap_or_else(|| self.bindings.fresh());
        (Node::Map(made), Type::map(keys, values))
    }

    fn make(&mut self, id: u64, of: &StructExpr) -> Part {
        let name = of.type_name.strip_prefix('.').unwrap_or(&of.type_name);
        let made = match self.name(name) {
            None => return self.undeclared(id, &of.type_name),
            Some((_, Type::Type(Some(made)))) => match &*made {
                Type::Object(object) => object.clone(),
                other => {
                    self.issue(id, format!("'{}' is not a message type", other.runtime_name()));
                    return wrong();
                }
            },
            Some((_, other)) => {
                self.issue(id, format!("'{}' is not a type", other.runtime_name()));
                return wrong();
            }
        };
        let mut fields = Vec::with_capacity(of.entries.len());
        for entry in &of.entries {
            let EntryExpr::StructField(field) = &entry.expr else {
                continue;
            };
            let (value, mut actual) = self.part(&field.value);
            let wanted = match made.field(&field.field) {
                Some(of) => of,
                None => {
                    self.issue(entry.id, format!("undefined field '{}'", field.field));
                    Type::Error
                }
            };
            if field.optional {
                actual = self.unwrapped(field.value.id, actual);
            }
            if !self.bindings.assignable(&wanted, &actual) {
                let actual = self.bindings.substitute(&actual, false);
                let message = format!(
                    "expected type of field '{}' is '{wanted}' but provided type is '{actual}'",
                    field.field
                );
                self.issue(entry.id, message);
            }
            fields.push((Arc::from(field.field.as_str()), value, field.optional));
        }
        (Node::Make(Arc::from(made.name.as_str()), fields), Type::Object(made))
    }

    fn comprehension(&mut self, of: &ComprehensionExpr) -> Part {
        let (range, over) = self.part(&of.iter_range);
        let (init, accumulator) = self.part(&of.accu_init);
        let over = self.bindings.substitute(&over, false);
        let two = of.iter_var2.is_some();
        let (first, second) = match &over {
            Type::List(item) if two => (Type::Int, (**item).clone()),
            Type::List(item) => ((**item).clone(), Type::Error),
            Type::Map(entry) => (entry.0.clone(), entry.1.clone()),
            Type::Dyn | Type::Error | Type::Variable(_) => {
                self.bindings.assignable(&Type::Dyn, &over);
                (Type::Dyn, Type::Dyn)
            }
            other => {
                let message = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                self.issue(of.iter_range.id, message);
                (Type::Error, Type::Error)
            }
        };
        let base = self.scope.len();
        self.scope.push((of.accu_var.clone(), accumulator.clone()));
        self.scope.push((of.iter_var.clone(), first));
        if let Some(name) = &of.iter_var2 {
            self.scope.push((name.clone(), second));
        }
        let (condition, condition_type) = self.part(&of.loop_cond);
        if !self.bindings.assignable(&Type::Bool, &condition_type) {
            self.mismatch(of.loop_cond.id, &Type::Bool, &condition_type);
        }
        let (step, step_type) = self.part(&of.loop_step);
        if !self.bindings.assignable(&accumulator, &step_type) {
            self.mismatch(of.loop_step.id, &accumulator, &step_type);
        }
        self.scope.truncate(base + 1);
        let (result, of) = self.part(&of.result);
        self.scope.truncate(base);
        let of = self.bindings.substitute(&of, false);
        let step = plan::step(step, base);
        (Node::Loop(Box::new(Loop { range, init, condition, step, result, has_two_variables: two })), of)
    }
}

fn constant(literal: &LiteralValue) -> Part {
    let (value, of) = match literal {
        LiteralValue::Boolean(flag) => (Value::Bool(*flag.inner()), Type::Bool),
        LiteralValue::Bytes(bytes) => (Value::Bytes(Arc::from(bytes.inner())), Type::Bytes),
        LiteralValue::Double(double) => (Value::Double(*double.inner()), Type::Double),
        LiteralValue::Int(int) => (Value::Int(*int.inner()), Type::Int),
        LiteralValue::Null => (Value::Null, Type::Null),
        LiteralValue::String(text) => (Value::String(Text::Shared(Arc::from(text.inner()))), Type::String),
        LiteralValue::UInt(uint) => (Value::Uint(*uint.inner()), Type::Uint),
    };
    (Node::Constant(value), of)
}
