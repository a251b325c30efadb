//! Macros beyond the parser's own: comprehensions with two variables, sorting by a key.

use cel::common::ast::{
    CallExpr, ComprehensionExpr, Expr, IdedExpr, ListExpr, LiteralValue, MapExpr, operators,
};
use cel::parser::{Macro, MacroExprHelper, ParseError};

const RESULT: &str = "@result";
/// Adds an entry to the map that a loop builds.
pub const INSERT: &str = "cel.@mapInsert";
pub const SORT_BY_KEYS: &str = "@sortByAssociatedKeys";
const UNUSED: &str = "#unused";

type Helper<'h> = MacroExprHelper<'h>;
type Expanded = Result<Option<IdedExpr>, ParseError>;

pub fn all() -> Vec<Macro> {
    vec![
        Macro::receiver("all", 3, |h, target, args| {
            let literal = |h: &mut Helper<'_>| bool_literal(h, true);
            quantified(
                h,
                target,
                args,
                literal,
                |h| {
                    let result = ident(h, RESULT);
                    call(h, operators::NOT_STRICTLY_FALSE, vec![result])
                },
                operators::LOGICAL_AND,
            )
        }),
        Macro::receiver("exists", 3, |h, target, args| {
            let literal = |h: &mut Helper<'_>| bool_literal(h, false);
            quantified(
                h,
                target,
                args,
                literal,
                |h| {
                    let result = ident(h, RESULT);
                    let not = call(h, operators::LOGICAL_NOT, vec![result]);
                    call(h, operators::NOT_STRICTLY_FALSE, vec![not])
                },
                operators::LOGICAL_OR,
            )
        }),
        Macro::receiver("exists_one", 3, exists_one),
        Macro::receiver("existsOne", 3, exists_one),
        Macro::receiver("transformList", 3, transform_list),
        Macro::receiver("transformList", 4, transform_list),
        Macro::receiver("transformMap", 3, transform_map),
        Macro::receiver("transformMap", 4, transform_map),
        Macro::receiver("transformMapEntry", 3, transform_map_entry),
        Macro::receiver("transformMapEntry", 4, transform_map_entry),
        Macro::receiver("sortBy", 2, sort_by),
    ]
}

/// `cel.bind(name, value, expression)`: binds a value to a name in an expression.
pub fn bindings() -> Macro {
    Macro::receiver("bind", 3, |h, target, args| {
        let is_namespace = |of: &IdedExpr| matches!(&of.expr, Expr::Ident(name) if name == "cel");
        let ([variable, _, _], true) = (args.as_slice(), target.as_ref().is_some_and(is_namespace)) else {
            return Ok(None);
        };
        let name = match &variable.expr {
            Expr::Ident(name) if !name.starts_with('.') => name.clone(),
            _ => {
                return Err(h.new_error(variable.id, "cel.bind() variable names must be simple identifiers"));
            }
        };
        match (args.pop(), args.pop()) {
            (Some(body), Some(value)) => Ok(Some(bind(h, &name, value, body))),
            _ => Ok(None),
        }
    })
}

fn ident(h: &mut Helper<'_>, name: &str) -> IdedExpr {
    h.next_expr(Expr::Ident(name.to_owned()))
}

fn bool_literal(h: &mut Helper<'_>, value: bool) -> IdedExpr {
    h.next_expr(Expr::Literal(LiteralValue::Boolean(value.into())))
}

fn int_literal(h: &mut Helper<'_>, value: i64) -> IdedExpr {
    h.next_expr(Expr::Literal(LiteralValue::Int(value.into())))
}

fn call(h: &mut Helper<'_>, name: &str, args: Vec<IdedExpr>) -> IdedExpr {
    h.next_expr(Expr::Call(CallExpr { func_name: name.to_owned(), target: None, args }))
}

fn member(h: &mut Helper<'_>, name: &str, target: IdedExpr, args: Vec<IdedExpr>) -> IdedExpr {
    h.next_expr(Expr::Call(CallExpr { func_name: name.to_owned(), target: Some(Box::new(target)), args }))
}

fn list(h: &mut Helper<'_>, elements: Vec<IdedExpr>) -> IdedExpr {
    h.next_expr(Expr::List(ListExpr::new(elements)))
}

fn empty_map(h: &mut Helper<'_>) -> IdedExpr {
    h.next_expr(Expr::Map(MapExpr { entries: Vec::new() }))
}

/// Parts of a comprehension.
struct Parts {
    range: IdedExpr,
    variables: (String, Option<String>),
    accumulator: String,
    init: IdedExpr,
    condition: IdedExpr,
    step: IdedExpr,
    result: IdedExpr,
}

fn comprehension(h: &mut Helper<'_>, parts: Parts) -> IdedExpr {
    h.next_expr(Expr::Comprehension(Box::new(ComprehensionExpr {
        iter_range: parts.range,
        iter_var: parts.variables.0,
        iter_var2: parts.variables.1,
        accu_var: parts.accumulator,
        accu_init: parts.init,
        loop_cond: parts.condition,
        loop_step: parts.step,
        result: parts.result,
    })))
}

/// Identifier that an argument consists of.
fn name(h: &Helper<'_>, arg: &IdedExpr) -> Result<String, ParseError> {
    match &arg.expr {
        Expr::Ident(name) if name == RESULT => {
            Err(h.new_error(arg.id, "iteration variable overwrites accumulator variable"))
        }
        Expr::Ident(name) if !name.starts_with('.') => Ok(name.clone()),
        _ => Err(h.new_error(arg.id, "argument must be a simple name")),
    }
}

/// Range of a comprehension with two variables, the variables, and its other arguments.
type TwoVariables = (IdedExpr, (String, Option<String>), Vec<IdedExpr>);

fn two_variables(
    h: &Helper<'_>,
    target: &mut Option<IdedExpr>,
    args: &mut Vec<IdedExpr>,
) -> Result<Option<TwoVariables>, ParseError> {
    let [first, second, ..] = args.as_slice() else {
        return Ok(None);
    };
    let (one, two) = (name(h, first)?, name(h, second)?);
    if one == two {
        return Err(h.new_error(second.id, format!("duplicate variable name: {one}")));
    }
    let Some(range) = target.take() else {
        return Ok(None);
    };
    let rest = args.drain(..).skip(2).collect();
    Ok(Some((range, (one, Some(two)), rest)))
}

fn quantified(
    h: &mut Helper<'_>,
    target: &mut Option<IdedExpr>,
    args: &mut Vec<IdedExpr>,
    init: impl Fn(&mut Helper<'_>) -> IdedExpr,
    condition: impl Fn(&mut Helper<'_>) -> IdedExpr,
    operator: &str,
) -> Expanded {
    let Some((range, variables, mut rest)) = two_variables(h, target, args)? else {
        return Ok(None);
    };
    let Some(predicate) = rest.pop() else {
        return Ok(None);
    };
    let init = init(h);
    let condition = condition(h);
    let so_far = ident(h, RESULT);
    let step = call(h, operator, vec![so_far, predicate]);
    let result = ident(h, RESULT);
    let accumulator = RESULT.to_owned();
    Ok(Some(comprehension(h, Parts { range, variables, accumulator, init, condition, step, result })))
}

fn exists_one(h: &mut Helper<'_>, target: &mut Option<IdedExpr>, args: &mut Vec<IdedExpr>) -> Expanded {
    let Some((range, variables, mut rest)) = two_variables(h, target, args)? else {
        return Ok(None);
    };
    let Some(predicate) = rest.pop() else {
        return Ok(None);
    };
    let init = int_literal(h, 0);
    let condition = bool_literal(h, true);
    let so_far = ident(h, RESULT);
    let one = int_literal(h, 1);
    let more = call(h, operators::ADD, vec![so_far, one]);
    let same = ident(h, RESULT);
    let step = call(h, operators::CONDITIONAL, vec![predicate, more, same]);
    let found = ident(h, RESULT);
    let one = int_literal(h, 1);
    let result = call(h, operators::EQUALS, vec![found, one]);
    let accumulator = RESULT.to_owned();
    Ok(Some(comprehension(h, Parts { range, variables, accumulator, init, condition, step, result })))
}

/// A comprehension that builds a value: `add` builds the loop step from the last argument.
fn transform(
    h: &mut Helper<'_>,
    target: &mut Option<IdedExpr>,
    args: &mut Vec<IdedExpr>,
    init: impl Fn(&mut Helper<'_>) -> IdedExpr,
    add: impl Fn(&mut Helper<'_>, &str, IdedExpr) -> IdedExpr,
) -> Expanded {
    let Some((range, variables, mut rest)) = two_variables(h, target, args)? else {
        return Ok(None);
    };
    let (Some(made), filter) = (rest.pop(), rest.pop()) else {
        return Ok(None);
    };
    let init = init(h);
    let condition = bool_literal(h, true);
    let mut step = add(h, &variables.0, made);
    if let Some(filter) = filter {
        let same = ident(h, RESULT);
        step = call(h, operators::CONDITIONAL, vec![filter, step, same]);
    }
    let result = ident(h, RESULT);
    let accumulator = RESULT.to_owned();
    Ok(Some(comprehension(h, Parts { range, variables, accumulator, init, condition, step, result })))
}

fn transform_list(h: &mut Helper<'_>, target: &mut Option<IdedExpr>, args: &mut Vec<IdedExpr>) -> Expanded {
    transform(
        h,
        target,
        args,
        |h| list(h, Vec::new()),
        |h, _, made| {
            let so_far = ident(h, RESULT);
            let one = list(h, vec![made]);
            call(h, operators::ADD, vec![so_far, one])
        },
    )
}

fn transform_map(h: &mut Helper<'_>, target: &mut Option<IdedExpr>, args: &mut Vec<IdedExpr>) -> Expanded {
    transform(h, target, args, empty_map, |h, key, made| {
        let so_far = ident(h, RESULT);
        let key = ident(h, key);
        call(h, INSERT, vec![so_far, key, made])
    })
}

fn transform_map_entry(
    h: &mut Helper<'_>,
    target: &mut Option<IdedExpr>,
    args: &mut Vec<IdedExpr>,
) -> Expanded {
    transform(h, target, args, empty_map, |h, _, made| {
        let so_far = ident(h, RESULT);
        call(h, INSERT, vec![so_far, made])
    })
}

/// Binds a value to a name: a comprehension over an empty range.
fn bind(h: &mut Helper<'_>, name: &str, value: IdedExpr, body: IdedExpr) -> IdedExpr {
    let range = list(h, Vec::new());
    let condition = bool_literal(h, false);
    let step = ident(h, name);
    comprehension(
        h,
        Parts {
            range,
            variables: (UNUSED.to_owned(), None),
            accumulator: name.to_owned(),
            init: value,
            condition,
            step,
            result: body,
        },
    )
}

fn sort_by(h: &mut Helper<'_>, target: &mut Option<IdedExpr>, args: &mut Vec<IdedExpr>) -> Expanded {
    const INPUT: &str = "@__sortBy_input__";
    let [variable, _] = args.as_slice() else {
        return Ok(None);
    };
    let name = name(h, variable)?;
    if let Some(target) = target {
        let fits = matches!(
            target.expr,
            Expr::List(_) | Expr::Select(_) | Expr::Ident(_) | Expr::Comprehension(_) | Expr::Call(_)
        );
        if !fits {
            return Err(h.new_error(
                target.id,
                "sortBy can only be applied to a list, identifier, comprehension, call or select expression",
            ));
        }
    }
    let (Some(of), Some(key)) = (target.take(), args.pop()) else {
        return Ok(None);
    };
    let range = ident(h, INPUT);
    let init = list(h, Vec::new());
    let condition = bool_literal(h, true);
    let so_far = ident(h, RESULT);
    let one = list(h, vec![key]);
    let step = call(h, operators::ADD, vec![so_far, one]);
    let result = ident(h, RESULT);
    let accumulator = RESULT.to_owned();
    let parts = Parts { range, variables: (name, None), accumulator, init, condition, step, result };
    let keys = comprehension(h, parts);
    let input = ident(h, INPUT);
    let sorted = member(h, SORT_BY_KEYS, input, vec![keys]);
    Ok(Some(bind(h, INPUT, of, sorted)))
}
