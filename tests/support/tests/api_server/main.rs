//! The in-memory API server is as strict as the real one: who may do what, what is stored, which writes conflict.

mod access;
mod approval;
mod client;
mod custom;
mod validation;
