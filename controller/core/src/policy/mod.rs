//! The checks. Each check is one function, and its error is the [`crate::refusal::Denial`].
//!
//! The links of [`crate::request`] call them. The checks are pure: all inputs are arguments.

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
