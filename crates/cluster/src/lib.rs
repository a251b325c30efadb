//! Config, build, run, drain: the only crate that sees every component.
