//! The controller of one cluster of machines with TPMs, by hand: who joins, and what somebody tries
//! who is not the machine. The programs are real, TPMs are in software, the API server is in this
//! process.

mod attacks;
mod cli;
mod identities;
mod joins;
mod keys;
mod serving;
mod world;
