use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::Machine;
use super::forwarder::Forwarder;
use super::network::Network;

/// The API server's port on a machine.
const API_SERVER: u16 = 6443;

/// The servers behind a forwarder. The forwarder uses the first server that responds.
pub(super) type Servers = Arc<Mutex<Vec<Server>>>;

#[derive(Debug, Clone)]
pub(super) struct Server {
    pub(super) address: SocketAddr,
    /// A path that exists while the server's machine runs, because a connection to a stopped machine takes seconds to
    /// fail.
    pub(super) process: Option<PathBuf>,
}

impl Server {
    pub(super) fn is_there(&self) -> bool {
        self.process.as_ref().is_none_or(|process| process.exists())
    }
}

/// A load balancer: an address on the host that forwards connections to an API server on a machine. The address is the
/// endpoint of a control plane whose machines are replaced.
#[derive(Debug)]
pub struct Endpoint {
    address: SocketAddr,
    servers: Servers,
    _forwarder: Forwarder,
}

impl Endpoint {
    /// Starts an endpoint without servers.
    ///
    /// # Panics
    ///
    /// Panics if no network for machines is available.
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

    /// The address of the endpoint. Machines can also connect to this address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Adds the machine's API server after the servers that the endpoint already has. The endpoint uses this server while
    /// the machine runs.
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
