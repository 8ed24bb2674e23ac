//! Tests of requests that an attacker can write: each test changes one part of the valid request, and checks the reason
//! for the refusal.
//!
//! The number in a test's name is the number of the attack, and does not change:
//!
//! | numbers | forged part |
//! | --- | --- |
//! | 1 to 8 | PEM blocks, the provider, the DER encoding |
//! | 9 to 12 | self-signature, key |
//! | 13 to 15 | CA rights, subject alternative names |
//! | 16 to 20 | the subject |
//! | 21 to 26 | usages, extensions, the provider ID, the lifetime |
//! | 27 to 29 | the signer, the state of the object, the requester |
//! | 32 | expensive sizes and structures |

mod encoding;
mod extensions;
mod key;
mod limits;
mod object;
mod requester;
mod subject;
