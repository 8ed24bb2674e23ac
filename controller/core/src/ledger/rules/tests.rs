//! Tests of every rule: the valid case with one change.

mod adoption;
mod claims;
mod evidence;
mod holders;
mod recovery;
mod resets;
mod revoked;
mod tpm;
mod two_names;
mod unless_known;
mod waits;
