//! Tests for table C of the attacks: the valid case with one change. The simulated STS computes each signature itself.

mod age;
mod answers;
mod fixture;
mod outages;
mod principals;
mod refusals;
mod replays;
mod requests;
mod settings;
