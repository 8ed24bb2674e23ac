//! The in-memory API server answers as the real one does, and its faults reach a plain client.

mod access;
mod approval;
mod client;
mod custom;
mod files;
mod gates;
mod network;
mod requests;
mod signer;
mod validation;
mod watches;
