//! Every rule: the valid case, with one thing changed.

mod adoption;
mod claims;
mod evidence;
mod holders;
mod resets;
mod revoked;
mod tpm;
mod two_names;
mod unless_known;
mod waits;
