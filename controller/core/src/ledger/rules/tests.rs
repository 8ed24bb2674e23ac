//! Every rule: the valid case, with one thing changed.

mod claims;
mod tpm;
mod unless_known;
