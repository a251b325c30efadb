//! Evaluation plan: a compiled expression with variables resolved to indexes and calls to functions.

use crate::functions::{self, Function};
use crate::macros;
use crate::value::Value;
use cel::common::ast::operators;
use regex::Regex;
use std::sync::Arc;

pub enum Node {
    Constant(Value<'static>),
    /// A variable of the environment, by index.
    Variable(usize),
    /// A composed variable, by index.
    Composed(usize),
    /// A loop variable, by its index among all enclosing loops.
    Local(usize),
    Select(Box<Node>, Arc<str>),
    /// `has(…)`.
    Has(Box<Node>, Arc<str>),
    SelectOptional(Box<Node>, Arc<str>),
    And(Box<Node>, Box<Node>),
    Or(Box<Node>, Box<Node>),
    Conditional(Box<[Node; 3]>),
    /// False only if its operand is false; true on errors.
    NotStrictlyFalse(Box<Node>),
    Call(&'static Function, Vec<Node>),
    /// `matches` with a constant pattern, and the length of the pattern's source.
    Matches(Box<Node>, Box<(Regex, usize)>),
    /// Elements, each with its optional flag.
    List(Vec<(Node, bool)>),
    Map(Vec<(Node, Node, bool)>),
    Make(Arc<str>, Vec<(Arc<str>, Node, bool)>),
    Loop(Box<Loop>),
}

pub struct Loop {
    pub range: Node,
    pub init: Node,
    pub condition: Node,
    pub step: Step,
    pub result: Node,
    pub has_two_variables: bool,
}

pub enum Step {
    /// New value of the accumulator.
    General(Node),
    /// Appends one element to the accumulator, a list.
    Append { filter: Option<Node>, element: Node },
    /// Adds one entry to the accumulator, a map.
    Insert { filter: Option<Node>, key: Node, value: Node },
    /// Adds the entries of another map to the accumulator, a map.
    Merge { filter: Option<Node>, entries: Node },
}

impl Node {
    /// True if the subtree refers to a variable of the environment.
    pub fn uses(&self, variable: usize) -> bool {
        let of = |node: &Node| node.uses(variable);
        match self {
            Self::Variable(variable_index) => *variable_index == variable,
            Self::Constant(_) | Self::Composed(_) | Self::Local(_) => false,
            Self::Select(operand, _)
            | Self::Has(operand, _)
            | Self::SelectOptional(operand, _)
            | Self::NotStrictlyFalse(operand)
            | Self::Matches(operand, _) => operand.uses(variable),
            Self::And(left, right) | Self::Or(left, right) => of(left) || of(right),
            Self::Conditional(parts) => parts.iter().any(of),
            Self::Call(_, arguments) => arguments.iter().any(of),
            Self::List(elements) => elements.iter().any(|(element, _)| of(element)),
            Self::Map(entries) => entries.iter().any(|(key, value, _)| of(key) || of(value)),
            Self::Make(_, fields) => fields.iter().any(|(_, value, _)| of(value)),
            Self::Loop(parts) => {
                let Loop { range, init, condition, step, result, .. } = &**parts;
                [range, init, condition, result].into_iter().any(of) || step.uses(variable)
            }
        }
    }
}

impl Step {
    fn uses(&self, variable: usize) -> bool {
        let of = |node: &Node| node.uses(variable);
        let optional = |node: &Option<Node>| node.as_ref().is_some_and(of);
        match self {
            Self::General(step) => of(step),
            Self::Append { filter, element } => optional(filter) || of(element),
            Self::Insert { filter, key, value } => optional(filter) || of(key) || of(value),
            Self::Merge { filter, entries } => optional(filter) || of(entries),
        }
    }
}

/// Node of a call; some functions have nodes of their own.
pub fn call(function: &'static Function, nodes: Vec<Node>) -> Node {
    let pattern = match nodes.as_slice() {
        [_, Node::Constant(Value::String(text))] if function.name == "matches" => {
            functions::strings::pattern(text).ok().map(|pattern| (pattern, text.len()))
        }
        _ => None,
    };
    match (function.name, pattern, <[Node; 3]>::try_from(nodes)) {
        (operators::CONDITIONAL, _, Ok(parts)) => Node::Conditional(Box::new(parts)),
        (_, _, Ok(parts)) => Node::Call(function, Vec::from(parts)),
        (operators::NOT_STRICTLY_FALSE, _, Err(mut nodes)) if nodes.len() == 1 => {
            Node::NotStrictlyFalse(Box::new(nodes.remove(0)))
        }
        (_, Some(pattern), Err(mut nodes)) if nodes.len() == 2 => {
            Node::Matches(Box::new(nodes.remove(0)), Box::new(pattern))
        }
        (_, _, Err(nodes)) => Node::Call(function, nodes),
    }
}

/// Makes loops that build lists and maps extend them in place. `accumulator` is the accumulator's index.
pub fn step(step: Node, accumulator: usize) -> Step {
    let is_accumulator =
        |node: &Node| matches!(node, Node::Local(variable_index) if *variable_index == accumulator);
    match step {
        Node::Conditional(parts) => {
            let [filter, step, other] = *parts;
            if !is_accumulator(&other) {
                return Step::General(Node::Conditional(Box::new([filter, step, other])));
            }
            match self::step(step, accumulator) {
                Step::Append { filter: None, element } => Step::Append { filter: Some(filter), element },
                Step::Insert { filter: None, key, value } => {
                    Step::Insert { filter: Some(filter), key, value }
                }
                Step::Merge { filter: None, entries } => Step::Merge { filter: Some(filter), entries },
                Step::General(step) => Step::General(Node::Conditional(Box::new([filter, step, other]))),
                nested => nested,
            }
        }
        Node::Call(function, mut nodes) if nodes.first().is_some_and(is_accumulator) => {
            match (function.name, nodes.as_mut_slice()) {
                (operators::ADD, [_, Node::List(elements)])
                    if elements.len() == 1 && elements.iter().all(|(_, optional)| !optional) =>
                {
                    match elements.pop() {
                        Some((element, _)) => Step::Append { filter: None, element },
                        None => Step::General(Node::Call(function, nodes)),
                    }
                }
                (macros::INSERT, [_, _, _]) => {
                    let mut rest = nodes.into_iter().skip(1);
                    match (rest.next(), rest.next()) {
                        (Some(key), Some(value)) => Step::Insert { filter: None, key, value },
                        _ => Step::General(Node::Constant(Value::Null)),
                    }
                }
                (macros::INSERT, [_, _]) => match nodes.pop() {
                    Some(entries) => Step::Merge { filter: None, entries },
                    None => Step::General(Node::Constant(Value::Null)),
                },
                _ => Step::General(Node::Call(function, nodes)),
            }
        }
        other => Step::General(other),
    }
}
