//! Generators and checks of this repository.
fn main() {}
