//! Tests of the commands that show the state of a node, and of their formats: `inspect`, `status`, `config`, `metrics`,
//! `support-bundle`, `explain-reason`.

mod bundle;
mod config;
mod formats;
mod inspect;
mod metrics;
mod nodes;
mod page;
mod reasons;
mod status;
