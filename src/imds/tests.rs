use std::io::{BufRead as _, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use super::*;
use crate::settings::Value as _;

/// A deadline that is longer than any wait in these tests.
const PATIENCE: Duration = Duration::from_secs(30);

/// A deadline for operations that take until their deadline. It is long enough to connect on a busy machine.
const A_WHILE: Duration = Duration::from_secs(2);

const OK: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\n";

/// A service that answers each request with `answer`, and records the heads of the requests.
struct Service {
    address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Service {
    fn start(answer: impl Fn(&str, &mut TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let heads = Arc::new(Mutex::new(Vec::new()));
        let (answer, asked) = (Arc::new(answer), Arc::clone(&heads));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (answer, asked) = (Arc::clone(&answer), Arc::clone(&asked));
                thread::spawn(move || {
                    let mut stream = stream.unwrap();
                    let lines = BufReader::new(stream.try_clone().unwrap()).lines();
                    let head: Vec<String> = lines
                        .map_while(Result::ok)
                        .take_while(|line| !line.is_empty())
                        .collect();
                    let head = head.join("\n").to_lowercase();
                    asked.lock().unwrap().push(head.clone());
                    answer(&head, &mut stream);
                });
            }
        });
        Self { address, heads }
    }

    /// A service that issues tokens, and responds to every read with `answer`.
    fn reading(answer: impl Fn(&mut TcpStream) + Send + Sync + 'static) -> Self {
        Self::start(move |head, stream| {
            if head.starts_with("put ") {
                write(stream, &format!("{OK}\r\nto-ken"));
            } else {
                answer(stream);
            }
        })
    }

    fn open(&self, deadline: Duration) -> Result<Imds, Failure> {
        let endpoint = MetadataEndpoint::read(&format!("http://{}", self.address)).unwrap();
        Imds::open(Some(endpoint), Deadline::after(deadline))
    }

    fn read(&self, deadline: Duration) -> Result<Text, Failure> {
        let deadline = Deadline::after(deadline);
        let imds = self.open(PATIENCE)?;
        imds.read("meta-data/instance-id", deadline)
    }

    fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

/// Writes the response. Ignores errors, because the client might have disconnected.
fn write(stream: &mut TcpStream, text: &str) {
    drop(stream.write_all(text.as_bytes()));
}

fn status(line: &'static str) -> Service {
    Service::reading(move |stream| {
        write(
            stream,
            &format!("HTTP/1.1 {line}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"),
        );
    })
}

#[test]
fn one_token_with_a_lifetime_of_a_minute_is_used_for_every_read() {
    let service = Service::reading(|stream| write(stream, &format!("{OK}\r\ni-1")));

    let imds = service.open(PATIENCE).unwrap();
    for path in ["meta-data/instance-id", "dynamic/x"] {
        let text = imds.read(path, Deadline::after(PATIENCE)).unwrap();
        assert_eq!(text.as_str(), "i-1");
    }

    let [token, first, second] = service.heads().try_into().unwrap();
    assert!(
        token.starts_with("put /latest/api/token http/1.1"),
        "{token}"
    );
    assert!(
        token.contains("x-aws-ec2-metadata-token-ttl-seconds: 60"),
        "{token}"
    );
    // The metadata service rejects requests that have this header, because the header indicates a proxy.
    assert!(!token.contains("x-forwarded-for"), "{token}");
    assert!(first.starts_with("get /latest/meta-data/instance-id http/1.1"));
    for read in [first, second] {
        assert!(read.contains("x-aws-ec2-metadata-token: to-ken"), "{read}");
    }
    assert!(imds.is_usable());
}

#[test]
fn a_permanent_metadata_error_is_not_retried() {
    for (line, words) in [
        ("401 Unauthorized", "does not accept its own token"),
        (
            "403 Forbidden",
            "refuses /latest/meta-data/instance-id (403)",
        ),
        (
            "404 Not Found",
            "has no /latest/meta-data/instance-id (404)",
        ),
        ("302 Found\r\nlocation: http://127.0.0.1:1/", "status 302"),
        ("400 Bad Request", "status 400"),
    ] {
        let service = status(line);
        let error = service.read(PATIENCE).unwrap_err();

        assert!(error.to_string().contains(words), "{error}");
        assert!(!error.remedy().is_empty());
        assert_eq!(service.heads().len(), 2, "{line}");
    }
}

#[test]
fn an_unavailable_metadata_service_is_retried() {
    let asked = Mutex::new(0);
    let service = Service::reading(move |stream| {
        let mut asked = asked.lock().unwrap();
        *asked += 1;
        if *asked < 3 {
            write(stream, "HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n");
        } else {
            write(stream, &format!("{OK}\r\ni-1"));
        }
    });

    assert_eq!(service.read(PATIENCE).unwrap().as_str(), "i-1");
    assert_eq!(service.heads().len(), 4);
}

#[test]
fn an_endless_metadata_response_is_not_read() {
    let service = Service::reading(|stream| {
        write(stream, &format!("{OK}\r\n"));
        let piece = vec![b'x'; 64 * 1024];
        while stream.write_all(&piece).is_ok() {}
    });

    let error = service.read(PATIENCE).unwrap_err();

    assert!(error.what().contains("more than 65536 bytes"), "{error}");
}

#[test]
fn a_slow_metadata_response_does_not_extend_the_deadline() {
    let service = Service::reading(|stream| {
        write(stream, &format!("{OK}\r\n"));
        // Each byte arrives long before the deadline. This test uses real time, because the client is blocking.
        while stream.write_all(b"x").is_ok() {
            thread::sleep(Duration::from_millis(50));
        }
    });
    let started = std::time::Instant::now();

    let error = service.read(A_WHILE).unwrap_err();

    assert!(
        error
            .what()
            .contains("did not respond to the request for /latest/"),
        "{error}"
    );
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[test]
fn the_error_for_a_missing_token_response_suggests_the_hop_limit() {
    let service = Service::start(|_, stream| {
        // Reads until the client disconnects.
        let mut rest = String::new();
        drop(BufReader::new(stream).read_line(&mut rest));
    });

    let error = service.open(A_WHILE).unwrap_err();

    assert!(error.to_string().contains("hop limit"), "{error}");
    assert!(error.remedy().contains("HttpPutResponseHopLimit"));
}

#[test]
fn an_unreachable_metadata_service_is_reported_with_its_address() {
    let address = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let endpoint = MetadataEndpoint::read(&format!("http://{address}")).unwrap();

    let error = Imds::open(Some(endpoint), Deadline::after(A_WHILE));

    let error = error.unwrap_err();
    let words = format!("cannot reach the instance metadata service: http://{address}: ");
    assert!(error.to_string().starts_with(&words), "{error}");
}

#[test]
fn the_second_address_is_used_if_the_first_is_unreachable() {
    let nobody = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let service = Service::reading(|_| {});
    let endpoints = [nobody, service.address].map(|address| format!("http://{address}"));
    let client = Client::new().unwrap();

    let (endpoint, token) = first_token(&client, &endpoints, Deadline::after(PATIENCE)).unwrap();

    assert_eq!(endpoint, endpoints[1]);
    assert_eq!(token.expose(), "to-ken");
}

#[test]
fn an_invalid_token_response_is_refused_with_the_reason() {
    for (answer, words) in [
        (
            "SSH-2.0-OpenSSH_9.9\r\n",
            "did not complete its HTTP response",
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 90\r\n\r\nto-k",
            "complete its HTTP response",
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            "did not return a valid IMDSv2 token",
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n<html>a</b>",
            "",
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\na b",
            "did not return a valid IMDSv2 token",
        ),
    ] {
        let service = Service::start(move |_, stream| write(stream, answer));
        let result = service.open(A_WHILE);

        match result {
            Err(error) => assert!(error.to_string().contains(words), "{answer:?}: {error}"),
            Ok(_) => assert_eq!(words, "", "{answer:?}"),
        }
    }
}

#[test]
fn metadata_tokens_and_responses_are_not_shown() {
    let service = Service::reading(|stream| {
        drop(stream.write_all(format!("{OK}\r\nsecret").as_bytes()));
        drop(stream.write_all(b"\xff"));
    });
    let imds = service.open(PATIENCE).unwrap();

    let error = imds.read("x", Deadline::after(PATIENCE)).unwrap_err();

    assert!(
        error.what().ends_with("with data that is not text"),
        "{error}"
    );
    let shown = format!("{imds:?} {error:?} {error}");
    assert!(
        !shown.contains("to-ken") && !shown.contains("secret"),
        "{shown}"
    );
}
