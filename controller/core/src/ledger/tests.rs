//! The rules, the records and the sweep together.

mod created_again;
mod history;
mod model;
