//! Does nothing. The cost of this program is the minimum cost of a static Rust program.

fn main() {}
