use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use super::Machine;
use super::forwarder::Forwarder;
use super::network::Network;

/// The API server's port on a machine.
const API_SERVER: u16 = 6443;

/// The servers that an endpoint leads to, the first of them as long as it answers.
pub(super) type Servers = Arc<Mutex<Vec<SocketAddr>>>;

/// An address of the host that leads to an API server on a machine, as a load balancer's: the
/// endpoint of a control plane whose machines come and go.
#[derive(Debug)]
pub struct Endpoint {
    address: SocketAddr,
    servers: Servers,
    _forwarder: Forwarder,
}

/// A machine that an [`Endpoint`] leads to, until this is dropped.
#[derive(Debug)]
pub struct Served {
    server: SocketAddr,
    servers: Servers,
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

    /// Makes it lead to the machine's API server too, behind those that it leads to already.
    #[must_use = "it leads there until this is dropped"]
    pub fn lead_to(&self, machine: &Machine) -> Served {
        let server = SocketAddr::from((machine.address(), API_SERVER));
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        servers.push(server);
        Served {
            server,
            servers: self.servers.clone(),
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        servers.retain(|server| *server != self.server);
    }
}
