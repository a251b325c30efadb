//! The program that is tested.

use std::process::{Command, Stdio};

pub fn ferry(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferry"));
    command.args(arguments).stdin(Stdio::null());
    command
}
