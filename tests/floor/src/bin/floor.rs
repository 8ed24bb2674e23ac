//! Does nothing: what any static Rust program costs.

fn main() {}
