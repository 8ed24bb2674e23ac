//! The rules, the records and the sweep together.

mod model;
