use std::net::{Ipv4Addr, SocketAddr, TcpListener as StdTcpListener};
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::oneshot;

use super::endpoint::{Server, Servers};

/// A socket that forwards connections to the first TCP address that responds, until this value is dropped.
#[derive(Debug)]
pub(super) struct Forwarder {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Forwarder {
    /// Listens on a Unix socket, because a path is also accessible from another network namespace.
    #[track_caller]
    pub(super) fn on_socket(socket: &Path, server: SocketAddr) -> Self {
        let listener = StdUnixListener::bind(socket)
            .unwrap_or_else(|error| panic!("cannot listen on {}: {error}", socket.display()));
        listener.set_nonblocking(true).expect("it is a socket");
        let servers = Arc::new(Mutex::new(vec![Server {
            address: server,
            process: None,
        }]));
        Self::start(async move {
            let listener =
                UnixListener::from_std(listener).expect("the socket can be made non-blocking");
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(forward(client, servers.clone()));
            }
        })
    }

    /// Listens on a free port of this address on the host, and also returns the address with the port.
    #[track_caller]
    pub(super) fn on_address(address: Ipv4Addr, servers: Servers) -> (Self, SocketAddr) {
        let listener = StdTcpListener::bind((address, 0))
            .unwrap_or_else(|error| panic!("cannot listen on {address}: {error}"));
        listener.set_nonblocking(true).expect("it is a socket");
        let address = listener.local_addr().expect("it is bound");
        let forwarder = Self::start(async move {
            let listener =
                TcpListener::from_std(listener).expect("the socket can be made non-blocking");
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(forward(client, servers.clone()));
            }
        });
        (forwarder, address)
    }

    fn start(accept: impl Future<Output = ()> + Send + 'static) -> Self {
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime can be created");
            runtime.block_on(async {
                tokio::select! {
                    () = accept => {}
                    _ = stopped => {}
                }
            });
        });
        Self {
            stop: Some(stop),
            thread: Some(thread),
        }
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

async fn forward(mut client: impl AsyncRead + AsyncWrite + Unpin, servers: Servers) {
    let servers = servers
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    for server in servers.iter().filter(|server| server.is_there()) {
        if let Ok(mut server) = TcpStream::connect(server.address).await {
            copy_bidirectional(&mut client, &mut server).await.ok();
            return;
        }
    }
    // If there is no API server, the connection is closed, as if the server had been killed.
}
