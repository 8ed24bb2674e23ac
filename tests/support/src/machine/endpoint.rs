use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::Machine;
use super::forwarder::Forwarder;
use super::network::Network;

/// The API server's port on a machine.
const API_SERVER: u16 = 6443;

/// The servers that a forwarder leads to, the first of them as long as it answers.
pub(super) type Servers = Arc<Mutex<Vec<Server>>>;

#[derive(Debug, Clone)]
pub(super) struct Server {
    pub(super) address: SocketAddr,
    /// Where there is something as long as its machine runs: connecting to one that is gone takes
    /// seconds.
    pub(super) process: Option<PathBuf>,
}

impl Server {
    pub(super) fn is_there(&self) -> bool {
        self.process.as_ref().is_none_or(|process| process.exists())
    }
}

/// An address of the host that leads to an API server on a machine, as a load balancer's: the
/// endpoint of a control plane whose machines come and go.
#[derive(Debug)]
pub struct Endpoint {
    address: SocketAddr,
    servers: Servers,
    _forwarder: Forwarder,
}

impl Endpoint {
    /// One that leads nowhere yet.
    ///
    /// # Panics
    ///
    /// Where machines can have no network.
    #[track_caller]
    pub fn start() -> Self {
        let servers = Servers::default();
        let host = Network::of_this_process().host();
        let (forwarder, address) = Forwarder::on_address(host, servers.clone());
        Self {
            address,
            servers,
            _forwarder: forwarder,
        }
    }

    /// Its address, which machines reach too.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Makes it lead to the machine's API server too, while that machine runs, behind those that it
    /// leads to already.
    pub fn lead_to(&self, machine: &Machine) {
        let server = Server {
            address: SocketAddr::from((machine.address(), API_SERVER)),
            process: Some(PathBuf::from(format!("/proc/{}", machine.pid()))),
        };
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        servers.retain(Server::is_there);
        servers.push(server);
    }
}
