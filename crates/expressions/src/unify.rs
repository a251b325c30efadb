//! Type unification: assignability of types, and substitution of type variables.

use crate::types::Type;
use std::sync::Arc;

/// Maximum depth of types. Types are nested no deeper than expressions; only a cycle exceeds this.
const MAX_DEPTH: usize = 300;

/// Substitution of the type variables of one expression.
#[derive(Default)]
pub struct Bindings {
    of: Vec<Option<Type>>,
    /// Previous values of the entries changed since the last attempt began.
    undo_log: Vec<(usize, Option<Type>)>,
}

impl Bindings {
    pub fn fresh(&mut self) -> Type {
        self.of.push(None);
        Type::Variable(u32::try_from(self.of.len() - 1).unwrap_or(u32::MAX))
    }

    fn find(&self, id: u32) -> Option<&Type> {
        self.of.get(id as usize)?.as_ref()
    }

    fn bind(&mut self, id: u32, to: Type) {
        if let Some(slot) = self.of.get_mut(id as usize) {
            self.undo_log.push((id as usize, slot.replace(to)));
        }
    }

    /// Reports whether all pairs are assignable; otherwise the substitution is unchanged.
    pub fn assignable_all<'t>(&mut self, pairs: impl IntoIterator<Item = (&'t Type, &'t Type)>) -> bool {
        self.undo_log.clear();
        let fits = pairs.into_iter().all(|(a, b)| self.fits(a, b, 0));
        if !fits {
            while let Some((at, before)) = self.undo_log.pop() {
                if let Some(slot) = self.of.get_mut(at) {
                    *slot = before;
                }
            }
        }
        fits
    }

    pub fn assignable(&mut self, a: &Type, b: &Type) -> bool {
        self.assignable_all([(a, b)])
    }

    fn fits(&mut self, a: &Type, b: &Type, depth: usize) -> bool {
        if depth > MAX_DEPTH {
            return false;
        }
        if let Type::Variable(id) = b {
            match self.substitutes(a, *id, depth) {
                (true, _) => return true,
                (false, true) => return false,
                (false, false) => {}
            }
        }
        if let Type::Variable(id) = a {
            return self.substitutes(b, *id, depth).0;
        }
        if a.is_dyn_or_error() || b.is_dyn_or_error() {
            return true;
        }
        match (a, b) {
            (Type::Null, other) | (other, Type::Null) => other.is_nullable(),
            (Type::Type(_), Type::Type(_)) => true,
            (Type::List(a), Type::List(b)) | (Type::Optional(a), Type::Optional(b)) => {
                self.fits(a, b, depth + 1)
            }
            (Type::Map(a), Type::Map(b)) => {
                self.fits(&a.0, &b.0, depth + 1) && self.fits(&a.1, &b.1, depth + 1)
            }
            (a, b) => a == b,
        }
    }

    /// Reports whether the variable can be substituted by the type, and whether it already had a substitution.
    fn substitutes(&mut self, of: &Type, variable: u32, depth: usize) -> (bool, bool) {
        if matches!(of, Type::Variable(id) if *id == variable) {
            return (true, true);
        }
        if let Some(known) = self.find(variable).cloned() {
            if known == *of {
                return (true, true);
            }
            if !self.fits(of, &known, depth + 1) {
                return (false, true);
            }
            let general = most_general(of, &known);
            if !self.mentions(&general, variable, 0) {
                self.bind(variable, general);
            }
            return (true, true);
        }
        if self.mentions(of, variable, 0) {
            return (false, false);
        }
        self.bind(variable, of.clone());
        (true, false)
    }

    /// True if the variable occurs in the type.
    fn mentions(&self, of: &Type, variable: u32, depth: usize) -> bool {
        if depth > MAX_DEPTH {
            return true;
        }
        match of {
            Type::Variable(id) if *id == variable => true,
            Type::Variable(id) => {
                self.find(*id).is_some_and(|known| self.mentions(known, variable, depth + 1))
            }
            other => other.parameters().into_iter().any(|part| self.mentions(part, variable, depth + 1)),
        }
    }

    /// Applies the substitution to the type; with `finally`, unbound variables become dynamic.
    pub fn substitute(&self, of: &Type, finally: bool) -> Type {
        self.substitute_at(of, finally, 0)
    }

    fn substitute_at(&self, of: &Type, finally: bool, depth: usize) -> Type {
        if depth > MAX_DEPTH {
            return Type::Dyn;
        }
        let inner = |of: &Type| self.substitute_at(of, finally, depth + 1);
        match of {
            Type::Variable(id) => match self.find(*id) {
                Some(known) => inner(known),
                None if finally => Type::Dyn,
                None => of.clone(),
            },
            Type::List(of) => Type::list(inner(of)),
            Type::Map(of) => Type::map(inner(&of.0), inner(&of.1)),
            Type::Optional(of) => Type::optional(inner(of)),
            Type::Type(Some(of)) => Type::Type(Some(Arc::new(inner(of)))),
            other => other.clone(),
        }
    }
}

/// Type of a signature with fresh variables for its type parameters.
pub fn instantiate(of: &Type, fresh: &[Type]) -> Type {
    let inner = |of: &Type| instantiate(of, fresh);
    match of {
        Type::Variable(id) => fresh.get(*id as usize).cloned().unwrap_or(Type::Dyn),
        Type::List(of) => Type::list(inner(of)),
        Type::Map(of) => Type::map(inner(&of.0), inner(&of.1)),
        Type::Optional(of) => Type::optional(inner(of)),
        Type::Type(Some(of)) => Type::Type(Some(Arc::new(inner(of)))),
        other => other.clone(),
    }
}

/// The more general of two assignable types.
pub fn most_general(a: &Type, b: &Type) -> Type {
    if is_equal_or_less_specific(a, b) { a.clone() } else { b.clone() }
}

fn is_equal_or_less_specific(a: &Type, b: &Type) -> bool {
    match (a, b) {
        (Type::Dyn | Type::Variable(_), _) => true,
        (_, Type::Dyn | Type::Variable(_)) => false,
        (Type::List(a), Type::List(b)) | (Type::Optional(a), Type::Optional(b)) => {
            is_equal_or_less_specific(a, b)
        }
        (Type::Map(a), Type::Map(b)) => {
            is_equal_or_less_specific(&a.0, &b.0) && is_equal_or_less_specific(&a.1, &b.1)
        }
        (Type::Type(_), Type::Type(_)) => true,
        (a, b) => a == b,
    }
}
