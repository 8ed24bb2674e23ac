//! Tests of the plugin for AWS instances, on an instance whose metadata service, STS and API server are simulated.

mod bed;
mod boot;
mod clocks;
mod faults;
mod join;
mod names;
mod renewal;
