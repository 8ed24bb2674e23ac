use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::{Mutex, PoisonError};

/// The ports for fixtures. They are below the ports that the kernel assigns, so that outgoing connections do not use
/// them.
const PORTS: std::ops::Range<u16> = 20_000..30_000;

/// The names that this process has acquired. The process holds the names until it ends.
static DRAWN: Mutex<Vec<UnixListener>> = Mutex::new(Vec::new());

/// A TCP port on 127.0.0.1 that has no listener, and that no other fixture in any process gets while this process runs.
pub fn free_port() -> u16 {
    let length = u64::from(PORTS.end - PORTS.start);
    loop {
        let drawn = RandomState::new().hash_one(0) % length;
        let port = PORTS.start + u16::try_from(drawn).expect("less than the range's length");
        if draw(&format!("port-{port}")) && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}

/// Whether this process is the first to acquire `what`. If it is, no other fixture in any process can acquire it while
/// this process runs. A name in the abstract namespace of sockets belongs to one process, and is released when the
/// process ends.
pub(crate) fn draw(what: &str) -> bool {
    let name = format!("kubelet-authenticator-{what}");
    let address = SocketAddr::from_abstract_name(name).expect("the name is short enough");
    let Ok(held) = UnixListener::bind_addr(&address) else {
        return false;
    };
    let mut all = DRAWN.lock().unwrap_or_else(PoisonError::into_inner);
    all.push(held);
    true
}
