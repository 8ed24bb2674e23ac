use std::net::SocketAddr;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::Path;
use std::thread::JoinHandle;

use tokio::net::{TcpStream, UnixListener};
use tokio::sync::oneshot;

/// A Unix socket that leads to a TCP address of the host, until this is dropped.
///
/// A Unix socket, since those are found by path also from another network namespace.
#[derive(Debug)]
pub(super) struct Forwarder {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Forwarder {
    #[track_caller]
    pub(super) fn start(socket: &Path, server: SocketAddr) -> Self {
        let listener = StdUnixListener::bind(socket)
            .unwrap_or_else(|error| panic!("cannot listen on {}: {error}", socket.display()));
        listener.set_nonblocking(true).expect("it is a socket");
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime can be made");
            runtime.block_on(async {
                let listener = UnixListener::from_std(listener).expect("it does not block");
                tokio::select! {
                    () = forward(listener, server) => {}
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

async fn forward(listener: UnixListener, server: SocketAddr) {
    while let Ok((mut client, _)) = listener.accept().await {
        tokio::spawn(async move {
            // Without an API server the connection ends, as it does when that is killed.
            if let Ok(mut server) = TcpStream::connect(server).await {
                tokio::io::copy_bidirectional(&mut client, &mut server)
                    .await
                    .ok();
            }
        });
    }
}
