//! Evaluation: values for variables in, a value out, and what it cost. Whatever an expression does, it ends when its
//! limit is reached.

use crate::check::Checked;
use crate::cost;
use crate::functions::authorizer::{Answers, Check};
use crate::functions::{self, Function, operators};
use crate::plan::{Loop, Node, Step};
use crate::types::Type;
use crate::value::{Fault, Key, Made, Outcome, Text, Value};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What one evaluation may cost.
pub const PER_CALL_LIMIT: u64 = 1_000_000;
/// How many composed variables may be evaluated for the sake of one another.
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

/// What an expression is evaluated on.
#[derive(Clone, Copy)]
pub struct Inputs<'e, 'a> {
    /// In the order of their declaration.
    pub variables: &'e [Value<'a>],
    pub composed: Option<&'e Composition<'e, 'a>>,
    /// What the authorizer has said so far.
    pub answers: Option<&'e Answers>,
    /// Cost limit of the evaluation. Below [`PER_CALL_LIMIT`], one that costs more ends with [`Fault::Cost`] whatever its
    /// value may be: it is to be repeated with the full limit.
    pub limit: u64,
}

impl Default for Inputs<'_, '_> {
    fn default() -> Self {
        Self { variables: &[], composed: None, answers: None, limit: PER_CALL_LIMIT }
    }
}

/// The values of composed variables: each is evaluated when it is first used, and once.
pub struct Composition<'e, 'a> {
    /// In the order of their declaration, with their names. An error is why one could not be compiled.
    programs: &'e [(String, Result<Program, String>)],
    values: RefCell<Vec<Option<Outcome<'a>>>>,
    depth: Cell<usize>,
    spent: Cell<u64>,
}

impl<'e, 'a> Composition<'e, 'a> {
    pub fn new(programs: &'e [(String, Result<Program, String>)]) -> Self {
        let values = RefCell::new(programs.iter().map(|_| None).collect());
        Self { programs, values, depth: Cell::new(0), spent: Cell::new(0) }
    }

    /// What variables have cost since this was last asked.
    pub fn take_cost(&self) -> u64 {
        self.spent.take()
    }

    fn value(&self, place: usize, inputs: &Inputs<'_, 'a>) -> Outcome<'a> {
        if let Some(known) = self.values.borrow().get(place).and_then(Clone::clone) {
            return known;
        }
        let Some((name, program)) = self.programs.get(place) else {
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
            Fault::Asks(check) => Fault::Asks(check),
            fault => Fault::new(format!("composited variable {name:?} fails to evaluate: {fault}")),
        });
        // A question has an answer next time.
        if !matches!(outcome, Err(Fault::Asks(_)))
            && let Some(slot) = self.values.borrow_mut().get_mut(place)
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

    /// True if the program refers to the variable that is declared at this place.
    pub fn uses(&self, variable: usize) -> bool {
        self.checked.node.uses(variable)
    }

    /// The result on these values of the variables, in the order of their declaration.
    pub fn evaluate_json(&self, variables: &[&serde_json::Value]) -> Result<serde_json::Value, String> {
        let variables: Vec<Value<'_>> = variables.iter().map(|json| Value::from(*json)).collect();
        let (outcome, _) = self.evaluate(&Inputs { variables: &variables, ..Inputs::default() });
        outcome.map_err(|fault| fault.to_string())?.to_json()
    }

    /// As [`Program::evaluate_json`], for conditions.
    pub fn evaluate_bool(&self, variables: &[&serde_json::Value]) -> Result<bool, String> {
        let result = self.evaluate_json(variables)?;
        result.as_bool().ok_or_else(|| "the result is no boolean".to_owned())
    }

    /// The result and its cost.
    pub fn evaluate<'a>(&self, inputs: &Inputs<'_, 'a>) -> (Outcome<'a>, u64) {
        functions::strings::begin_evaluation();
        self.run(inputs)
    }

    fn run<'a>(&self, inputs: &Inputs<'_, 'a>) -> (Outcome<'a>, u64) {
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
    /// Variables of loops. Errors are values here: a loop may get over them.
    locals: Vec<Outcome<'a>>,
    cost: u64,
    limit: u64,
}

impl<'a> Run<'_, 'a> {
    fn charge(&mut self, cost: u64) -> Result<(), Fault> {
        self.cost = self.cost.saturating_add(cost);
        if self.cost > self.limit { Err(Fault::Cost) } else { Ok(()) }
    }

    fn value(&mut self, node: &Node) -> Outcome<'a> {
        match node {
            Node::Constant(value) => Ok(value.clone()),
            Node::Variable(place) => {
                self.charge(1)?;
                let value = self.inputs.variables.get(*place);
                value.cloned().ok_or_else(|| Fault::new("no such attribute(s)"))
            }
            Node::Composed(place) => {
                self.charge(2)?;
                let composed = self.inputs.composed.ok_or_else(|| Fault::new("no such attribute(s)"))?;
                composed.value(*place, self.inputs)
            }
            Node::Local(place) => {
                self.charge(1)?;
                self.locals.get(*place).cloned().unwrap_or_else(|| Err(Fault::new("no such attribute(s)")))
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
                    Err(fault @ (Fault::Cost | Fault::Asks(_))) => Err(fault),
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
            Node::List(elements) => {
                let mut made = Vec::with_capacity(elements.len());
                for (element, optional) in elements {
                    let value = self.value(element)?;
                    made.extend(if *optional { unwrapped(value, "list element")? } else { Some(value) });
                }
                self.charge(cost::LIST)?;
                Ok(Value::list(made))
            }
            Node::Map(entries) => {
                let mut made = BTreeMap::new();
                for (key, value, optional) in entries {
                    let key = self.value(key)?;
                    let value = self.value(value)?;
                    let value = if *optional { unwrapped(value, "entry")? } else { Some(value) };
                    if let Some(value) = value {
                        insert(&mut made, &key, value, "unsupported key type")?;
                    }
                }
                self.charge(cost::MAP)?;
                Ok(Value::map(made))
            }
            Node::Make(name, fields) => {
                let mut made = BTreeMap::new();
                for (field, value, optional) in fields {
                    let value = self.value(value)?;
                    if let Some(value) = if *optional { unwrapped(value, "entry")? } else { Some(value) } {
                        made.insert(field.clone(), value);
                    }
                }
                self.charge(cost::STRUCT)?;
                Ok(Value::Made(Arc::new(Made { type_name: name.clone(), fields: made })))
            }
            Node::Loop(parts) => self.repeat(parts),
        }
    }

    /// `&&` and `||`: one side can decide whatever the other does. `decisive` is what decides.
    fn logical(&mut self, left: &Node, right: &Node, decisive: bool) -> Outcome<'a> {
        let left = self.value(left);
        match &left {
            Ok(Value::Bool(flag)) if *flag == decisive => return Ok(Value::Bool(decisive)),
            Err(Fault::Cost | Fault::Asks(_)) => return left,
            _ => {}
        }
        let right = self.value(right);
        match (&left, &right) {
            (_, Ok(Value::Bool(flag))) if *flag == decisive => Ok(Value::Bool(decisive)),
            (_, Err(Fault::Cost | Fault::Asks(_))) => right,
            (Err(_), _) => left,
            (_, Err(_)) => right,
            (Ok(Value::Bool(_)), Ok(Value::Bool(_))) => Ok(Value::Bool(!decisive)),
            _ => Err(Fault::no_such_overload()),
        }
    }

    fn call(&mut self, function: &Function, arguments: &[Node]) -> Outcome<'a> {
        let mut values = Vec::with_capacity(arguments.len());
        for argument in arguments {
            values.push(self.value(argument)?);
        }
        if let Some(check) = asked(function, &values) {
            self.charge(cost::CHECK)?;
            let answer = self.inputs.answers.and_then(|answers| answers.get(&check));
            return answer.map(Value::Decision).ok_or_else(|| Fault::Asks(Arc::new(check)));
        }
        cost::refuse_excess(function.name, &values)?;
        let outcome = function.call(&values);
        let result = outcome.as_ref().ok();
        self.charge(cost::call(function.name, &values, result))?;
        outcome
    }

    fn repeat(&mut self, parts: &Loop) -> Outcome<'a> {
        let range = self.value(&parts.range)?;
        let init = self.value(&parts.init);
        let base = self.locals.len();
        self.locals.push(init);
        let outcome = self.rounds(parts, &range, base);
        self.locals.truncate(base);
        outcome
    }

    fn rounds(&mut self, parts: &Loop, range: &Value<'a>, base: usize) -> Outcome<'a> {
        let mut growing = match (&parts.step, self.locals.get(base)) {
            (Step::General(_), _) => Growing::Not,
            (Step::Append { .. }, Some(Ok(Value::List(list)))) => Growing::List(list.iter().collect()),
            (Step::Insert { .. } | Step::Merge { .. }, Some(Ok(Value::Map(map)))) => {
                Growing::Map(map.iter().filter_map(|(key, value)| Some((Key::of(&key)?, value))).collect())
            }
            _ => return Err(Fault::no_such_overload()),
        };
        let two = parts.has_two_variables;
        match range {
            Value::List(list) => {
                for index in 0..list.len() {
                    let Some(item) = list.get(index) else { break };
                    let index = i64::try_from(index).unwrap_or(i64::MAX);
                    let (first, second) = if two { (Value::Int(index), Some(item)) } else { (item, None) };
                    if !self.round(parts, &mut growing, base, first, second)? {
                        break;
                    }
                }
            }
            Value::Map(map) => {
                for (key, value) in map.iter() {
                    if !self.round(parts, &mut growing, base, key, two.then_some(value))? {
                        break;
                    }
                }
            }
            _ => return Err(Fault::new("unsupported comprehension range type")),
        }
        self.locals.truncate(base + 1);
        let grown = match growing {
            Growing::Not => None,
            Growing::List(items) => Some(Ok(Value::list(items))),
            Growing::Map(entries) => Some(Ok(Value::map(entries))),
            Growing::Failed(fault) => Some(Err(fault)),
        };
        if let (Some(grown), Some(accumulator)) = (grown, self.locals.get_mut(base)) {
            *accumulator = grown;
        }
        self.value(&parts.result)
    }

    /// One round; false: it was the last.
    fn round(
        &mut self,
        parts: &Loop,
        growing: &mut Growing<'a>,
        base: usize,
        first: Value<'a>,
        second: Option<Value<'a>>,
    ) -> Result<bool, Fault> {
        self.locals.truncate(base + 1);
        self.locals.push(Ok(first));
        self.locals.extend(second.map(Ok));
        match self.value(&parts.condition) {
            Ok(Value::Bool(true)) => {}
            Err(fault @ (Fault::Cost | Fault::Asks(_))) => return Err(fault),
            _ => return Ok(false),
        }
        match &parts.step {
            Step::General(step) => {
                let next = self.value(step);
                if let Err(fault @ (Fault::Cost | Fault::Asks(_))) = next {
                    return Err(fault);
                }
                if let Some(accumulator) = self.locals.get_mut(base) {
                    *accumulator = next;
                }
            }
            step => match self.grow(step, growing) {
                Err(fault @ (Fault::Cost | Fault::Asks(_))) => return Err(fault),
                Err(fault) => {
                    *growing = Growing::Failed(fault);
                    return Ok(false);
                }
                Ok(()) => {}
            },
        }
        Ok(true)
    }

    fn grow(&mut self, step: &Step, growing: &mut Growing<'a>) -> Result<(), Fault> {
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
        match (step, growing) {
            (Step::Append { element, .. }, Growing::List(items)) => {
                let element = self.value(element)?;
                self.charge(cost::LIST + 2)?;
                items.push(element);
            }
            (Step::Insert { key, value, .. }, Growing::Map(entries)) => {
                let (key, value) = (self.value(key)?, self.value(value)?);
                self.charge(2)?;
                insert(entries, &key, value, "unsupported key type")?;
            }
            (Step::Merge { entries, .. }, Growing::Map(grown)) => {
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

/// What a loop makes, while it does.
enum Growing<'a> {
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

/// The question, if the call is one to the authorizer.
fn asked(function: &Function, values: &[Value<'_>]) -> Option<Check> {
    match values {
        [Value::Check(check), Value::String(verb)] if function.name == "check" => check.with_verb(verb),
        _ => None,
    }
}

/// What an optional element adds: itself or nothing.
fn unwrapped<'a>(value: Value<'a>, what: &str) -> Result<Option<Value<'a>>, Fault> {
    match value {
        Value::Optional(inner) => Ok(inner.map(|inner| (*inner).clone())),
        other => {
            Err(Fault::new(format!("cannot initialize optional {what} from non-optional value {other}")))
        }
    }
}

/// A field if it is there.
fn find<'a>(of: &Value<'a>, name: &str) -> Option<Value<'a>> {
    match of {
        Value::Map(map) => map.field(name),
        Value::Made(made) => made.fields.get(name).cloned(),
        Value::Optional(Some(inner)) => find(inner, name),
        _ => None,
    }
}

fn select<'a>(of: &Value<'a>, name: &Arc<str>) -> Outcome<'a> {
    if let Value::Optional(inner) = of {
        let found = inner.as_ref().and_then(|inner| find(inner, name));
        return Ok(Value::Optional(found.map(Arc::new)));
    }
    find(of, name).ok_or_else(|| match of {
        Value::Map(_) | Value::Made(_) => no_such_key(name),
        // Lists have numbers for keys.
        Value::List(_) => Fault::new("unsupported index type 'string' in list"),
        _ => no_such_key(name),
    })
}

fn no_such_key(name: &str) -> Fault {
    operators::no_such_key(&Value::String(Text::Borrowed(name)))
}
