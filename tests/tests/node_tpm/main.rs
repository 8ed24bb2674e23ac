//! The plugin of machines with a TPM, on TPMs in software; the test is the controller.

mod bed;
mod chain;
mod endorsement_key;
mod faults;
mod join;
mod page;
mod resumption;
