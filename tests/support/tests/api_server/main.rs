//! The in-memory API server answers as the real one does, and its faults reach a plain client.

mod client;
mod requests;
