//! A strict security token service that implements `GetCallerIdentity`, `AssumeRole` and `AssumeRoleWithWebIdentity`.
//!
//! The service calculates the signature of every call itself, from the received bytes (AWS Signature Version 4). It
//! stores the owner of each access key. Its responses have the same text as the responses from AWS, in JSON or XML,
//! depending on the header `accept`. One address serves all regions: a test sets that address as the endpoint, and
//! `host` is signed as received.
//!
//! The service runs on a separate thread and runtime. Its interface is synchronous, and can be used from any thread.
//! The service stops when it is dropped.
//!
//! ```
//! use kubelet_authenticator_test_support::sts::{Fault, Principal, Sts, Times};
//!
//! let sts = Sts::start();
//! let credentials = sts.credentials(Principal::instance("123456789012", "i-0123456789abcdef0"));
//! sts.inject(Times::once(), Fault::throttling());
//! // ... an instance signs with the credentials, and a verifier calls twice ...
//! assert!(credentials.access_key_id.starts_with("ASIA"));
//! assert_eq!(sts.calls(), []);
//! ```

mod answers;
mod credentials;
mod faults;
mod roles;
mod server;
mod sigv4;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

pub use self::credentials::{Credentials, Principal};
pub use self::faults::{ConnectionFault, Fault, Times};
pub use self::roles::Trust;
pub use self::sigv4::{Signing, sign};

use self::credentials::Issued;
use self::faults::Faults;
use self::roles::Roles;
use self::server::Acceptors;
use crate::clock::now;
use crate::pki::CertificateAuthority;
use crate::serving::Serving;

/// The lifetime of credentials from [`Sts::credentials`], which is the same as in instance metadata.
const LIFETIME: Duration = Duration::from_secs(6 * 3600);

/// A running service.
#[derive(Debug)]
pub struct Sts {
    serving: Serving,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    authority: CertificateAuthority,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    issued: Issued,
    roles: Roles,
    calls: Vec<Call>,
    connections: usize,
    faults: Faults,
    clock: Clock,
    /// The ARNs of callers whose sessions have transitive tags.
    tagged: HashSet<String>,
    /// The ARNs of the roles whose policies also allow `sts:TagSession`.
    accept_tags: HashSet<String>,
    /// For each account, the regions that the account has not enabled.
    not_enabled: HashSet<(String, String)>,
}

#[derive(Debug, Clone, Copy, Default)]
enum Clock {
    #[default]
    Real,
    Stopped(SystemTime),
}

impl Clock {
    fn now(self) -> SystemTime {
        match self {
            Self::Real => now(),
            Self::Stopped(at) => at,
        }
    }
}

/// A call as it was received, and its outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The HTTP method.
    pub method: String,
    /// The path and the query.
    pub target: String,
    /// The headers in the order of their arrival, with their names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: String,
    /// The ARN of the caller, if the signature is valid.
    pub caller: Option<String>,
    /// `OK`, the error code, or the name of the fault.
    pub outcome: String,
}

impl Call {
    /// The first header with this name.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        let (_, value) = headers.find(|(header, _)| header == name)?;
        Some(value)
    }

    /// The parameter with this name in the body.
    pub fn parameter(&self, name: &str) -> Option<String> {
        let mut pairs = form_urlencoded::parse(self.body.as_bytes());
        pairs
            .find(|(parameter, _)| parameter == name)
            .map(|(_, value)| value.into_owned())
    }
}

impl Default for Sts {
    fn default() -> Self {
        Self::start()
    }
}

impl Sts {
    /// Starts a service that listens on a free port of 127.0.0.1, and does not accept any credentials yet.
    pub fn start() -> Self {
        let authority = CertificateAuthority::new("STS of a test");
        let acceptors = Acceptors::new(&authority);
        let shared = Arc::new(Shared {
            authority,
            state: Mutex::default(),
        });
        let serving = Serving::start({
            let shared = shared.clone();
            move |listener| server::accept(listener, shared, acceptors)
        });
        Self { serving, shared }
    }

    /// The address on which the service listens.
    pub fn address(&self) -> SocketAddr {
        self.serving.address()
    }

    /// `127.0.0.1:PORT`, which is the form of an endpoint in the settings, and of the signed `host`.
    pub fn host(&self) -> String {
        self.address().to_string()
    }

    /// The URL of the service: `https://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("https://{}", self.address())
    }

    /// The certificate (PEM) of the authority that signed the certificate of the service.
    pub fn ca_pem(&self) -> &str {
        self.shared.authority.certificate_pem()
    }

    /// Issues new credentials for `principal`, which are valid for 6 hours according to the service's clock.
    pub fn credentials(&self, principal: Principal) -> Credentials {
        let expiration = self.now() + LIFETIME;
        self.credentials_until(principal, expiration)
    }

    /// Issues new credentials for `principal` with this expiry time.
    pub fn credentials_until(&self, principal: Principal, expiration: SystemTime) -> Credentials {
        self.state().issued.issue(principal, expiration)
    }

    /// Adds a long-lived access key for this principal. Another secret with the same ID replaces the previous secret.
    ///
    /// # Panics
    ///
    /// Panics if a key with this ID belongs to another principal.
    #[track_caller]
    pub fn learn(&self, principal: Principal, access_key: (&str, &str)) {
        self.state()
            .issued
            .learn(principal, access_key.0, access_key.1);
    }

    /// The owner of an access key that the service has issued.
    pub fn owner(&self, access_key_id: &str) -> Option<Principal> {
        let state = self.state();
        let (_, owner) = state.issued.find(access_key_id)?;
        Some(owner.clone())
    }

    /// Creates a role, or changes the principals that are allowed to assume it.
    pub fn role(&self, arn: &str, trust: Trust) {
        self.state().roles.0.insert(arn.to_owned(), trust);
    }

    /// Adds transitive tags to the sessions of this caller, as EKS Pod Identity does. A role that the caller assumes
    /// must also allow `sts:TagSession`, and its sessions have the same tags.
    pub fn tag_sessions_of(&self, arn: &str) {
        self.state().tagged.insert(arn.to_owned());
    }

    /// Changes the trust policy of this role and the policies of its callers so that they also allow `sts:TagSession`.
    pub fn allow_tag_session(&self, role: &str) {
        self.state().accept_tags.insert(role.to_owned());
    }

    /// Marks a region as not enabled for this account: STS in this region does not recognize the account's credentials,
    /// and does not issue sessions of its roles.
    pub fn not_enabled(&self, account: &str, region: &str) {
        let pair = (account.to_owned(), region.to_owned());
        self.state().not_enabled.insert(pair);
    }

    /// All calls so far, oldest first.
    pub fn calls(&self) -> Vec<Call> {
        self.state().calls.clone()
    }

    /// The calls after the first `count` calls, oldest first.
    pub fn calls_after(&self, count: usize) -> Vec<Call> {
        self.state().calls[count..].to_vec()
    }

    /// The number of accepted connections so far.
    pub fn connections(&self) -> usize {
        self.state().connections
    }

    /// Injects a fault into this number of subsequent calls.
    pub fn inject(&self, times: Times, fault: Fault) {
        self.state().faults.add(times, fault);
    }

    /// Injects a fault into this number of subsequent connections.
    pub fn inject_connection(&self, times: Times, fault: ConnectionFault) {
        self.state().faults.add_connection(times, fault);
    }

    /// Removes the faults that have not occurred yet.
    pub fn clear_faults(&self) {
        self.state().faults = Faults::default();
    }

    /// The service's time.
    pub fn now(&self) -> SystemTime {
        self.state().clock.now()
    }

    /// Sets the service's clock to this time, and stops the clock.
    pub fn stop_clock(&self, at: SystemTime) {
        self.state().clock = Clock::Stopped(at);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
