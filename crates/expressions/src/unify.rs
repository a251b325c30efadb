//! Which types fit each other, and what type variables come to stand for meanwhile.

use crate::types::Type;
use std::sync::Arc;

/// Types are nested no deeper than expressions; this stops at what only a cycle could make.
const MAX_DEPTH: usize = 300;

/// What the variables of one expression stand for.
#[derive(Default)]
pub struct Bindings {
    of: Vec<Option<Type>>,
    /// Earlier values of what has been changed since the last attempt began.
    trail: Vec<(usize, Option<Type>)>,
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
            self.trail.push((id as usize, slot.replace(to)));
        }
    }

    /// Whether all pairs fit; if not, nothing has changed.
    pub fn assignable_all<'t>(&mut self, pairs: impl IntoIterator<Item = (&'t Type, &'t Type)>) -> bool {
        self.trail.clear();
        let fits = pairs.into_iter().all(|(a, b)| self.fits(a, b, 0));
        if !fits {
            while let Some((at, before)) = self.trail.pop() {
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

    /// Whether the variable can stand for the type, and whether it stood for something already.
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

    /// Whether the variable is part of the type.
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

    /// The type with everything in it that is known; with `finally`, what is not known is dynamic.
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

/// A signature's type with fresh variables in the place of its own.
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

/// The more general of two types that fit each other.
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
