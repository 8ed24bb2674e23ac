//! The controller of one cluster on AWS, started manually: its command line, and the instances that it finds by their
//! tags. The tests run the real program. EC2 is simulated by moto server, STS by a simulator, and the API server runs
//! in this process.

mod calls;
mod cli;
mod explain;
mod found;
mod live;
mod networks;
mod nodes;
mod page;
mod proxy;
mod world;
