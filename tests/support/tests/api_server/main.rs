//! Tests that the in-memory API server is as strict as the real API server: authorization, stored objects and write
//! conflicts.

mod access;
mod approval;
mod client;
mod custom;
mod validation;
