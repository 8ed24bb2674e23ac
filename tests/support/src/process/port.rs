use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};

/// Below what the kernel gives to those who ask for any port, so that no connection takes one.
const PORTS: std::ops::Range<u16> = 20_000..30_000;

/// A TCP port of 127.0.0.1 that nothing listened on a moment ago.
///
/// Another fixture may draw the same before its user listens; who cannot live with one chance in
/// thousands draws again.
pub fn free_port() -> u16 {
    let length = u64::from(PORTS.end - PORTS.start);
    loop {
        let drawn = RandomState::new().hash_one(0) % length;
        let port = PORTS.start + u16::try_from(drawn).expect("less than the range's length");
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}
