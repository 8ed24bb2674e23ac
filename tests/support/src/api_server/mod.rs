//! An in-memory Kubernetes API server with injectable faults.
//!
//! It responds like kube-apiserver 1.36, within its scope: authentication with bootstrap tokens and client
//! certificates, certificate signing requests with their rules, nodes, leases and events. A test can define more kinds
//! ([`ApiServer::define`]), which follow the rules for custom resources. A test sets faults at run time
//! ([`ApiServer::inject`], [`ApiServer::inject_connection`]) and can hold requests at a step ([`ApiServer::hold`]); all
//! requests are recorded.
//!
//! The server runs on a separate thread and runtime. Its interface is synchronous, and can be used from any thread. The
//! server stops when it is dropped.
//!
//! ```
//! use kubelet_authenticator_test_support::api_server::{ApiServer, Fault, Route, Signer, Times};
//!
//! let server = ApiServer::start();
//! server.set_signer(Signer::issue());
//! server.inject(Route::create(), Times::once(), Fault::LoseAnswer);
//!
//! let environment = server.exec_info("v1", true);
//! // ... a client runs, creates its request twice, and watches it once ...
//! assert_eq!((server.creates(), server.watches()), (0, 0));
//! ```
//!
//! Not implemented: protobuf bodies (415), field owners in server-side apply, the merging of lists in strategic merge
//! patches, garbage collection, tables.

mod answer;
mod auth;
mod csr;
mod custom;
mod discovery;
mod faults;
mod files;
mod handlers;
mod log;
mod objects;
mod observe;
mod pem;
mod resource;
mod serve;
mod signer;
mod status;
mod store;
mod tls;
mod trickle;
mod watch;

use std::net::SocketAddr;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rustls::crypto::CryptoProvider;
use serde_json::Value;

pub use self::auth::User;
pub use self::faults::{ConnectionFault, Fault, Route, Times};
pub use self::files::{Kubeconfig, exec_info};
pub use self::log::{Gate, Request, Step};
pub use self::objects::Definition;
pub use self::resource::Verb;
pub use self::signer::{Flaw, Issuance, Signer};
pub use self::tls::OTHER_NAME;

use self::auth::Authenticator;
use self::faults::Faults;
use self::log::{GateState, Log};
use self::resource::{CORE_EVENTS, EVENTS, NODES, REQUESTS, Resource};
use self::store::{Selection, Store};
use self::tls::Acceptors;
use crate::hex::hex;
use crate::pki::{CertificateAuthority, Contents, KeyAndCertificate, Subject};
use crate::serving::Serving;

/// The bootstrap token that every server accepts after its start.
pub const TOKEN: &str = "abcdef.0123456789abcdef";

/// A running server.
#[derive(Debug)]
pub struct ApiServer {
    serving: Serving,
    shared: Arc<Shared>,
}

/// The state that the server's tasks share with the owner of the server.
#[derive(Debug)]
struct Shared {
    authority: CertificateAuthority,
    state: Mutex<State>,
    faults: Mutex<Faults>,
    gates: Mutex<Vec<Arc<GateState>>>,
    log: Log,
    connections: Mutex<Vec<Option<ConnectionFault>>>,
    open: AtomicUsize,
    skew: Mutex<i64>,
    bookmarks: tokio::sync::watch::Sender<()>,
    drops: tokio::sync::watch::Sender<()>,
}

#[derive(Debug)]
struct State {
    store: Store,
    signer: Signer,
    authenticator: Authenticator,
}

impl Default for ApiServer {
    fn default() -> Self {
        Self::start()
    }
}

impl ApiServer {
    /// Starts a server that listens on a free port of 127.0.0.1, accepts [`TOKEN`] and does not sign.
    pub fn start() -> Self {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let authority = CertificateAuthority::new("kubernetes");
        let acceptors = Acceptors::new(&authority, &provider);
        let shared = Arc::new(Shared::new(authority, &provider));
        let serving = Serving::start({
            let shared = shared.clone();
            move |listener| serve::accept(listener, shared, acceptors)
        });
        let server = Self { serving, shared };
        let (id, secret) = TOKEN.split_once('.').unwrap();
        server.add_token(id, secret);
        server
    }

    /// The address on which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.serving.address()
    }

    /// The URL of the server: `https://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("https://{}", self.address())
    }

    /// The cluster's CA, which signs the certificates of the server and of the clients.
    pub fn authority(&self) -> &CertificateAuthority {
        &self.shared.authority
    }

    /// The certificate of [`ApiServer::authority`] as PEM.
    pub fn ca_pem(&self) -> &str {
        self.shared.authority.certificate_pem()
    }

    /// The certificate and the key (PKCS#8) of [`ApiServer::authority`], for a controller that signs.
    pub fn client_ca(&self) -> &KeyAndCertificate {
        self.shared.authority.pair()
    }

    /// Issues a client certificate for this cluster.
    pub fn client_certificate(&self, subject: Subject) -> KeyAndCertificate {
        self.shared.authority.issue(&Contents::client(subject))
    }

    /// Issues a client certificate with all permissions (`system:masters`).
    pub fn admin_certificate(&self) -> KeyAndCertificate {
        self.client_certificate(Subject {
            organization: Some("system:masters".into()),
            common_name: "kubernetes-admin".into(),
            uid: None,
        })
    }

    /// Adds a bootstrap token.
    pub fn add_token(&self, id: &str, secret: &str) {
        lock(&self.shared.state).authenticator.add_token(id, secret);
    }

    /// Deletes a bootstrap token. After that, requests with the token fail with 401.
    pub fn revoke_token(&self, id: &str) {
        lock(&self.shared.state).authenticator.revoke_token(id);
    }

    /// Sets the signer that answers the certificate requests that are created after this call.
    pub fn set_signer(&self, signer: Signer) {
        lock(&self.shared.state).signer = signer;
    }

    /// Applies `signer` to one request immediately.
    pub fn decide(&self, name: &str, signer: &Signer) {
        let mut state = lock(&self.shared.state);
        signer::decide(&mut state.store, signer, &self.shared.authority, name);
    }

    /// Approves one request and issues its certificate.
    pub fn approve_and_issue(&self, name: &str) {
        self.decide(name, &Signer::issue());
    }

    /// Adds a condition to a request without any checks.
    pub fn add_condition(&self, name: &str, kind: &str, reason: &str, message: &str) {
        let mut state = lock(&self.shared.state);
        signer::add_condition(&mut state.store, name, kind, reason, message);
    }

    /// Sets a request's certificate without any checks.
    pub fn set_certificate(&self, name: &str, pem: &str) {
        signer::set_certificate(&mut lock(&self.shared.state).store, name, pem);
    }

    /// All certificate requests.
    pub fn csrs(&self) -> Vec<Value> {
        self.objects(&REQUESTS)
    }

    /// One certificate request.
    pub fn csr(&self, name: &str) -> Option<Value> {
        let object = lock(&self.shared.state)
            .store
            .get(&REQUESTS, "", name)
            .ok()?;
        Some((*object).clone())
    }

    /// Stores a certificate request unchanged and unchecked. `metadata.name` is required.
    pub fn put_csr(&self, object: Value) {
        let mut state = lock(&self.shared.state);
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        if state.store.get(&REQUESTS, "", name).is_ok() {
            state.store.replace(&REQUESTS, object);
        } else {
            let _ = state.store.create(&REQUESTS, object);
        }
    }

    /// Deletes a certificate request, as garbage collection does.
    pub fn delete_csr(&self, name: &str) {
        let _ = lock(&self.shared.state).store.delete(&REQUESTS, "", name);
    }

    /// All nodes.
    pub fn nodes(&self) -> Vec<Value> {
        self.objects(&NODES)
    }

    /// All events in both groups.
    pub fn events(&self) -> Vec<Value> {
        [self.objects(&CORE_EVENTS), self.objects(&EVENTS)].concat()
    }

    /// Deletes the history of changes. Watches from an earlier `resourceVersion` fail with 410.
    pub fn compact(&self) {
        lock(&self.shared.state).store.compact();
    }

    /// Adds a fault for matching requests. Rules are tried in the order in which they were added.
    pub fn inject(&self, route: Route, times: Times, fault: Fault) {
        lock(&self.shared.faults).add(route, times, fault);
    }

    /// Adds a fault for new connections.
    pub fn inject_connection(&self, times: Times, fault: ConnectionFault) {
        lock(&self.shared.faults).add_connection(times, fault);
    }

    /// Removes all faults that have not occurred yet.
    pub fn clear_faults(&self) {
        lock(&self.shared.faults).clear();
    }

    /// Sets the error of the `Date` header in every response, in seconds. Negative values are in the past.
    pub fn set_date_skew(&self, seconds: i64) {
        *lock(&self.shared.skew) = seconds;
    }

    /// Closes every open connection, including watches.
    pub fn drop_connections(&self) {
        self.shared.drops.send_replace(());
    }

    fn objects(&self, resource: &'static Resource) -> Vec<Value> {
        let state = lock(&self.shared.state);
        let found = state.store.list(&Selection::everything(resource));
        found.iter().map(|object| (**object).clone()).collect()
    }
}

impl Shared {
    fn new(authority: CertificateAuthority, provider: &Arc<CryptoProvider>) -> Self {
        let authenticator = Authenticator::new(&authority.certificate_der(), provider);
        Self {
            authority,
            state: Mutex::new(State {
                store: Store::new(),
                signer: Signer::Off,
                authenticator,
            }),
            faults: Mutex::default(),
            gates: Mutex::default(),
            log: Log::default(),
            connections: Mutex::default(),
            open: AtomicUsize::default(),
            skew: Mutex::default(),
            bookmarks: tokio::sync::watch::Sender::new(()),
            drops: tokio::sync::watch::Sender::new(()),
        }
    }
}

/// Locks the mutex, even after a test panicked.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until `pick` returns a value for the locked state. Returns `None` at the deadline.
fn wait_until<G, T>(
    mutex: &Mutex<G>,
    changed: &Condvar,
    deadline: Duration,
    mut pick: impl FnMut(&G) -> Option<T>,
) -> Option<T> {
    let end = Instant::now() + deadline;
    let mut guard = lock(mutex);
    loop {
        if let Some(found) = pick(&guard) {
            return Some(found);
        }
        let left = end.checked_duration_since(Instant::now())?;
        guard = changed
            .wait_timeout(guard, left)
            .unwrap_or_else(PoisonError::into_inner)
            .0;
    }
}

/// A version 4 UUID.
fn random_uid() -> String {
    let mut bytes = [0; 16];
    aws_lc_rs::rand::fill(&mut bytes).unwrap();
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let [a, b, c, d, e] = [0..4, 4..6, 6..8, 8..10, 10..16].map(|part| hex(&bytes[part]));
    format!("{a}-{b}-{c}-{d}-{e}")
}

/// The time as RFC 3339 in UTC, in whole seconds, in the format that Kubernetes uses.
fn timestamp(time: SystemTime) -> String {
    let time = jiff::Timestamp::try_from(time).unwrap();
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
