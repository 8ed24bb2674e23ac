//! An instance metadata service (version 2) for one instance, with faults.
//!
//! The service responds as EC2's metadata service does, within its scope: session tokens and their lifetimes, the
//! identity document and its signature, the placement, the services' partition and the credentials of the instance, and
//! lists of the values in a directory. The service does not create data itself: a test sets an [`Instance`], and can
//! replace it at run time. Faults are set at run time ([`Imds::inject`], [`Imds::go_down`]), and all requests are
//! recorded.
//!
//! Each service has a separate port. All services in a process share one thread, so a process can run 200 services. A
//! service stops when it is dropped.
//!
//! ```
//! use kubelet_authenticator_test_support::imds::{Fault, Imds, Instance, Route, Times};
//!
//! let imds = Imds::start(Instance::new("eu-west-1", "eu-west-1a", "i-0123456789abcdef0"));
//! // The token request gets no answer, as with a hop limit that is too low.
//! imds.inject(Route::token(), Times::always(), Fault::Hang);
//!
//! let endpoint = imds.url();
//! // ... a client does not get an answer ...
//! assert_eq!(imds.requests().len(), 0);
//! ```
//!
//! Not implemented: version 1 (every read without a token gets 401), tags, user data, network interfaces, spot notices.

mod faults;
mod instance;
mod network;
mod serve;
mod session;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub use self::faults::{Fault, Route};
pub use self::instance::{Instance, Profile};
pub use self::network::Network;
pub use crate::api_server::Times;
pub use crate::sts::Credentials;

use self::faults::Faults;
use self::session::Sessions;
use crate::process::{free_port, poll};

/// The maximum time to wait for a port that another process has just used.
const PORT_PATIENCE: Duration = Duration::from_secs(60);

/// The metadata service of one instance.
#[derive(Debug)]
pub struct Imds {
    address: SocketAddr,
    shared: Arc<Shared>,
    listening: Mutex<Option<Listening>>,
}

/// A request that reached the service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The number of the request's connection, starting from 0.
    pub connection: usize,
    /// HTTP method.
    pub method: String,
    /// The path and the query, as received.
    pub path: String,
    /// Whether the request contained a token that was valid at that time.
    pub authorized: bool,
    /// The requested token lifetime, if the request was for a token.
    pub ttl: Option<u32>,
    /// The status of the response. `None` while the request has no response.
    pub code: Option<u16>,
}

#[derive(Debug)]
struct Shared {
    instance: Mutex<Instance>,
    sessions: Mutex<Sessions>,
    faults: Mutex<Faults>,
    requests: Mutex<Vec<Request>>,
    connections: Mutex<usize>,
}

#[derive(Debug)]
struct Listening {
    /// Dropping this value closes the connections and the listener.
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

/// The thread for all services in this process.
static RUNTIME: LazyLock<Handle> = LazyLock::new(|| {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let handle = runtime.handle().clone();
    std::thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
    handle
});

impl Imds {
    /// Starts a service on a free port of 127.0.0.1.
    pub fn start(instance: Instance) -> Self {
        Self::start_at(Ipv4Addr::LOCALHOST.into(), instance)
    }

    /// Starts a service on a free port of this IP address.
    #[track_caller]
    pub fn start_at(ip: IpAddr, instance: Instance) -> Self {
        let shared = Arc::new(Shared {
            instance: Mutex::new(instance),
            sessions: Mutex::default(),
            faults: Mutex::default(),
            requests: Mutex::default(),
            connections: Mutex::default(),
        });
        // The port is below the range from which the kernel assigns ports, so it is available again later.
        let bound = poll(PORT_PATIENCE, || {
            std::net::TcpListener::bind((ip, free_port())).ok()
        });
        let listener = bound.unwrap_or_else(|| panic!("no free port of {ip}"));
        let address = listener.local_addr().unwrap();
        let listening = Mutex::new(Some(Listening::start(listener, shared.clone())));
        Self {
            address,
            shared,
            listening,
        }
    }

    /// The address on which the service listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of the service: `http://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Replaces the instance, for example after a stop and a start, or after its credentials were rotated.
    pub fn set(&self, instance: Instance) {
        *lock(&self.shared.instance) = instance;
    }

    /// Changes the instance.
    pub fn update(&self, change: impl FnOnce(&mut Instance)) {
        change(&mut lock(&self.shared.instance));
    }

    /// Adds a fault. If several faults match, they occur in the order in which they were added.
    pub fn inject(&self, route: Route, times: Times, fault: Fault) {
        lock(&self.shared.faults).add(route, times, fault);
    }

    /// Removes all faults.
    pub fn clear_faults(&self) {
        lock(&self.shared.faults).clear();
    }

    /// Deletes every token. Requests fail with 401 until the client requests a new token.
    pub fn expire_tokens(&self) {
        lock(&self.shared.sessions).clear();
    }

    /// Refuses new connections after this call. Closes the open connections.
    pub fn go_down(&self) {
        let listening = lock(&self.listening).take();
        if let Some(Listening { stop, task }) = listening {
            drop(stop);
            // Waits for the end of the task, which closes the port.
            poll(PORT_PATIENCE, || task.is_finished().then_some(()));
        }
    }

    /// Listens on the same port again.
    #[track_caller]
    pub fn come_up(&self) {
        let mut listening = lock(&self.listening);
        if listening.is_some() {
            return;
        }
        let bound = poll(PORT_PATIENCE, || {
            std::net::TcpListener::bind(self.address).ok()
        });
        let listener = bound.unwrap_or_else(|| panic!("{} is another's now", self.address));
        *listening = Some(Listening::start(listener, self.shared.clone()));
    }

    /// All requests so far, oldest first.
    pub fn requests(&self) -> Vec<Request> {
        lock(&self.shared.requests).clone()
    }

    /// The number of requests for a token.
    pub fn tokens(&self) -> usize {
        let requests = lock(&self.shared.requests);
        requests.iter().filter(|it| it.method == "PUT").count()
    }

    /// The number of reads.
    pub fn reads(&self) -> usize {
        let requests = lock(&self.shared.requests);
        requests.iter().filter(|it| it.method == "GET").count()
    }
}

impl Drop for Imds {
    fn drop(&mut self) {
        if let Some(listening) = lock(&self.listening).take() {
            listening.task.abort();
        }
    }
}

impl Listening {
    fn start(listener: std::net::TcpListener, shared: Arc<Shared>) -> Self {
        listener.set_nonblocking(true).unwrap();
        let (stop, stopped) = oneshot::channel();
        let task = RUNTIME.spawn(serve::accept(listener, shared, stopped));
        Self { stop, task }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
