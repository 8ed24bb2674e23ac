//! Does nothing: the cost of any static Rust program.

fn main() {}
