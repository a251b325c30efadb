//! What an expression becomes when it is compiled: names are places, functions are found.

use crate::functions::Function;
use crate::value::Value;
use regex::Regex;
use std::sync::Arc;

pub enum Node {
    Constant(Value<'static>),
    /// A variable of the environment, by its place.
    Variable(usize),
    /// A variable that is an expression itself, by its place.
    Composed(usize),
    /// A variable of a loop, by its place among all loops around.
    Local(usize),
    Select(Box<Node>, Arc<str>),
    /// `has(…)`.
    Has(Box<Node>, Arc<str>),
    SelectOptional(Box<Node>, Arc<str>),
    And(Box<Node>, Box<Node>),
    Or(Box<Node>, Box<Node>),
    Conditional(Box<[Node; 3]>),
    /// False only if its operand is; errors are true.
    NotStrictlyFalse(Box<Node>),
    Call(&'static Function, Vec<Node>),
    /// `matches` with a pattern that does not depend on data.
    Matches(Box<Node>, Box<Regex>),
    /// With whether an element is optional.
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
    /// What the accumulator becomes.
    General(Node),
    /// The accumulator is a list that grows by one element.
    Append { filter: Option<Node>, element: Node },
    /// The accumulator is a map that grows by one entry.
    Insert { filter: Option<Node>, key: Node, value: Node },
    /// The accumulator is a map that grows by the entries of another.
    Merge { filter: Option<Node>, entries: Node },
}
