//! The in-memory API server is as strict as the real one: authorization, stored objects, write conflicts.

mod access;
mod approval;
mod client;
mod custom;
mod validation;
