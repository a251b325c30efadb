//! The schema of every built-in kind, read once from the generated table of facts.
