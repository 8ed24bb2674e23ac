//! Every rule: the valid case, with one thing changed.

mod adoption;
mod claims;
mod evidence;
mod resets;
mod revoked;
mod tpm;
mod unless_known;
