//! The commands that show what a node has: `inspect`, `status`, `config`, `metrics`, `support-bundle`, `explain-reason`; and
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
