//! Requests that an attacker can write: the valid one with one thing changed, and the reason of its
//! refusal.
//!
//! A test's number is its attack's, and stays:
//!
//! | numbers | what is forged |
//! | --- | --- |
//! | 1 to 8 | blocks of PEM, the provider, the encoding of DER |
//! | 9 to 12 | the request's own signature, the key |
//! | 13 to 15 | to be a CA, subject alternative names |
//! | 16 to 20 | the subject |
//! | 21 to 26 | usages, extensions, the provider ID, the lifetime |
//! | 27 to 29 | the signer, the state of the object, the requester |
//! | 32 | sizes and shapes that are made to cost |

mod encoding;
mod extensions;
mod key;
mod limits;
mod object;
mod requester;
mod subject;
