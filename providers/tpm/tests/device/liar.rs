//! Tests with a TPM that returns incorrect register values, as if the boot continued between the quote and the read.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;

use kubelet_authenticator_test_support::process::free_port;
use kubelet_authenticator_test_support::swtpm::Swtpm;
use kubelet_authenticator_test_support::tpm_proxy::command;

/// The length of the header of each command and each answer. The header consists of a tag, a length and a code.
const HEADER: usize = 10;

/// Returns the libtss2 address of a TPM whose first `lies` reads of the registers return incorrect values.
pub(crate) fn liar(tpm: &Swtpm, lies: usize) -> String {
    let (port, listeners) = loop {
        let port = free_port();
        let listen = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok();
        if let (Some(data), Some(control)) = (listen(port), listen(port + 1)) {
            break (port, [data, control]);
        }
    };
    let data = tpm.address();
    let control = SocketAddr::new(data.ip(), data.port() + 1);
    let [data_listener, control_listener] = listeners;
    thread::spawn(move || {
        for stream in control_listener.incoming() {
            let (client, tpm) = (stream.unwrap(), TcpStream::connect(control).unwrap());
            let back = (tpm.try_clone().unwrap(), client.try_clone().unwrap());
            for (mut from, mut to) in [(client, tpm), back] {
                thread::spawn(move || {
                    drop(io::copy(&mut from, &mut to));
                    // The TPM serves only one connection at a time.
                    drop(from.shutdown(Shutdown::Both));
                    drop(to.shutdown(Shutdown::Both));
                });
            }
        }
    });
    thread::spawn(move || {
        let mut lies = lies;
        for stream in data_listener.incoming() {
            // The connection ends when either the client or the TPM closes it.
            drop(serve(stream.unwrap(), data, &mut lies));
        }
    });
    format!("swtpm:host=127.0.0.1,port={port}")
}

fn serve(mut client: TcpStream, tpm: SocketAddr, lies: &mut usize) -> io::Result<()> {
    let mut tpm = TcpStream::connect(tpm)?;
    loop {
        let asked = message(&mut client)?;
        tpm.write_all(&asked)?;
        let mut answer = message(&mut tpm)?;
        if asked.get(6..HEADER) == Some(&command::PCR_READ.to_be_bytes()) && *lies > 0 {
            *lies -= 1;
            *answer.last_mut().unwrap() ^= 1;
        }
        client.write_all(&answer)?;
    }
}

fn message(from: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut message = vec![0; HEADER];
    from.read_exact(&mut message)?;
    let length: [u8; 4] = message[2..6].try_into().unwrap();
    message.resize(u32::from_be_bytes(length).try_into().unwrap(), 0);
    from.read_exact(&mut message[HEADER..])?;
    Ok(message)
}
