//! Resource quantities: parse, compare, canonical form.
