//! The rules, the records and the sweep together.

mod history;
mod model;
