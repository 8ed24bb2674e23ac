//! The checks, each one function that says by which [`crate::refusal::Denial`] it refuses.
//!
//! The links of [`crate::request`] make them. Nothing here asks anybody: what is compared is given.

pub(crate) mod encoding;
pub(crate) mod evidence;
pub(crate) mod extensions;
pub(crate) mod key;
pub(crate) mod lifetime;
pub(crate) mod machine;
pub(crate) mod requester;
pub(crate) mod serving_machine;
pub(crate) mod serving_names;
pub(crate) mod size;
pub(crate) mod subject;
pub(crate) mod usages;
