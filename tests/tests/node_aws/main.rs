//! The plugin of AWS instances, on an instance whose metadata service, STS and API server are
//! simulated.

mod bed;
mod faults;
mod join;
mod names;
mod renewal;
