//! Tests for table C of the attacks: the valid case with one change, using a service that computes signatures itself.

mod age;
mod answers;
mod fixture;
mod outages;
mod principals;
mod refusals;
mod replays;
mod requests;
mod settings;
