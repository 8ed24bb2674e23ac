//! The connections of the proxy, each of which has one thread for each direction.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::{Fault, Shared};

/// The size of the header of each command and each answer: tag, size and code.
const HEADER: usize = 10;

/// The size limit of a message. The buffer of a TPM is at most a few kibibytes long.
const LARGEST: usize = 64 * 1024;

pub(super) fn accept(listener: &TcpListener, tpm: SocketAddr, data: bool, shared: &Arc<Shared>) {
    for client in listener.incoming().flatten() {
        if shared.lock().stopped {
            return;
        }
        let shared = shared.clone();
        thread::spawn(move || {
            // The client detects only that the connection ended, but not the reason.
            serve(client, tpm, data, &shared).ok();
        });
    }
}

fn serve(client: TcpStream, tpm: SocketAddr, data: bool, shared: &Shared) -> io::Result<()> {
    let tpm = TcpStream::connect(tpm)?;
    for stream in [&client, &tpm] {
        stream.set_nodelay(true)?;
    }
    let number = {
        let mut state = shared.lock();
        if state.stopped {
            return Ok(());
        }
        state.next += 1;
        let number = state.next;
        let both = [client.try_clone()?, tpm.try_clone()?];
        state.connections.insert(number, both);
        number
    };
    let served = match data {
        true => converse(&client, &tpm, shared),
        false => pass(&client, &tpm),
    };
    shared.lock().connections.remove(&number);
    for stream in [client, tpm] {
        stream.shutdown(Shutdown::Both).ok();
    }
    served
}

/// Forwards the data of the control channel, which does not consist of commands.
fn pass(client: &TcpStream, tpm: &TcpStream) -> io::Result<()> {
    let (mut from_tpm, mut to_client) = (tpm.try_clone()?, client.try_clone()?);
    thread::spawn(move || {
        io::copy(&mut from_tpm, &mut to_client).ok();
        to_client.shutdown(Shutdown::Both).ok();
    });
    io::copy(&mut &*client, &mut &*tpm).map(drop)
}

/// Forwards commands and responses, until a fault or one of the two sides ends the connection.
fn converse(mut client: &TcpStream, mut tpm: &TcpStream, shared: &Shared) -> io::Result<()> {
    loop {
        let request = message(client)?;
        let (number, fault) = shared.arrived(&request);
        match fault {
            None => {}
            Some(Fault::Slow(late)) => shared.pause(late),
            Some(Fault::Hang) => {
                // During this time, other clients can use the TPM.
                tpm.shutdown(Shutdown::Both)?;
                shared.pause(Duration::MAX);
                return Ok(());
            }
            Some(Fault::Cut) => return Ok(()),
            Some(Fault::Answer(code)) => {
                let response = response(code, &[]);
                shared.answered(number, &request, &response);
                client.write_all(&response)?;
                continue;
            }
            Some(Fault::Respond(parameters)) => {
                let response = response(0, parameters);
                shared.answered(number, &request, &response);
                client.write_all(&response)?;
                continue;
            }
        }
        tpm.write_all(&request)?;
        let response = message(tpm)?;
        shared.answered(number, &request, &response);
        client.write_all(&response)?;
    }
}

/// The response to a command without sessions.
fn response(code: u32, parameters: &[u8]) -> Vec<u8> {
    let size = u32::try_from(HEADER + parameters.len()).expect("a short response");
    // TPM_ST_NO_SESSIONS.
    let tag = 0x8001_u16.to_be_bytes();
    [
        &tag[..],
        &size.to_be_bytes(),
        &code.to_be_bytes(),
        parameters,
    ]
    .concat()
}

/// One command or one answer, with its header.
fn message(mut from: &TcpStream) -> io::Result<Vec<u8>> {
    let mut message = vec![0; HEADER];
    from.read_exact(&mut message)?;
    let size = u32::from_be_bytes([message[2], message[3], message[4], message[5]]);
    let size = usize::try_from(size).map_err(io::Error::other)?;
    if !(HEADER..=LARGEST).contains(&size) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    message.resize(size, 0);
    from.read_exact(&mut message[HEADER..])?;
    Ok(message)
}
