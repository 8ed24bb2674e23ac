//! Every rule: the valid case, with one thing changed.

mod claims;
mod unless_known;
