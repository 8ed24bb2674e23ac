//! The controller of one cluster on AWS, started manually: its command line, and the instances that it finds by their
//! tags. The program is real, EC2 is moto server, STS a simulator, the API server is in this process.

mod calls;
mod cli;
mod explain;
mod found;
mod networks;
mod nodes;
mod page;
mod proxy;
mod world;
