//! Evaluation: computes a value and its cost from the values of variables. Every evaluation is bounded by its cost
//! limit.

use crate::check::Checked;
use crate::cost;
use crate::functions::authorizer::{Check, Decisions};
use crate::functions::{self, Function, operators};
use crate::plan::{Loop, Node, Step};
use crate::types::Type;
use crate::value::{BuiltObject, EvaluationResult, Fault, Key, Text, Value};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Cost limit of one evaluation.
pub const PER_CALL_LIMIT: u64 = 1_000_000;
/// Maximum depth of composed variables that refer to each other.
const MAX_COMPOSED_DEPTH: usize = 50;

/// A compiled expression.
pub struct Program {
    text: String,
    checked: Checked,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Program").field(&self.text).finish()
    }
}

/// Input of an evaluation.
#[derive(Clone, Copy)]
pub struct Inputs<'e, 'a> {
    /// Values in the order of declaration.
    pub variables: &'e [Value<'a>],
    pub composed: Option<&'e Composition<'e, 'a>>,
    /// Authorizer decisions so far.
    pub answers: Option<&'e Decisions>,
    /// Cost limit of the evaluation. Below [`PER_CALL_LIMIT`], an evaluation that costs more ends with
    /// [`Fault::Cost`] regardless of its value, and must be repeated with the full limit.
    pub limit: u64,
}

impl Default for Inputs<'_, '_> {
    fn default() -> Self {
        Self { variables: &[], composed: None, answers: None, limit: PER_CALL_LIMIT }
    }
}

/// Values of composed variables, each evaluated once, on first use.
pub struct Composition<'e, 'a> {
    /// Programs with their names, in the order of declaration. An error is the compilation error.
    programs: &'e [(String, Result<Program, String>)],
    values: RefCell<Vec<Option<EvaluationResult<'a>>>>,
    depth: Cell<usize>,
    spent: Cell<u64>,
}

impl<'e, 'a> Composition<'e, 'a> {
    pub fn new(programs: &'e [(String, Result<Program, String>)]) -> Self {
        let values = RefCell::new(programs.iter().map(|_| None).collect());
        Self { programs, values, depth: Cell::new(0), spent: Cell::new(0) }
    }

    /// Returns and resets the cost of variables since the last call.
    pub fn take_cost(&self) -> u64 {
        self.spent.take()
    }

    fn value(&self, variable_index: usize, inputs: &Inputs<'_, 'a>) -> EvaluationResult<'a> {
        if let Some(known) = self.values.borrow().get(variable_index).and_then(Clone::clone) {
            return known;
        }
        let Some((name, program)) = self.programs.get(variable_index) else {
            return Err(Fault::new("no such variable"));
        };
        let program = program
            .as_ref()
            .map_err(|why| Fault::new(format!("composited variable {name:?} fails to compile: {why}")))?;
        if self.depth.get() >= MAX_COMPOSED_DEPTH {
            return Err(Fault::new(format!("composited variable {name:?} is nested too deeply")));
        }
        self.depth.set(self.depth.get() + 1);
        let (outcome, cost) = program.run(inputs);
        self.depth.set(self.depth.get() - 1);
        if matches!(outcome, Err(Fault::Cost)) && inputs.limit < PER_CALL_LIMIT {
            return outcome;
        }
        self.spent.set(self.spent.get().saturating_add(cost));
        let outcome = outcome.map_err(|fault| match fault {
            Fault::NeedsDecision(check) => Fault::NeedsDecision(check),
            fault => Fault::new(format!("composited variable {name:?} fails to evaluate: {fault}")),
        });
        // Not stored: the decision is available in the next evaluation.
        if !matches!(outcome, Err(Fault::NeedsDecision(_)))
            && let Some(slot) = self.values.borrow_mut().get_mut(variable_index)
        {
            *slot = Some(outcome.clone());
        }
        outcome
    }
}

impl Program {
    pub(crate) fn new(text: &str, checked: Checked) -> Self {
        Self { text: text.to_owned(), checked }
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn result_type(&self) -> &Type {
        &self.checked.of
    }

    /// True if the program refers to the variable with this index.
    pub fn uses(&self, variable: usize) -> bool {
        self.checked.node.uses(variable)
    }

    /// Evaluates with the values of variables in the order of declaration.
    pub fn evaluate_json(&self, variables: &[&serde_json::Value]) -> Result<serde_json::Value, String> {
        let variables: Vec<Value<'_>> = variables.iter().map(|json| Value::from(*json)).collect();
        let (outcome, _) = self.evaluate(&Inputs { variables: &variables, ..Inputs::default() });
        outcome.map_err(|fault| fault.to_string())?.to_json()
    }

    /// Same as [`Program::evaluate_json`], for conditions.
    pub fn evaluate_bool(&self, variables: &[&serde_json::Value]) -> Result<bool, String> {
        let result = self.evaluate_json(variables)?;
        result.as_bool().ok_or_else(|| "the result is not a boolean".to_owned())
    }

    /// Returns the result and its cost.
    pub fn evaluate<'a>(&self, inputs: &Inputs<'_, 'a>) -> (EvaluationResult<'a>, u64) {
        functions::strings::begin_evaluation();
        self.run(inputs)
    }

    fn run<'a>(&self, inputs: &Inputs<'_, 'a>) -> (EvaluationResult<'a>, u64) {
        let limit = inputs.limit.min(PER_CALL_LIMIT);
        let mut run = Run { inputs, locals: Vec::new(), cost: 0, limit };
        let outcome = run.value(&self.checked.node);
        if run.cost > limit && limit < PER_CALL_LIMIT {
            return (Err(Fault::Cost), run.cost);
        }
        (outcome, run.cost)
    }
}

struct Run<'e, 'a> {
    inputs: &'e Inputs<'e, 'a>,
    /// Loop variables. Errors are values here: a loop may absorb them.
    locals: Vec<EvaluationResult<'a>>,
    cost: u64,
    limit: u64,
}

impl<'a> Run<'_, 'a> {
    fn charge(&mut self, cost: u64) -> Result<(), Fault> {
        self.cost = self.cost.saturating_add(cost);
        if self.cost > self.limit { Err(Fault::Cost) } else { Ok(()) }
    }

    fn value(&mut self, node: &Node) -> EvaluationResult<'a> {
        match node {
            Node::Constant(value) => Ok(value.clone()),
            Node::Variable(variable_index) => {
                self.charge(1)?;
                let value = self.inputs.variables.get(*variable_index);
                value.cloned().ok_or_else(|| Fault::new("no such attribute(s)"))
            }
            Node::Composed(variable_index) => {
                self.charge(2)?;
                let composed = self.inputs.composed.ok_or_else(|| Fault::new("no such attribute(s)"))?;
                composed.value(*variable_index, self.inputs)
            }
            Node::Local(variable_index) => {
                self.charge(1)?;
                self.locals
                    .get(*variable_index)
                    .cloned()
                    .unwrap_or_else(|| Err(Fault::new("no such attribute(s)")))
            }
            Node::Select(operand, name) => {
                let operand = self.value(operand)?;
                self.charge(1)?;
                select(&operand, name)
            }
            Node::Has(operand, name) => {
                let operand = self.value(operand)?;
                Ok(Value::Bool(find(&operand, name).is_some()))
            }
            Node::SelectOptional(operand, name) => {
                let operand = self.value(operand)?;
                self.charge(1)?;
                Ok(Value::Optional(find(&operand, name).map(Arc::new)))
            }
            Node::And(left, right) => self.logical(left, right, false),
            Node::Or(left, right) => self.logical(left, right, true),
            Node::Conditional(parts) => {
                let [condition, then, otherwise] = &**parts;
                match self.value(condition)? {
                    Value::Bool(true) => self.value(then),
                    Value::Bool(false) => self.value(otherwise),
                    _ => Err(Fault::no_such_overload()),
                }
            }
            Node::NotStrictlyFalse(operand) => {
                self.charge(1)?;
                match self.value(operand) {
                    Ok(Value::Bool(false)) => Ok(Value::Bool(false)),
                    Err(fault @ (Fault::Cost | Fault::NeedsDecision(_))) => Err(fault),
                    _ => Ok(Value::Bool(true)),
                }
            }
            Node::Call(function, arguments) => self.call(function, arguments),
            Node::Matches(operand, pattern) => {
                let operand = self.value(operand)?;
                let (pattern, length) = &**pattern;
                self.charge(cost::matches(operand.size(), *length))?;
                let text = operand.as_str().ok_or_else(Fault::no_such_overload)?;
                Ok(Value::Bool(pattern.is_match(text)))
            }
            Node::List(elements) => self.list(elements),
            Node::Map(entries) => self.map(entries),
            Node::Make(name, fields) => self.make(name, fields),
            Node::Loop(parts) => self.repeat(parts),
        }
    }

    fn list(&mut self, elements: &[(Node, bool)]) -> EvaluationResult<'a> {
        let mut made = Vec::with_capacity(elements.len());
        for (element, optional) in elements {
            made.extend(self.entry(element, *optional, "list element")?);
        }
        self.charge(cost::LIST)?;
        Ok(Value::list(made))
    }

    fn map(&mut self, entries: &[(Node, Node, bool)]) -> EvaluationResult<'a> {
        let mut made = BTreeMap::new();
        for (key, value, optional) in entries {
            let key = self.value(key)?;
            if let Some(value) = self.entry(value, *optional, "entry")? {
                insert(&mut made, &key, value, "unsupported key type")?;
            }
        }
        self.charge(cost::MAP)?;
        Ok(Value::map(made))
    }

    fn make(&mut self, name: &Arc<str>, fields: &[(Arc<str>, Node, bool)]) -> EvaluationResult<'a> {
        let mut made = BTreeMap::new();
        for (field, value, optional) in fields {
            if let Some(value) = self.entry(value, *optional, "entry")? {
                made.insert(field.clone(), value);
            }
        }
        self.charge(cost::STRUCT)?;
        Ok(Value::Object(Arc::new(BuiltObject { type_name: name.clone(), fields: made })))
    }

    /// Value of an element or entry; `None` for an optional one without a value.
    fn entry(&mut self, node: &Node, optional: bool, what: &str) -> Result<Option<Value<'a>>, Fault> {
        let value = self.value(node)?;
        if optional { unwrapped(value, what) } else { Ok(Some(value)) }
    }

    /// `&&` and `||`: either operand can decide even if the other fails. `decisive` is the deciding value.
    fn logical(&mut self, left: &Node, right: &Node, decisive: bool) -> EvaluationResult<'a> {
        let left = self.value(left);
        match &left {
            Ok(Value::Bool(flag)) if *flag == decisive => return Ok(Value::Bool(decisive)),
            Err(Fault::Cost | Fault::NeedsDecision(_)) => return left,
            _ => {}
        }
        let right = self.value(right);
        match (&left, &right) {
            (_, Ok(Value::Bool(flag))) if *flag == decisive => Ok(Value::Bool(decisive)),
            (_, Err(Fault::Cost | Fault::NeedsDecision(_))) => right,
            (Err(_), _) => left,
            (_, Err(_)) => right,
            (Ok(Value::Bool(_)), Ok(Value::Bool(_))) => Ok(Value::Bool(!decisive)),
            _ => Err(Fault::no_such_overload()),
        }
    }

    fn call(&mut self, function: &Function, arguments: &[Node]) -> EvaluationResult<'a> {
        let mut values = Vec::with_capacity(arguments.len());
        for argument in arguments {
            values.push(self.value(argument)?);
        }
        if let Some(check) = authorizer_check(function, &values) {
            self.charge(cost::CHECK)?;
            let answer = self.inputs.answers.and_then(|answers| answers.get(&check));
            return answer.map(Value::Decision).ok_or_else(|| Fault::NeedsDecision(Arc::new(check)));
        }
        cost::reject_oversized_result(function.name, &values)?;
        let outcome = function.call(&values);
        let result = outcome.as_ref().ok();
        self.charge(cost::call(function.name, &values, result))?;
        outcome
    }

    fn repeat(&mut self, parts: &Loop) -> EvaluationResult<'a> {
        let range = self.value(&parts.range)?;
        let init = self.value(&parts.init);
        let base = self.locals.len();
        self.locals.push(init);
        let outcome = self.rounds(parts, &range, base);
        self.locals.truncate(base);
        outcome
    }

    fn rounds(&mut self, parts: &Loop, range: &Value<'a>, base: usize) -> EvaluationResult<'a> {
        let mut accumulating = match (&parts.step, self.locals.get(base)) {
            (Step::General(_), _) => Accumulator::Not,
            (Step::Append { .. }, Some(Ok(Value::List(list)))) => Accumulator::List(list.iter().collect()),
            (Step::Insert { .. } | Step::Merge { .. }, Some(Ok(Value::Map(map)))) => Accumulator::Map(
                map.iter().filter_map(|(key, value)| Some((Key::of(&key)?, value))).collect(),
            ),
            _ => return Err(Fault::no_such_overload()),
        };
        let two = parts.has_two_variables;
        match range {
            Value::List(list) => {
                for index in 0..list.len() {
                    let Some(item) = list.get(index) else { break };
                    let index = i64::try_from(index).unwrap_or(i64::MAX);
                    let (first, second) = if two { (Value::Int(index), Some(item)) } else { (item, None) };
                    if !self.round(parts, &mut accumulating, base, first, second)? {
                        break;
                    }
                }
            }
            Value::Map(map) => {
                for (key, value) in map.iter() {
                    if !self.round(parts, &mut accumulating, base, key, two.then_some(value))? {
                        break;
                    }
                }
            }
            _ => return Err(Fault::new("unsupported comprehension range type")),
        }
        self.locals.truncate(base + 1);
        let grown = match accumulating {
            Accumulator::Not => None,
            Accumulator::List(items) => Some(Ok(Value::list(items))),
            Accumulator::Map(entries) => Some(Ok(Value::map(entries))),
            Accumulator::Failed(fault) => Some(Err(fault)),
        };
        if let (Some(grown), Some(accumulator)) = (grown, self.locals.get_mut(base)) {
            *accumulator = grown;
        }
        self.value(&parts.result)
    }

    /// Runs one iteration; false if it was the last.
    fn round(
        &mut self,
        parts: &Loop,
        accumulating: &mut Accumulator<'a>,
        base: usize,
        first: Value<'a>,
        second: Option<Value<'a>>,
    ) -> Result<bool, Fault> {
        self.locals.truncate(base + 1);
        self.locals.push(Ok(first));
        self.locals.extend(second.map(Ok));
        match self.value(&parts.condition) {
            Ok(Value::Bool(true)) => {}
            Err(fault @ (Fault::Cost | Fault::NeedsDecision(_))) => return Err(fault),
            _ => return Ok(false),
        }
        match &parts.step {
            Step::General(step) => {
                let next = self.value(step);
                if let Err(fault @ (Fault::Cost | Fault::NeedsDecision(_))) = next {
                    return Err(fault);
                }
                if let Some(accumulator) = self.locals.get_mut(base) {
                    *accumulator = next;
                }
            }
            step => match self.grow(step, accumulating) {
                Err(fault @ (Fault::Cost | Fault::NeedsDecision(_))) => return Err(fault),
                Err(fault) => {
                    *accumulating = Accumulator::Failed(fault);
                    return Ok(false);
                }
                Ok(()) => {}
            },
        }
        Ok(true)
    }

    fn grow(&mut self, step: &Step, accumulating: &mut Accumulator<'a>) -> Result<(), Fault> {
        let filter = match step {
            Step::Append { filter, .. } | Step::Insert { filter, .. } | Step::Merge { filter, .. } => filter,
            Step::General(_) => &None,
        };
        if let Some(filter) = filter {
            match self.value(filter)? {
                Value::Bool(true) => {}
                Value::Bool(false) => return self.charge(1),
                _ => return Err(Fault::no_such_overload()),
            }
        }
        match (step, accumulating) {
            (Step::Append { element, .. }, Accumulator::List(items)) => {
                let element = self.value(element)?;
                self.charge(cost::LIST + 2)?;
                items.push(element);
            }
            (Step::Insert { key, value, .. }, Accumulator::Map(entries)) => {
                let (key, value) = (self.value(key)?, self.value(value)?);
                self.charge(2)?;
                insert(entries, &key, value, "unsupported key type")?;
            }
            (Step::Merge { entries, .. }, Accumulator::Map(grown)) => {
                let Value::Map(entries) = self.value(entries)? else {
                    return Err(Fault::no_such_overload());
                };
                self.charge(1 + u64::try_from(entries.len()).unwrap_or(u64::MAX))?;
                for (key, value) in entries.iter() {
                    insert(grown, &key, value, "unsupported key type")?;
                }
            }
            _ => return Err(Fault::no_such_overload()),
        }
        Ok(())
    }
}

/// State of a loop that builds a list or map in place.
enum Accumulator<'a> {
    Not,
    List(Vec<Value<'a>>),
    Map(BTreeMap<Key, Value<'a>>),
    Failed(Fault),
}

fn insert<'a>(
    entries: &mut BTreeMap<Key, Value<'a>>,
    key: &Value<'a>,
    value: Value<'a>,
    unsupported: &str,
) -> Result<(), Fault> {
    let known = Key::of(key).ok_or_else(|| Fault::new(format!("{unsupported}: {}", key.type_name())))?;
    if entries.insert(known, value).is_some() {
        return Err(Fault::new(format!("insert failed: key {key} already exists")));
    }
    Ok(())
}

/// Authorizer check of a call, if it is one.
fn authorizer_check(function: &Function, values: &[Value<'_>]) -> Option<Check> {
    match values {
        [Value::Check(check), Value::String(verb)] if function.name == "check" => check.with_verb(verb),
        _ => None,
    }
}

/// Value of an optional element; `None` if it is absent.
fn unwrapped<'a>(value: Value<'a>, what: &str) -> Result<Option<Value<'a>>, Fault> {
    match value {
        Value::Optional(inner) => Ok(inner.map(|inner| (*inner).clone())),
        other => {
            Err(Fault::new(format!("cannot initialize optional {what} from non-optional value {other}")))
        }
    }
}

/// Value of a field, if present.
fn find<'a>(of: &Value<'a>, name: &str) -> Option<Value<'a>> {
    match of {
        Value::Map(map) => map.field(name),
        Value::Object(made) => made.fields.get(name).cloned(),
        Value::Optional(Some(inner)) => find(inner, name),
        _ => None,
    }
}

fn select<'a>(of: &Value<'a>, name: &Arc<str>) -> EvaluationResult<'a> {
    if let Value::Optional(inner) = of {
        let found = inner.as_ref().and_then(|inner| find(inner, name));
        return Ok(Value::Optional(found.map(Arc::new)));
    }
    find(of, name).ok_or_else(|| match of {
        Value::Map(_) | Value::Object(_) => no_such_key(name),
        // Keys of lists are numbers.
        Value::List(_) => Fault::new("unsupported index type 'string' in list"),
        _ => no_such_key(name),
    })
}

fn no_such_key(name: &str) -> Fault {
    operators::no_such_key(&Value::String(Text::Borrowed(name)))
}
