//! What an attacker can write into a request: the valid one with one thing changed, and what it is refused for.
//!
//! The tests are numbered as the rows of the table of attacks in `docs/security.md`.

mod encoding;
mod extensions;
mod key;
mod limits;
mod object;
mod requester;
mod subject;
