//! Tests of the rules, the records and the sweep together.

mod created_again;
mod history;
mod model;
