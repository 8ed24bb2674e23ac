//! A proxy in front of a TPM that adds failures, delays, hangs and closed connections, and counts the commands to the
//! TPM.
//!
//! ```no_run
//! use kubelet_authenticator_test_support::api_server::Times;
//! use kubelet_authenticator_test_support::swtpm::Swtpm;
//! use kubelet_authenticator_test_support::tpm_proxy::{Commands, Fault, TpmProxy, command};
//!
//! let tpm = Swtpm::start();
//! let proxy = TpmProxy::before(&tpm);
//! // TPM_RC_OBJECT_MEMORY: all slots are taken.
//! proxy.inject(Commands::One(command::CREATE_PRIMARY), Times::once(), Fault::Answer(0x902));
//! // ... a client of `proxy.tcti()` attests ...
//! assert_eq!(proxy.count(command::QUOTE), 1);
//! ```
//!
//! The TPM still serves one client at a time: clients that connect directly wait while a client of the proxy is
//! connected.

mod serve;

use std::collections::HashMap;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::api_server::Times;
use crate::process::{free_port, poll};
use crate::swtpm::Swtpm;

/// The maximum time to search for two adjacent free ports.
const PORT_PATIENCE: Duration = Duration::from_secs(60);

/// `TPM_CC`: the codes of commands ("TPM 2.0 Library, Part 2: Structures", 6.5.2).
pub mod command {
    /// `TPM2_CreatePrimary`.
    pub const CREATE_PRIMARY: u32 = 0x131;
    /// `TPM2_ActivateCredential`.
    pub const ACTIVATE_CREDENTIAL: u32 = 0x147;
    /// `TPM2_NV_Read`.
    pub const NV_READ: u32 = 0x14e;
    /// `TPM2_PolicySecret`.
    pub const POLICY_SECRET: u32 = 0x151;
    /// `TPM2_Quote`.
    pub const QUOTE: u32 = 0x158;
    /// `TPM2_FlushContext`.
    pub const FLUSH_CONTEXT: u32 = 0x165;
    /// `TPM2_StartAuthSession`.
    pub const START_AUTH_SESSION: u32 = 0x176;
    /// `TPM2_GetCapability`.
    pub const GET_CAPABILITY: u32 = 0x17a;
    /// `TPM2_PCR_Read`.
    pub const PCR_READ: u32 = 0x17e;
}

/// The commands to which a fault applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Commands {
    /// All commands.
    All,
    /// The commands with this code.
    One(u32),
    /// The calls of `TPM2_GetCapability` for this capability (`TPM_CAP`).
    Capability(u32),
}

impl Commands {
    fn matches(self, code: u32, request: &[u8]) -> bool {
        match self {
            Self::All => true,
            Self::One(one) => one == code,
            // Compare the first parameter, which follows the header of a command without sessions.
            Self::Capability(one) => {
                code == command::GET_CAPABILITY && request[10..].starts_with(&one.to_be_bytes())
            }
        }
    }
}

/// A fault in a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The proxy answers with this response code, without the TPM.
    Answer(u32),
    /// The proxy answers with success and these parameters, without the TPM.
    Respond(&'static [u8]),
    /// The TPM gets the command after this time.
    Slow(Duration),
    /// The proxy does not answer the command until the faults are cleared. After that, it closes the connection.
    Hang,
    /// The proxy closes the connection.
    Cut,
}

/// A command and its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exchange {
    /// The command's code.
    pub code: u32,
    /// The whole command.
    pub request: Vec<u8>,
    /// The complete response. Empty if the command has no answer, or has not been answered yet.
    pub response: Vec<u8>,
}

/// A running proxy. When it is dropped, it stops and closes its connections.
#[derive(Debug)]
pub struct TpmProxy {
    port: u16,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    cleared: Condvar,
}

#[derive(Debug, Default)]
struct State {
    faults: Vec<(Commands, Times, Fault)>,
    exchanges: Vec<Exchange>,
    connections: HashMap<u64, [TcpStream; 2]>,
    next: u64,
    /// The number of times that the faults have been cleared.
    clearings: usize,
    stopped: bool,
}

impl TpmProxy {
    /// Starts a proxy in front of a TPM.
    #[track_caller]
    pub fn before(tpm: &Swtpm) -> Self {
        let listeners = poll(PORT_PATIENCE, || {
            let port = free_port();
            let listen = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok();
            Some((port, listen(port)?, listen(port + 1)?))
        });
        let (port, data, control) = listeners.expect("two neighbouring ports are free");
        let shared = Arc::new(Shared::default());
        let tpm = tpm.address();
        let beside = SocketAddr::new(tpm.ip(), tpm.port() + 1);
        let threads = [(data, tpm, true), (control, beside, false)].map(|(listener, to, data)| {
            let shared = shared.clone();
            thread::spawn(move || serve::accept(&listener, to, data, &shared))
        });
        Self {
            port,
            shared,
            threads: threads.into(),
        }
    }

    /// The proxy's address in the format of libtss2 and tpm2-tools: `swtpm:host=127.0.0.1,port=PORT`.
    pub fn tcti(&self) -> String {
        format!("swtpm:host=127.0.0.1,port={}", self.port)
    }

    /// Adds a fault for matching commands. Rules are tried in the order in which they were added.
    pub fn inject(&self, commands: Commands, times: Times, fault: Fault) {
        self.shared.lock().faults.push((commands, times, fault));
    }

    /// Removes all faults, and closes the connections of hanging commands.
    pub fn clear_faults(&self) {
        let mut state = self.shared.lock();
        state.faults.clear();
        state.clearings += 1;
        self.shared.cleared.notify_all();
    }

    /// All commands so far, oldest first, including commands that did not reach the TPM.
    pub fn exchanges(&self) -> Vec<Exchange> {
        self.shared.lock().exchanges.clone()
    }

    /// The number of commands with this code.
    pub fn count(&self, code: u32) -> usize {
        let state = self.shared.lock();
        state.exchanges.iter().filter(|it| it.code == code).count()
    }

    /// Whether these bytes were sent, in either direction.
    pub fn carried(&self, bytes: &[u8]) -> bool {
        let state = self.shared.lock();
        state.exchanges.iter().any(|exchange| {
            [&exchange.request, &exchange.response]
                .iter()
                .any(|message| message.windows(bytes.len()).any(|window| window == bytes))
        })
    }

    /// Clears the recorded commands.
    pub fn forget(&self) {
        self.shared.lock().exchanges.clear();
    }
}

impl Drop for TpmProxy {
    fn drop(&mut self) {
        let connections = {
            let mut state = self.shared.lock();
            state.stopped = true;
            self.shared.cleared.notify_all();
            std::mem::take(&mut state.connections)
        };
        for stream in connections.into_values().flatten() {
            stream.shutdown(Shutdown::Both).ok();
        }
        for (thread, port) in self.threads.drain(..).zip(self.port..) {
            // Wakes the thread that waits for a client.
            if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() {
                thread.join().ok();
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a command. Returns its number and its fault.
    fn arrived(&self, request: &[u8]) -> (usize, Option<Fault>) {
        let code = u32::from_be_bytes(request[6..10].try_into().expect("four bytes"));
        let mut state = self.lock();
        state.exchanges.push(Exchange {
            code,
            request: request.to_vec(),
            response: Vec::new(),
        });
        let number = state.exchanges.len() - 1;
        let mut faults = state.faults.iter_mut();
        let fault = faults.find_map(|(commands, times, fault)| {
            (commands.matches(code, request) && times.take()).then_some(*fault)
        });
        (number, fault)
    }

    /// Records an answer, unless the command has been removed in the meantime.
    fn answered(&self, number: usize, request: &[u8], response: &[u8]) {
        let mut state = self.lock();
        let exchange = state.exchanges.get_mut(number);
        if let Some(exchange) = exchange.filter(|exchange| exchange.request == request) {
            exchange.response = response.to_vec();
        }
    }

    /// Waits until the faults are cleared or the proxy stops, but at most for `longest`.
    fn pause(&self, longest: Duration) {
        let state = self.lock();
        let clearings = state.clearings;
        let still = |state: &mut State| state.clearings == clearings && !state.stopped;
        drop(self.cleared.wait_timeout_while(state, longest, still));
    }
}
