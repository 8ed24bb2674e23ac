//! Table C of the attacks: the valid case with one thing changed, against a service that computes
//! signatures itself.

mod age;
mod answers;
mod fixture;
mod outages;
mod principals;
mod refusals;
mod replays;
mod requests;
mod settings;
