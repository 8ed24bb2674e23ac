//! A proxy for a server. The proxy can close all its connections at the same time.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// A TCP proxy for one server.
#[derive(Debug)]
pub struct BreakingProxy {
    address: SocketAddr,
    breaks: watch::Sender<u32>,
}

impl BreakingProxy {
    /// Starts a proxy on a free port of 127.0.0.1, for the server at this URL.
    pub fn start(runtime: &Runtime, url: &str) -> Self {
        let server: SocketAddr = url.trim_start_matches("https://").parse().unwrap();
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
        let listener = listener.unwrap();
        let address = listener.local_addr().unwrap();
        let (breaks, broken) = watch::channel(0);
        runtime.spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut broken = broken.clone();
                broken.mark_unchanged();
                tokio::spawn(async move {
                    let Ok(mut server) = TcpStream::connect(server).await else {
                        return;
                    };
                    tokio::select! {
                        _ = copy_bidirectional(&mut client, &mut server) => {}
                        _ = broken.changed() => {}
                    }
                });
            }
        });
        Self { address, breaks }
    }

    /// The proxy's URL.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Breaks all connections.
    pub fn break_all(&self) {
        self.breaks.send_modify(|breaks| *breaks += 1);
    }
}
