//! A minimal HTTP proxy that supports only CONNECT, and records its requests.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// The time after which a silent client is disconnected.
const IDLE: Duration = Duration::from_secs(30);

/// A running proxy. It stops when it is dropped.
#[derive(Debug)]
pub struct ConnectProxy {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
    refused: Arc<AtomicUsize>,
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Default for ConnectProxy {
    fn default() -> Self {
        Self::start()
    }
}

impl ConnectProxy {
    /// Starts a proxy on a free port of 127.0.0.1.
    pub fn start() -> Self {
        Self::serving(None, None)
    }

    /// Starts a proxy that serves only requests with this value of `proxy-authorization`.
    pub fn asking_for(authorization: &str) -> Self {
        Self::serving(None, Some(authorization.to_owned()))
    }

    /// Starts a proxy that connects to `server`, regardless of the address in the request.
    pub fn leading_to(server: SocketAddr) -> Self {
        Self::serving(Some(server), None)
    }

    fn serving(server: Option<SocketAddr>, authorization: Option<String>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let refused = Arc::new(AtomicUsize::new(0));
        let stopped = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let (asked, refused, stopped) = (asked.clone(), refused.clone(), stopped.clone());
            move || {
                for client in listener.incoming().flatten() {
                    if stopped.load(Ordering::SeqCst) {
                        break;
                    }
                    let (asked, refused) = (asked.clone(), refused.clone());
                    let authorization = authorization.clone();
                    std::thread::spawn(move || {
                        serve(client, server, authorization.as_deref(), &asked, &refused)
                    });
                }
            }
        });
        Self {
            address,
            asked,
            refused,
            stopped,
            thread: Some(thread),
        }
    }

    /// `http://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The `host:port` of every accepted CONNECT so far, oldest first.
    pub fn connects(&self) -> Vec<String> {
        self.asked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The number of requests so far that did not have the required authorization.
    pub fn refusals(&self) -> usize {
        self.refused.load(Ordering::SeqCst)
    }
}

impl Drop for ConnectProxy {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        // Wakes the thread that waits for a client.
        let woken = TcpStream::connect(self.address);
        if let (Ok(_), Some(thread)) = (woken, self.thread.take()) {
            let _ = thread.join();
        }
    }
}

fn serve(
    client: TcpStream,
    server: Option<SocketAddr>,
    authorization: Option<&str>,
    asked: &Mutex<Vec<String>>,
    refused: &AtomicUsize,
) -> io::Result<()> {
    client.set_read_timeout(Some(IDLE))?;
    let mut reader = BufReader::new(client.try_clone()?);
    let mut request = String::new();
    reader.read_line(&mut request)?;
    let mut said = None;
    let mut line = String::new();
    while reader.read_line(&mut line)? > 2 {
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("proxy-authorization")
        {
            said = Some(value.trim().to_owned());
        }
        line.clear();
    }
    let mut client = client;
    let mut words = request.split_whitespace();
    let (Some("CONNECT"), Some(target)) = (words.next(), words.next()) else {
        return client.write_all(b"HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\n\r\n");
    };
    if authorization.is_some() && authorization != said.as_deref() {
        refused.fetch_add(1, Ordering::SeqCst);
        let refusal = b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n";
        return client.write_all(refusal);
    }
    asked
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(target.to_owned());
    let server = match server {
        Some(server) => TcpStream::connect(server),
        None => TcpStream::connect(target),
    };
    let Ok(server) = server else {
        return client.write_all(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n");
    };
    client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")?;
    client.set_read_timeout(None)?;
    let (from_server, to_client) = (server.try_clone()?, client.try_clone()?);
    std::thread::spawn(move || pipe(from_server, to_client));
    // The reader forwards the data, because it might have read ahead.
    pipe(reader, server);
    Ok(())
}

fn pipe(mut from: impl io::Read, mut to: TcpStream) {
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Both);
}
