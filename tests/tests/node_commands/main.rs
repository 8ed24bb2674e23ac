//! The commands that show the state of a node: `inspect`, `status`, `config`, `metrics`, `support-bundle`, `explain-reason`; and
//! their formats.

mod bundle;
mod config;
mod formats;
mod inspect;
mod metrics;
mod nodes;
mod page;
mod reasons;
mod status;
