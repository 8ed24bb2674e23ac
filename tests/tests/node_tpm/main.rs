//! Tests of the plugin on machines with a software TPM. The test acts as the controller.

mod bed;
mod chain;
mod endorsement_key;
mod faults;
mod join;
mod live;
mod page;
mod resumption;
