//! A single request to moto, on a separate connection.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The deadline for moto's response, which takes milliseconds.
const DEADLINE: Duration = Duration::from_secs(180);

/// The header with the type of a body.
pub(super) const CONTENT_TYPE: &str = "content-type";

/// A response from moto.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: String,
}

/// Posts a body, and waits for the response. The body is a form, unless a header names a different type.
pub(super) fn post(
    server: SocketAddr,
    headers: &[(&str, &str)],
    body: &[u8],
) -> io::Result<Answer> {
    let mut stream = TcpStream::connect_timeout(&server, DEADLINE)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    // The request uses HTTP/1.0, so the response has no chunks and ends with the connection.
    let mut head = format!("POST / HTTP/1.0\r\nhost: {server}\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if !headers.iter().any(|(name, _)| *name == CONTENT_TYPE) {
        head.push_str(&format!(
            "{CONTENT_TYPE}: application/x-www-form-urlencoded\r\n"
        ));
    }
    head.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
    stream.write_all(&[head.as_bytes(), body].concat())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .ok_or(io::ErrorKind::UnexpectedEof)?;
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    Ok(Answer {
        status: status.ok_or(io::ErrorKind::InvalidData)?,
        body: body.to_owned(),
    })
}
