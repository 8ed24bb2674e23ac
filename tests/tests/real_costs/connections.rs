//! The TCP connections of a process, as the kernel lists them.

use std::collections::BTreeSet;
use std::fs;

/// The state of an open connection (`include/net/tcp_states.h`).
const ESTABLISHED: &str = "01";

/// The number of connections of the process to this port.
pub fn connections(pid: u32, port: u16) -> usize {
    let own: BTreeSet<String> = fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .filter_map(|file| fs::read_link(file.ok()?.path()).ok())
        .filter_map(|link| {
            let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
            Some(inode.to_owned())
        })
        .collect();
    let table = fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap();
    let remote_port = format!(":{port:04X}");
    let is_one = |line: &&str| {
        // The first fields are the number, the local address, the remote address, and the state. The tenth field is the
        // inode.
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields[2].ends_with(&remote_port) && fields[3] == ESTABLISHED && own.contains(fields[9])
    };
    table.lines().skip(1).filter(is_one).count()
}
