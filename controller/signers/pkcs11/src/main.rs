//! An external signer for node-attestation-controller: CA keys remain in a PKCS #11 token.
//!
//! ```text
//! node-attestation-signer-pkcs11 --socket PATH --module LIBRARY --token-label LABEL --pin-file FILE --cas DIRECTORY
//! ```
//!
//! # Contract
//!
//! - The signer serves `nodeattestation.v1alpha1.ExternalSigner` (docs/signers.md) on a Unix socket with mode 0600.
//! - The signer signs for the CAs in a folder. Each CA has one file and belongs to one Cluster. The signer reads the
//!   folder every 5 seconds. An invalid file affects only its own CA.
//! - The signer parses every request, and signs only node certificates.
//! - The signer logs to standard error, with one line for each certificate. The log never contains the PIN.
//! - The signer tries the PIN only once, and does not try it if the PIN file is empty, or accessible to group or
//!   others. If the token rejects the PIN, the signer does not log in again, because the token could lock itself. The
//!   process continues to run, because a supervisor would otherwise restart it. `Status` and `Sign` return the error.
//! - SIGTERM and SIGINT stop the process after it completes the signatures in progress.
//!
//! # Modules
//!
//! Each module imports only modules above it.
//!
//! - `chain`: the text of an error with its causes
//! - `removed`: options in earlier builds, and their replacements
//! - `server_names`: the names and addresses in serving certificates
//! - `authority`: a CA, as described in its file
//! - `folder`: the folder with one file for each CA
//! - `pin`: the PIN file
//! - `policy`: the policy for certificates: the signer signs only node certificates
//! - `token`: the PKCS #11 token
//! - `log_lines`: the log lines about calls without a signature, with a rate limit for each namespace
//! - `turns`: the limit on one CA's concurrent calls to the token
//! - `service`: the gRPC service

mod authority;
mod chain;
mod folder;
mod log_lines;
mod pin;
mod policy;
mod removed;
mod server_names;
#[expect(
    clippy::disallowed_types,
    reason = "the lock has the latest check of the token, which all CAs use"
)]
mod service;
#[expect(
    clippy::disallowed_types,
    reason = "the lock has the login of the process, which all CAs use"
)]
mod token;
#[expect(
    clippy::disallowed_types,
    reason = "the calls of one CA are in the order of arrival"
)]
mod turns;

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use clap::{CommandFactory as _, FromArgMatches as _, Parser};
use node_attestation_signer_api::external_signer_server::ExternalSignerServer;
use rustix::fs::Mode;
use tokio::net::UnixListener;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;

use folder::{Folder, MAX_CAS};
use service::{Calls, Service};
use token::{Keys, Token};

/// The deadline for one call. The controller waits 10 seconds.
const DEADLINE: Duration = Duration::from_secs(15);

/// The maximum number of concurrent signatures. Each of them uses a session with the token. Further signatures wait
/// first for other signatures with the same CA, and then take turns: first by namespace, then by CA. If another
/// namespace has a CA, the CAs of one namespace can use at most half of the concurrent signatures. `Status` calls do
/// not count.
const CALLS: Calls = Calls {
    of_all: 16,
    of_ca: 4,
};

/// The interval between two reads of the folder with the CAs.
const READ_EVERY: Duration = Duration::from_secs(5);

/// The maximum number of concurrent calls on one connection. The controller makes fewer calls.
const STREAMS: u32 = 256;

/// The maximum size of a request. A certificate without its signature is a few kilobytes large.
const MAX_REQUEST_LEN: usize = 64 * 1024;

/// The exit codes, for the end of `--help`.
const EXIT_CODES: &str = "Exit codes:
  0   Stopped by a signal.
  1   The signer cannot use a file, the token or the socket. The error on standard error names the file, token or \
      socket, and the cause.
  2   The arguments are invalid.";

/// Signs node certificates with keys in a PKCS #11 token, for node-attestation-controller.
#[derive(Debug, Parser)]
#[command(name = "node-attestation-signer-pkcs11", version, after_long_help = EXIT_CODES)]
struct Arguments {
    /// Unix socket on which the signer listens. The directory must exist
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// PKCS #11 library of the token
    #[arg(long, value_name = "LIBRARY")]
    module: PathBuf,
    /// Label of the token
    #[arg(long, value_name = "LABEL")]
    token_label: String,
    /// File whose first line is the PIN of the token's user. Either only the signer's user has access to the file, or
    /// the file belongs to root and the signer's group can read it
    #[arg(long, value_name = "FILE")]
    pin_file: PathBuf,
    /// Directory with one file for each CA. The file contains the label of the CA's private key, its Cluster and its
    /// certificate. The signer reads the directory every 5 seconds
    #[arg(long, value_name = "DIRECTORY")]
    cas: PathBuf,
}

fn main() -> anyhow::Result<()> {
    let arguments = arguments();
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_ansi(false)
        .with_target(false)
        .init();
    let files = folder::read(&arguments.cas);
    let files = files.with_context(|| format!("cannot read {}", arguments.cas.display()))?;
    let pin = pin::read(&arguments.pin_file)?;
    let token = Token::open(&arguments.module, &arguments.token_label, &pin)?;
    // Each signature can occupy a thread. `Status`, a check of keys and a read of the folder can each occupy one more
    // thread.
    let threads = MAX_CAS.saturating_mul(CALLS.of_ca);
    let threads = threads.saturating_add(CALLS.of_all);
    let service = Arc::new(Service::new(token, CALLS, now));
    let mut cas = Cas {
        path: arguments.cas,
        folder: Folder::default(),
        service: service.clone(),
    };
    let mut runtime = Builder::new_multi_thread();
    let runtime = runtime.enable_all().max_blocking_threads(threads).build()?;
    runtime.block_on(async {
        cas.update(files);
        let reader = tokio::spawn(cas.read_again());
        let served = serve(service, &arguments.socket).await;
        reader.abort();
        served
    })
}

/// The arguments. An error about an option of an earlier build contains the replacement of the option.
fn arguments() -> Arguments {
    let matches = Arguments::command().try_get_matches();
    let arguments = matches.and_then(|matches| Arguments::from_arg_matches(&matches));
    arguments.unwrap_or_else(|error| removed::explained(error, Arguments::command()).exit())
}

/// The CAs of the folder, for the service.
struct Cas<T> {
    path: PathBuf,
    folder: Folder,
    service: Arc<Service<T>>,
}

impl<T: Keys> Cas<T> {
    fn update(&mut self, files: folder::Files) {
        for event in self.folder.update(files) {
            event.log();
        }
        self.serve(None);
    }

    /// Serves the CAs from the last successful read. `unread` is the reason why the folder cannot be read now.
    fn serve(&self, unread: Option<String>) {
        let refused = self.folder.refused();
        let refused = refused.map(|(file, reason)| format!("{file}: {reason}"));
        let refused = refused.chain(unread).collect();
        self.service.serve(self.folder.authorities(), refused);
        self.service.check_keys();
    }

    /// Reads the folder at regular intervals. If it cannot be read, the CAs from the last read remain in use.
    async fn read_again(mut self) {
        let mut last_error = None;
        loop {
            sleep(READ_EVERY).await;
            let path = self.path.clone();
            // The wait fails only if the runtime stops.
            let Ok(files) = tokio::task::spawn_blocking(move || folder::read(&path)).await else {
                return;
            };
            match files {
                Ok(files) => {
                    self.update(files);
                    last_error = None;
                }
                Err(error) => {
                    let error = error.to_string();
                    if last_error.as_ref() != Some(&error) {
                        let folder = self.path.display();
                        tracing::error!(%folder, error, "cannot read the directory with the CA files");
                    }
                    self.serve(Some(format!(
                        "cannot read the directory with the CA files: {error}"
                    )));
                    last_error = Some(error);
                }
            }
        }
    }
}

/// The wall clock, read once for each certificate.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place that reads the wall clock"
)]
fn now() -> SystemTime {
    SystemTime::now()
}

async fn serve<T: Keys>(service: Arc<Service<T>>, socket: &Path) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let listener = listen(socket).with_context(|| format!("cannot use {}", socket.display()))?;
    tracing::info!(socket = %socket.display(), "serving");
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    serve_on(service, listener, stop).await?;
    tracing::info!("stopped");
    Ok(())
}

async fn serve_on<T: Keys>(
    service: Arc<Service<T>>,
    listener: UnixListener,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let service =
        ExternalSignerServer::from_arc(service).max_decoding_message_size(MAX_REQUEST_LEN);
    Server::builder()
        .timeout(DEADLINE)
        .max_concurrent_streams(STREAMS)
        .add_service(service)
        .serve_with_incoming_shutdown(UnixListenerStream::new(listener), stop)
        .await
}

/// Listens on the socket, and replaces the socket of a previous process.
fn listen(socket: &Path) -> io::Result<UnixListener> {
    let mut new = socket.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    // The mode is restricted before the socket exists, so that other users can never connect.
    let former = rustix::process::umask(Mode::from_raw_mode(0o177));
    let listener = UnixListener::bind(&new);
    rustix::process::umask(former);
    let listener = listener?;
    fs::set_permissions(&new, Permissions::from_mode(0o600))?;
    fs::rename(&new, socket)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use node_attestation_signer_api::StatusRequest;
    use node_attestation_signer_api::external_signer_client::ExternalSignerClient;
    use tonic::transport::Endpoint;

    use super::*;
    use crate::service::tests::world_of;

    /// As in the controller, all calls use one connection.
    #[tokio::test]
    async fn a_status_call_does_not_wait_for_signatures_on_its_connection() {
        let mut world = world_of(CALLS, false);
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("signer.sock");
        let service = world.service.clone();
        let server = tokio::spawn({
            let listener = listen(&socket).unwrap();
            async move { serve_on(service, listener, std::future::pending()).await }
        });
        let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display())).unwrap();
        let client = ExternalSignerClient::new(endpoint.connect().await.unwrap());
        let mut calls = Vec::new();
        for request in (0..64).map(|number| world.requests[number % 2].clone()) {
            let mut client = client.clone();
            calls.push(tokio::spawn(async move { client.sign(request).await }));
        }
        for _ in 0..2 * CALLS.of_ca {
            world.asked().await;
        }

        let status = client.clone().status(StatusRequest {}).await.unwrap();

        assert_eq!(status.into_inner().health, "ok");
        for _ in 0..64 {
            world.answer();
        }
        for call in calls {
            call.await.unwrap().unwrap();
        }
        server.abort();
    }
}
