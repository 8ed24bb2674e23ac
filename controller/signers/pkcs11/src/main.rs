//! An external signer for node-attestation-controller: the keys of CAs stay in a PKCS #11 token.
//!
//! ```text
//! node-attestation-signer-pkcs11 --socket PATH --module LIBRARY --token-label LABEL --pin-file FILE
//!     --ca CERT,KEY-LABEL[,NAMESPACE/NAME] .. [--reserved-name NAME ..] [--reserved-address ADDRESS ..]
//! ```
//!
//! # Contract
//!
//! - It serves `nodeattestation.v1alpha1.ExternalSigner` (docs/signers.md) on a Unix socket of mode 0600.
//! - It signs for the CAs of its command line, each for one Cluster, and only certificates of nodes: what it is asked to
//!   sign is read first.
//! - Standard error has the log: one line for each certificate. It never has the PIN.
//! - The PIN is tried once, and not at all if its file is empty, or of others too. A token that refuses it is not asked
//!   again, so that it does not lock itself. The process goes on, because a supervisor would start it again; `Status` and
//!   `Sign` tell the refusal.
//! - SIGTERM and SIGINT stop it, after what is being signed.
//!
//! # Exit codes
//!
//! | code | meaning |
//! | --- | --- |
//! | 0 | stopped by a signal |
//! | 1 | a file, the token or the socket cannot be used; standard error says which and why |
//! | 2 | usage |
//!
//! # Modules
//!
//! Each imports only those above it.
//!
//! - `authority`: the CAs of the command line
//! - `pin`: the PIN, from its file
//! - `server_names`: the names and addresses of servers' certificates
//! - `policy`: the certificates that are signed
//! - `token`: the PKCS #11 token
//! - `service`: the gRPC service

mod authority;
mod pin;
mod policy;
mod server_names;
mod service;
mod token;

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use clap::Parser;
use node_attestation_signer_api::external_signer_server::ExternalSignerServer;
use rustix::fs::Mode;
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;

use authority::{Authority, AuthorityArgument};
use server_names::{Reserved, ReservedAddress, ReservedName};
use service::Service;
use token::Token;

/// Deadline of one call; the controller waits for ten seconds.
const DEADLINE: Duration = Duration::from_secs(15);

/// Calls at a time. Each has a session of the token. More of one connection wait for their turn; more than these, as others
/// connect or the token hangs, are refused.
const CALLS: usize = 16;

/// The longest request: a certificate without its signature has some kilobytes.
const MAX_REQUEST_LEN: usize = 64 * 1024;

/// Signs certificates of nodes with keys in a PKCS #11 token, for node-attestation-controller.
#[derive(Debug, Parser)]
#[command(name = "node-attestation-signer-pkcs11", version)]
struct Arguments {
    /// The Unix socket that it listens on; its folder exists
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// The PKCS #11 library of the token
    #[arg(long, value_name = "LIBRARY")]
    module: PathBuf,
    /// The token, by its label
    #[arg(long, value_name = "LABEL")]
    token_label: String,
    /// File with the PIN of the token's user in its first line; group and others have no access to it
    #[arg(long, value_name = "FILE")]
    pin_file: PathBuf,
    /// A CA: the file of its certificate, the label of its private key, and its Cluster; without a Cluster, for a
    /// controller that runs without a management cluster
    #[arg(
        long = "ca",
        value_name = "CERT,KEY-LABEL[,NAMESPACE/NAME]",
        required = true
    )]
    authorities: Vec<AuthorityArgument>,
    /// A DNS name of an API server, that no kubelet's serving certificate may have; repeatable
    #[arg(long = "reserved-name", value_name = "NAME")]
    reserved_names: Vec<ReservedName>,
    /// An address of an API server, or a range such as that of Services, that no kubelet's serving certificate may have;
    /// repeatable
    #[arg(long = "reserved-address", value_name = "ADDRESS")]
    reserved_addresses: Vec<ReservedAddress>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_ansi(false)
        .with_target(false)
        .init();
    let authorities: Vec<Authority> = arguments
        .authorities
        .iter()
        .map(AuthorityArgument::read)
        .collect::<Result<_, _>>()?;
    let pin = pin::read(&arguments.pin_file)?;
    let token = Token::open(&arguments.module, &arguments.token_label, &pin)?;
    let reserved = Reserved {
        names: arguments.reserved_names,
        addresses: arguments.reserved_addresses,
    };
    let service = Service::new(token, CALLS, authorities, reserved, now)?;
    Runtime::new()?.block_on(serve(service, &arguments.socket))
}

/// The wall clock, read once for each certificate.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place that reads the wall clock"
)]
fn now() -> SystemTime {
    SystemTime::now()
}

async fn serve(service: Service<Token>, socket: &Path) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let listener = listen(socket).with_context(|| format!("cannot use {}", socket.display()))?;
    tracing::info!(socket = %socket.display(), "serving");
    let service = ExternalSignerServer::new(service).max_decoding_message_size(MAX_REQUEST_LEN);
    Server::builder()
        .timeout(DEADLINE)
        .concurrency_limit_per_connection(CALLS)
        .add_service(service)
        .serve_with_incoming_shutdown(UnixListenerStream::new(listener), async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        })
        .await?;
    tracing::info!("stopped");
    Ok(())
}

/// Listens on the socket, which takes the place of one that was left over.
fn listen(socket: &Path) -> io::Result<UnixListener> {
    let mut new = socket.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    // Nobody else can connect at any moment.
    let former = rustix::process::umask(Mode::from_raw_mode(0o177));
    let listener = UnixListener::bind(&new);
    rustix::process::umask(former);
    let listener = listener?;
    fs::set_permissions(&new, Permissions::from_mode(0o600))?;
    fs::rename(&new, socket)?;
    Ok(listener)
}
