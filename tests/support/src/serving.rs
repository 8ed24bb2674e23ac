//! The common part of the simulators: a thread that serves until the simulator is dropped.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread::JoinHandle;

use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// A port on 127.0.0.1, with a separate thread and runtime. The thread, the runtime and all connections end when this
/// value is dropped.
#[derive(Debug)]
pub(crate) struct Serving {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    /// Serves connections with `accept`, on a free port.
    pub(crate) fn start<A>(accept: impl FnOnce(TcpListener) -> A + Send + 'static) -> Self
    where
        A: Future,
    {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener).unwrap();
                tokio::select! {
                    _ = accept(listener) => {}
                    _ = stopped => {}
                }
            });
            // Blocking tasks run in separate threads, so they are not awaited.
            runtime.shutdown_background();
        });
        Self {
            address,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// The address of the port.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// An error that closes the connection without a response.
#[derive(Debug)]
pub(crate) struct Cut;

impl std::fmt::Display for Cut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("cut by the test")
    }
}

impl std::error::Error for Cut {}
