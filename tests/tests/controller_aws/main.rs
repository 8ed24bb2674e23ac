//! Tests of a manually started controller for one cluster on AWS: its command line, and the instances that it finds by
//! their tags. The tests run the real program. EC2 is simulated by moto server, and STS by a simulator. The API server
//! runs in this process.

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
