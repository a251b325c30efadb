//! Static cost estimate: the maximum cost of an expression, from the maximum sizes of its variables.
//!
//! The tree is walked once. Every node has a cost; where relevant, it has a size (characters, bytes, elements) and,
//! for lists and maps, sizes of the elements.

mod calls;
mod library;
mod range;

use crate::check::CheckResults;
use crate::types::Type;
use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, operators};
use range::Range;
use std::collections::{BTreeMap, BTreeSet, HashMap};

const LIST_COST: u64 = 10;
const MAP_COST: u64 = 30;
const OBJECT_COST: u64 = 40;

/// Maximum sizes of values of a type, and of nested values.
#[derive(Clone, Debug, Default)]
pub struct Extent {
    /// Maximum number of characters, bytes or elements; 0 for types without a size.
    pub max: u64,
    pub fields: BTreeMap<String, Extent>,
    /// Elements of a list or a map.
    pub element: Option<Box<Extent>>,
    pub is_map: bool,
}

/// Estimate of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// Maximum cost.
    pub cost: u64,
    /// Variables of the environment that it refers to.
    pub variables: BTreeSet<String>,
}

/// Estimates a checked expression whose variables all have the sizes of `extent`.
pub fn estimate(tree: &IdedExpr, facts: &CheckResults, extent: &Extent) -> Estimate {
    let mut estimator = Estimator {
        facts,
        extent,
        locals: Vec::new(),
        sizes: HashMap::new(),
        entries: HashMap::new(),
        paths: HashMap::new(),
        variables: BTreeSet::new(),
    };
    let cost = estimator.cost(tree).max;
    Estimate { cost, variables: estimator.variables }
}

/// Sizes of the elements of a list or a map.
#[derive(Clone, Copy, Debug)]
struct Entry {
    is_list: bool,
    key: Range,
    value: Range,
}

impl Entry {
    fn union(self, other: Self) -> Self {
        Self { is_list: self.is_list, key: self.key.union(other.key), value: self.value.union(other.value) }
    }
}

/// A variable of a loop or a binding.
struct Local {
    name: String,
    path: Vec<String>,
    size: Option<Range>,
    entry: Option<Entry>,
}

/// A subexpression as an operand of calls.
struct Operand<'t> {
    expr: &'t IdedExpr,
    of: Type,
    path: Vec<String>,
    size: Option<Range>,
}

struct Estimator<'e> {
    facts: &'e CheckResults,
    extent: &'e Extent,
    /// The innermost last.
    locals: Vec<Local>,
    sizes: HashMap<u64, Range>,
    entries: HashMap<u64, Entry>,
    /// Paths of subexpressions, starting at a variable.
    paths: HashMap<u64, Vec<String>>,
    variables: BTreeSet<String>,
}

impl Estimator<'_> {
    fn cost(&mut self, expr: &IdedExpr) -> Range {
        match &expr.expr {
            Expr::Literal(_) | Expr::Unspecified => Range::ZERO,
            Expr::Ident(name) => {
                let path = match self.local(name) {
                    Some(local) => local.path.clone(),
                    None => {
                        self.variables.insert(name.clone());
                        vec![name.clone()]
                    }
                };
                self.paths.insert(expr.id, path);
                Range::ONE
            }
            Expr::Select(select) => {
                let cost = self.cost(&select.operand);
                if select.test {
                    return cost;
                }
                let path = self.path_and(&select.operand, &select.field);
                self.paths.insert(expr.id, path);
                match self.of(&select.operand) {
                    Type::Map(_) | Type::Object(_) | Type::Variable(_) => cost.plus(Range::ONE),
                    _ => cost,
                }
            }
            Expr::Call(call) => self.call(expr, call),
            Expr::List(list) => {
                let mut cost = Range::ZERO;
                let mut value = Range::none();
                for element in &list.elements {
                    cost = cost.plus(self.cost(element));
                    value = value.union(self.size_or_any(element));
                }
                let value = if list.elements.is_empty() { Range::ZERO } else { value };
                self.entries.insert(expr.id, Entry { is_list: true, key: Range::ONE, value });
                cost.plus(Range::exactly(LIST_COST))
            }
            Expr::Map(map) => {
                let mut cost = Range::ZERO;
                let (mut key, mut value) = (Range::none(), Range::none());
                for entry in &map.entries {
                    let EntryExpr::MapEntry(entry) = &entry.expr else { continue };
                    cost = cost.plus(self.cost(&entry.key)).plus(self.cost(&entry.value));
                    key = key.union(self.size_or_any(&entry.key));
                    value = value.union(self.size_or_any(&entry.value));
                }
                if map.entries.is_empty() {
                    (key, value) = (Range::ZERO, Range::ZERO);
                }
                self.entries.insert(expr.id, Entry { is_list: false, key, value });
                cost.plus(Range::exactly(MAP_COST))
            }
            Expr::Struct(of) => {
                let mut cost = Range::exactly(OBJECT_COST);
                for entry in &of.entries {
                    if let EntryExpr::StructField(field) = &entry.expr {
                        cost = cost.plus(self.cost(&field.value));
                    }
                }
                cost
            }
            Expr::Comprehension(of) if is_binding(of) => self.binding(expr, of),
            Expr::Comprehension(of) => self.comprehension(expr, of),
        }
    }

    fn call(&mut self, expr: &IdedExpr, call: &CallExpr) -> Range {
        if call.func_name == "dyn"
            && let [argument] = call.args.as_slice()
        {
            let cost = self.cost(argument);
            self.like(expr, argument);
            return cost.plus(Range::ONE);
        }
        let costs: Vec<Range> = call.args.iter().map(|argument| self.cost(argument)).collect();
        let Some(called) = self.facts.called(expr.id) else { return Range::ZERO };
        let arguments: Vec<Operand<'_>> = call.args.iter().map(|argument| self.operand(argument)).collect();
        let mut cost = Range::ZERO;
        let mut target = None;
        if let Some(of) = call.target.as_deref().filter(|_| called.is_member) {
            cost = self.cost(of);
            target = Some(self.operand(of));
        }
        let signatures = called.signatures.clone();
        let name = called.name.to_owned();
        let mut charged = Range::none();
        let mut size: Option<Range> = None;
        for signature in signatures {
            let (of_call, result) = self.charge(expr, &name, signature, target.as_ref(), &arguments, &costs);
            charged = charged.union(of_call);
            size = match (size, result) {
                (Some(size), Some(result)) => Some(size.union(result)),
                (size, result) => size.or(result),
            };
            if name == operators::INDEX
                && let [container, ..] = call.args.as_slice()
            {
                size = self.entry(container).map(|entry| entry.value);
                let is_list = matches!(signature.arguments.first(), Some(Type::List(_)));
                let path = self.path_and(container, if is_list { "@items" } else { "@values" });
                self.paths.insert(expr.id, path);
            }
            size = size.or_else(|| self.size(expr));
        }
        if let Some(size) = size {
            self.sizes.insert(expr.id, size);
        }
        cost.plus(charged)
    }

    fn comprehension(&mut self, expr: &IdedExpr, of: &ComprehensionExpr) -> Range {
        let mut cost = self.cost(&of.iter_range).plus(self.cost(&of.accu_init));
        let before = self.locals.len();
        self.bind(&of.accu_var, &of.accu_init);
        let entry = self.entry(&of.iter_range);
        let is_list =
            entry.map_or_else(|| matches!(self.of(&of.iter_range), Type::List(_)), |entry| entry.is_list);
        let (key, value) = (entry.map(|entry| entry.key), entry.map(|entry| entry.value));
        match &of.iter_var2 {
            Some(second) => {
                let indices = if is_list { "@indices" } else { "@keys" };
                self.iterate(&of.iter_var, &of.iter_range, indices, key);
                self.iterate(second, &of.iter_range, if is_list { "@items" } else { "@values" }, value);
            }
            None if is_list => self.iterate(&of.iter_var, &of.iter_range, "@items", value),
            None => self.iterate(&of.iter_var, &of.iter_range, "@keys", key),
        }
        let each = self.cost(&of.loop_cond).plus(self.cost(&of.loop_step));
        self.locals.truncate(before + 1);
        cost = cost.plus(self.cost(&of.result));
        self.locals.truncate(before);
        let count = self.size_or_any(&of.iter_range);
        match &of.accu_init.expr {
            Expr::Literal(_) => {
                if let Some(size) = self.size(&of.accu_init) {
                    self.sizes.insert(expr.id, size);
                }
            }
            Expr::List(_) | Expr::Map(_) => {
                self.sizes.insert(expr.id, count);
                if let Some(entry) = self.entry(&of.loop_step) {
                    self.entries.insert(expr.id, entry);
                }
            }
            _ => {}
        }
        cost.plus(count.times(each))
    }

    /// `cel.bind`: a comprehension over an empty range whose result refers to the accumulator.
    fn binding(&mut self, expr: &IdedExpr, of: &ComprehensionExpr) -> Range {
        let cost = self.cost(&of.iter_range).plus(self.cost(&of.accu_init));
        let before = self.locals.len();
        self.bind(&of.accu_var, &of.accu_init);
        let cost = cost.plus(self.cost(&of.result));
        self.locals.truncate(before);
        self.like(expr, &of.result);
        cost
    }

    fn bind(&mut self, name: &str, to: &IdedExpr) {
        let local =
            Local { name: name.to_owned(), path: self.path(to), size: self.size(to), entry: self.entry(to) };
        self.locals.push(local);
    }

    fn iterate(&mut self, name: &str, range: &IdedExpr, step: &str, size: Option<Range>) {
        let path = self.path_and(range, step);
        self.locals.push(Local { name: name.to_owned(), path, size, entry: None });
    }

    fn local(&self, name: &str) -> Option<&Local> {
        self.locals.iter().rev().find(|local| local.name == name)
    }

    fn of(&self, expr: &IdedExpr) -> Type {
        self.facts.type_of(expr.id)
    }

    fn path(&self, expr: &IdedExpr) -> Vec<String> {
        let local = match &expr.expr {
            Expr::Ident(name) => self.local(name).map(|local| &local.path),
            _ => None,
        };
        local.or_else(|| self.paths.get(&expr.id)).cloned().unwrap_or_default()
    }

    fn path_and(&self, expr: &IdedExpr, step: &str) -> Vec<String> {
        let mut path = self.path(expr);
        path.push(step.to_owned());
        path
    }

    fn operand<'t>(&mut self, expr: &'t IdedExpr) -> Operand<'t> {
        let path = self.path(expr);
        // The accumulator has no path in the data.
        let path = if path.first().is_some_and(|first| first.starts_with('@')) { Vec::new() } else { path };
        Operand { expr, of: self.of(expr), path, size: self.size(expr) }
    }

    /// Declared sizes of the value at a path.
    fn extent_at(&self, path: &[String]) -> Option<Range> {
        let mut at = self.extent;
        for step in path.get(1..)? {
            at = match step.as_str() {
                "@items" | "@values" => at.element.as_deref()?,
                "@keys" => return at.is_map.then_some(Range::ZERO),
                name => at.fields.get(name)?,
            };
        }
        Some(Range::up_to(at.max))
    }

    fn size(&mut self, expr: &IdedExpr) -> Option<Range> {
        if let Some(size) = self.sizes.get(&expr.id) {
            return Some(*size);
        }
        if let Some(size) = size_of_literal(&expr.expr) {
            return Some(Range::exactly(size));
        }
        if let Some(size) = self.extent_at(&self.path(expr)) {
            self.sizes.insert(expr.id, size);
            return Some(size);
        }
        if is_scalar(&self.of(expr)) {
            return Some(Range::ONE);
        }
        match &expr.expr {
            Expr::Ident(name) => self.local(name).and_then(|local| local.size),
            _ => None,
        }
    }

    fn size_or_any(&mut self, expr: &IdedExpr) -> Range {
        self.size(expr).unwrap_or(Range::ANY)
    }

    fn entry(&self, expr: &IdedExpr) -> Option<Entry> {
        if let Some(entry) = self.entries.get(&expr.id) {
            return Some(*entry);
        }
        match &expr.expr {
            Expr::Ident(name) => self.local(name).and_then(|local| local.entry),
            _ => None,
        }
    }

    /// Copies the sizes of one subexpression to another.
    fn like(&mut self, expr: &IdedExpr, other: &IdedExpr) {
        if let Some(size) = self.size(other) {
            self.sizes.insert(expr.id, size);
        }
        if let Some(entry) = self.entry(other) {
            self.entries.insert(expr.id, entry);
        }
    }
}

fn is_binding(of: &ComprehensionExpr) -> bool {
    let over_nothing = matches!(&of.iter_range.expr, Expr::List(list) if list.elements.is_empty());
    let never = matches!(&of.loop_cond.expr, Expr::Literal(LiteralValue::Boolean(flag)) if !*flag.inner());
    over_nothing && never && of.accu_var != "__result__"
}

fn size_of_literal(expr: &Expr) -> Option<u64> {
    let size = match expr {
        Expr::Literal(LiteralValue::String(text)) => text.inner().chars().count(),
        Expr::Literal(LiteralValue::Bytes(bytes)) => bytes.inner().len(),
        Expr::Literal(_) => 1,
        Expr::List(list) => list.elements.len(),
        Expr::Map(map) => map.entries.len(),
        _ => return None,
    };
    u64::try_from(size).ok()
}

/// True if all values of a type have the same size.
fn is_scalar(of: &Type) -> bool {
    match of {
        Type::Bool | Type::Double | Type::Duration | Type::Int | Type::Timestamp | Type::Uint => true,
        Type::Optional(inner) => is_scalar(inner),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Environment;

    /// `{name: string(≤10), numbers: list(≤5) of int, words: list(≤4) of string(≤8), by: map(≤3) of string(≤6), any}`
    fn extent() -> Extent {
        let text = |max| Extent { max, ..Extent::default() };
        let list = |max, element| Extent { max, element: Some(Box::new(element)), ..Extent::default() };
        let fields = [
            ("name", text(10)),
            ("numbers", list(5, Extent::default())),
            ("words", list(4, text(8))),
            ("by", Extent { is_map: true, ..list(3, text(6)) }),
            ("count", Extent::default()),
        ];
        let fields = fields.into_iter().map(|(name, extent)| (name.to_owned(), extent)).collect();
        Extent { fields, ..Extent::default() }
    }

    fn environment() -> Environment {
        let of = Type::object(
            "self",
            [
                ("name", Type::String),
                ("numbers", Type::list(Type::Int)),
                ("words", Type::list(Type::String)),
                ("by", Type::map(Type::String, Type::String)),
                ("count", Type::Int),
            ],
        );
        Environment::new([("self", of.clone()), ("oldSelf", of)])
    }

    #[test]
    fn estimated_cost_follows_sizes() {
        for (text, cost) in [
            ("true", 0),
            ("self.count == 1", 2),
            ("self.name == 'abc'", 3),
            ("self.name.contains('ab')", 3),
            ("self.name.startsWith('abcdefghijk')", 4),
            ("has(self.name)", 1),
            ("self.numbers.all(n, n > 1)", 3 + 5 * 5),
            ("self.words.all(a, self.words.all(b, a == b))", 3 + 4 * (3 + 3 + 4 * 6)),
            ("self.words.map(w, w + 'x').size() == 1", 13 + 4 * 14 + 2),
            ("self.by.all(k, self.by[k] == 'x')", 3 + 3 * 8),
            ("self.name.matches('^[a-z]+$')", 2 + 2 * 2),
            ("'a' in self.words", 2 + 4),
        ] {
            let found = environment().estimate(text, &extent()).expect(text);
            assert_eq!(found.cost, cost, "{text}");
        }
    }

    #[test]
    fn unbounded_values_have_unbounded_cost() {
        let wide = Extent { max: 3 << 20, element: Some(Box::default()), ..Extent::default() };
        let environment = Environment::new([("self", Type::list(Type::list(Type::String)))]);
        let found = environment
            .estimate("self.all(x, self.all(y, x.all(z, y.all(w, z == w))))", &wide)
            .expect("an estimate");
        assert!(found.cost > 1_000_000_000_000);
    }

    #[test]
    fn estimate_lists_environment_variables_only() {
        let found = environment().estimate("[1].all(self, self > 0) && oldSelf.count > 0", &extent());
        let found = found.expect("an estimate");
        assert_eq!(found.variables.into_iter().collect::<Vec<_>>(), ["oldSelf"]);
    }
}
