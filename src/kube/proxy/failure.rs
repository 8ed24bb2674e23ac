//! Failures of a proxy. The errors of the HTTP library contain neither the proxy's name nor its status.

use std::error::Error;
use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::net::TcpStream;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::Url;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use rustls_pki_types::ServerName;
use zeroize::Zeroizing;

use super::ProxyServer;
use crate::failure::causes;

/// The maximum length of a status line.
const MAX_LINE_LEN: u64 = 1024;

/// The step at which a connection through a proxy failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::kube) enum Failed {
    /// The proxy could not be reached.
    ToReach,
    /// The proxy did not connect to the server, for this reason.
    ToConnect(String),
}

impl Failed {
    /// Returns the failed step; `None` if the proxy did not cause the error.
    ///
    /// The types of these errors are private in the HTTP library, so this function compares their texts. A test covers
    /// each text.
    pub(in crate::kube) fn of(error: &(dyn Error + 'static)) -> Option<Self> {
        const UNDERLYING: &str = "failed to create underlying connection";
        causes(error).find_map(|cause| {
            let text = cause.to_string();
            let why = text
                .strip_prefix("tunnel error: ")
                .or_else(|| text.strip_prefix("SOCKS error: "))?;
            Some(match why {
                UNDERLYING => Self::ToReach,
                why => Self::ToConnect(why.to_owned()),
            })
        })
    }
}

/// Returns the status with which the proxy answers a request to connect to the server. This function sends another
/// CONNECT request, because the HTTP library does not return the status. `None` for a SOCKS proxy, or if the proxy does
/// not respond in time.
pub(in crate::kube) fn connect_status(
    proxy: &ProxyServer,
    server: &Url,
    tls: &Arc<ClientConfig>,
    timeout: Duration,
) -> Option<u16> {
    if proxy.is_socks {
        return None;
    }
    let url = proxy.url()?;
    let target = format!("{}:{}", server.host_str()?, server.port_or_known_default()?);
    let tls = Arc::clone(tls);
    let (sender, receiver) = mpsc::channel();
    // The lookup of a host name has no deadline, so it runs on a separate thread.
    thread::spawn(move || sender.send(ask(&url, &target, tls, timeout)));
    receiver.recv_timeout(timeout).ok()?.ok()?
}

fn ask(
    proxy: &Url,
    target: &str,
    tls: Arc<ClientConfig>,
    timeout: Duration,
) -> io::Result<Option<u16>> {
    let host = proxy.host_str().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let port = proxy.port_or_known_default().unwrap_or_default();
    let addresses = kubelet_attestation_resolver::addresses_as_in_go(host)?;
    let connected = addresses.into_iter().find_map(|mut address| {
        address.set_port(port);
        TcpStream::connect_timeout(&address, timeout).ok()
    });
    let mut tcp = connected.ok_or(io::ErrorKind::NotConnected)?;
    tcp.set_read_timeout(Some(timeout))?;
    tcp.set_write_timeout(Some(timeout))?;
    let request = request(proxy, target);
    if proxy.scheme() == "http" {
        tcp.write_all(request.as_bytes())?;
        return status(tcp);
    }
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let connection = ClientConnection::new(tls, name).map_err(io::Error::other)?;
    let mut stream = StreamOwned::new(connection, tcp);
    stream.write_all(request.as_bytes())?;
    status(stream)
}

/// The CONNECT request.
fn request(proxy: &Url, target: &str) -> Zeroizing<String> {
    // The only available decoder for percent-encoding is the decoder for queries, which decodes "+" to a space.
    let decode = |text: &str| {
        let mut url = proxy.clone();
        url.set_query(Some(&format!("a={}", text.replace('+', "%2B"))));
        let decoded = url.query_pairs().next();
        Zeroizing::new(
            decoded
                .map(|(_, value)| value.into_owned())
                .unwrap_or_default(),
        )
    };
    let mut lines = Zeroizing::new(format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n"));
    if !proxy.username().is_empty() || proxy.password().is_some() {
        let user = decode(proxy.username());
        let password = decode(proxy.password().unwrap_or_default());
        let pair = Zeroizing::new(format!("{}:{}", *user, *password));
        let encoded = Zeroizing::new(STANDARD.encode(pair.as_bytes()));
        for part in ["Proxy-Authorization: Basic ", encoded.as_str(), "\r\n"] {
            lines.push_str(part);
        }
    }
    lines.push_str("\r\n");
    lines
}

/// Reads the status in the first line of the answer.
fn status(answer: impl Read) -> io::Result<Option<u16>> {
    let mut line = String::new();
    BufReader::new(answer.take(MAX_LINE_LEN)).read_line(&mut line)?;
    let mut words = line.split_ascii_whitespace();
    let is_http = words.next().is_some_and(|word| word.starts_with("HTTP/"));
    Ok(words
        .next()
        .filter(|_| is_http)
        .and_then(|code| code.parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_status_is_read_only_from_http() {
        for (answer, expected) in [
            ("HTTP/1.1 403 Forbidden\r\n\r\n", Some(403)),
            ("HTTP/1.0 407\r\n", Some(407)),
            ("SSH-2.0 200\r\n", None),
            ("", None),
        ] {
            assert_eq!(status(answer.as_bytes()).unwrap(), expected, "{answer}");
        }
    }

    #[test]
    fn the_proxy_user_and_password_are_sent_percent_decoded() {
        let proxy = Url::parse("http://us%40er:p%2B+w@proxy").unwrap();

        let request = request(&proxy, "api:6443");
        let credential = STANDARD.encode("us@er:p++w");
        let expected = format!(
            "CONNECT api:6443 HTTP/1.1\r\nHost: api:6443\r\n\
             Proxy-Authorization: Basic {credential}\r\n\r\n"
        );
        assert_eq!(*request, expected);
    }
}
