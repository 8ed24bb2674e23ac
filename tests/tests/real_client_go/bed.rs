//! A server with its kubeconfig, and the two clients.

use std::fs;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kubelet_authenticator::clock::Deadline;
use kubelet_authenticator::testing::{ApiClient, Kubeconfig};
use kubelet_authenticator_test_support::binaries::control_plane_binary;
use kubelet_authenticator_test_support::pki::{CertificateAuthority, Contents};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use tempfile::TempDir;

pub const TOKEN: &str = "abcdef.0123456789abcdef";

/// The names of the server in a [`Bed`].
pub const NAMES: [&str; 4] = ["127.0.0.1", "localhost", "api.test", "my_api.test"];

/// The result of the comparison between the plugin and client-go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Either both programs accept the input, or both reject it.
    Same,
    /// Only client-go accepts the input.
    Stricter,
    /// Only the plugin accepts the input.
    Looser,
}

/// A form of input, and the expected result of the comparison.
pub struct Form {
    pub name: &'static str,
    pub expected: Verdict,
    /// A part of the plugin's error message.
    pub says: &'static str,
    kubeconfig: PathBuf,
    environment: Vec<(&'static str, String)>,
    /// The values that must exist until both programs have ended.
    _alive: Vec<Alive>,
}

#[expect(dead_code, reason = "it only has to live")]
pub enum Alive {
    Folder(Arc<TempDir>),
    Server(Arc<Server>),
    Process(Mutex<Child>),
}

impl Drop for Alive {
    fn drop(&mut self) {
        if let Self::Process(child) = self {
            let child = child.get_mut().unwrap();
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Form {
    pub fn new(name: &'static str, bed: &Bed, kubeconfig: impl AsRef<[u8]>) -> Self {
        let folder = bed.folder.clone();
        let path = folder
            .path()
            .join(format!("{}.kubeconfig", name.replace(['/', ' '], "-")));
        fs::write(&path, kubeconfig).unwrap();
        Self {
            name,
            expected: Verdict::Same,
            says: "",
            kubeconfig: path,
            environment: Vec::new(),
            _alive: vec![Alive::Folder(folder), Alive::Server(bed.server.clone())],
        }
    }

    pub fn stricter(self, says: &'static str) -> Self {
        Self {
            expected: Verdict::Stricter,
            says,
            ..self
        }
    }

    pub fn looser(self) -> Self {
        Self {
            expected: Verdict::Looser,
            ..self
        }
    }

    pub fn with(mut self, variable: &'static str, value: impl Into<String>) -> Self {
        self.environment.push((variable, value.into()));
        self
    }

    pub fn keeping(mut self, alive: Alive) -> Self {
        self._alive.push(alive);
        self
    }

    /// Whether client-go can connect to the server.
    pub fn kubectl(&self) -> Result<(), String> {
        let home = tempfile::tempdir().unwrap();
        let mut kubectl = Command::new(control_plane_binary("kubectl"));
        kubectl
            .env_clear()
            .env("HOME", home.path())
            .arg("--kubeconfig")
            .arg(&self.kubeconfig);
        for (variable, value) in &self.environment {
            kubectl.env(variable, value);
        }
        kubectl
            .args(["get", "--raw", "/version"])
            .stdin(Stdio::null());
        let output = kubectl.output().unwrap();
        if output.status.success() {
            return Ok(());
        }
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }

    /// Whether the plugin can connect to the server.
    pub fn plugin(&self) -> Result<(), String> {
        let error = |error: &dyn std::error::Error| kubelet_attestation::errors::error_chain(error);
        let read = Kubeconfig::read(&self.kubeconfig).map_err(|why| error(&why))?;
        let environment = |name: &str| {
            let mut variables = self.environment.iter();
            Some(
                variables
                    .find(|(variable, _)| *variable == name)?
                    .1
                    .clone()
                    .into(),
            )
        };
        let client = ApiClient::connect(&read.endpoint, &read.login, &environment);
        let client = client.map_err(|why| error(&why))?;
        match client.get("none", Deadline::after(Duration::from_secs(2))) {
            Ok(_) => Ok(()),
            Err(why) => Err(error(&why)),
        }
    }
}

/// A server with a normal certificate, and a directory for kubeconfigs.
pub struct Bed {
    pub authority: CertificateAuthority,
    pub server: Arc<Server>,
    pub folder: Arc<TempDir>,
}

impl Bed {
    pub fn start() -> Self {
        let authority = CertificateAuthority::new("kubernetes");
        let pair = authority.issue(&Contents::server(&NAMES));
        let server = Server::start(&pair.certificate_pem, &pair.key_pem);
        Self {
            authority,
            server: Arc::new(server),
            folder: Arc::new(tempfile::tempdir().unwrap()),
        }
    }

    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.server.port)
    }

    /// The base64 of the CA certificate.
    pub fn ca(&self) -> String {
        STANDARD.encode(self.authority.certificate_pem())
    }

    /// The usual kubeconfig.
    pub fn kubeconfig(&self) -> String {
        kubeconfig(&self.url(), &self.ca())
    }
}

/// A kubeconfig with this server and this base64.
pub fn kubeconfig(server: &str, ca: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters:\n- name: c\n  cluster:\n    \
         server: {server}\n    certificate-authority-data: {ca}\ncontexts:\n- name: c\n  \
         context: {{cluster: c, user: u}}\nusers:\n- name: u\n  user: {{token: {TOKEN}}}\n"
    )
}

/// A TLS server that responds as an API server without objects does.
pub struct Server {
    pub port: u16,
}

/// A resolver for any certificate, including certificates that no server should have.
#[derive(Debug)]
struct Anything(Arc<CertifiedKey>);

impl ResolvesServerCert for Anything {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }
}

impl Server {
    /// Starts a server with this chain and key (PEM). The server stops with the process.
    pub fn start(chain_pem: &str, key_pem: &str) -> Self {
        let chain: Result<Vec<_>, _> =
            CertificateDer::pem_slice_iter(chain_pem.as_bytes()).collect();
        let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes()).unwrap();
        let key = aws_lc_rs::sign::any_supported_type(&key).unwrap();
        let certified = CertifiedKey::new(chain.unwrap(), key);
        let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(Anything(Arc::new(certified))));
        let config = Arc::new(config);
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            for tcp in listener.incoming().flatten() {
                let config = config.clone();
                thread::spawn(move || serve(tcp, config));
            }
        });
        Self { port }
    }
}

fn serve(tcp: TcpStream, config: Arc<ServerConfig>) {
    let _ = tcp.set_read_timeout(Some(Duration::from_secs(30)));
    let mut stream = StreamOwned::new(ServerConnection::new(config).unwrap(), tcp);
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            match stream.read(&mut byte) {
                Ok(1) => head.push(byte[0]),
                _ => return,
            }
        }
        let head = String::from_utf8_lossy(&head);
        let (status, body) = if head
            .split(' ')
            .nth(1)
            .is_some_and(|it| it.ends_with("/version"))
        {
            ("200 OK", "{}")
        } else {
            let body = r#"{"kind":"Status","apiVersion":"v1","code":404,"reason":"NotFound"}"#;
            ("404 Not Found", body)
        };
        let answer = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        if stream
            .write_all(answer.as_bytes())
            .and_then(|()| stream.flush())
            .is_err()
        {
            return;
        }
    }
}

/// Starts the OpenSSL server, for TLS features that rustls servers do not support. The server returns the contents of
/// files as responses. Returns its port.
pub fn openssl_server(
    folder: &TempDir,
    (certificate, key): (&str, &str),
    options: &[&str],
) -> (u16, Alive) {
    let path = |name: &str| folder.path().join(name);
    fs::write(path("server.crt"), certificate).unwrap();
    fs::write(path("server.key"), key).unwrap();
    let requests = path("apis/certificates.k8s.io/v1/certificatesigningrequests");
    fs::create_dir_all(&requests).unwrap();
    let status = r#"{"kind":"Status","apiVersion":"v1","code":404,"reason":"NotFound"}"#;
    for (file, head, body) in [
        (path("version"), "200 OK", "{}"),
        (requests.join("none"), "404 Not Found", status),
    ] {
        let answer = format!(
            "HTTP/1.1 {head}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
             connection: close\r\n\r\n{body}",
            body.len()
        );
        fs::write(file, answer).unwrap();
    }
    let mut openssl = Command::new("openssl");
    openssl
        .args(["s_server", "-accept", "127.0.0.1:0", "-HTTP"])
        .args(options);
    openssl
        .args(["-cert", "server.crt", "-key", "server.key"])
        .current_dir(folder.path());
    openssl
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = openssl.spawn().unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let mut lines = output.lines().map_while(Result::ok);
    let accepts = lines.find(|line| line.starts_with("ACCEPT")).unwrap();
    let port = accepts.rsplit(':').next().unwrap().trim().parse().unwrap();
    // If its output is not read, the server stops.
    thread::spawn(move || lines.for_each(drop));
    (port, Alive::Process(Mutex::new(child)))
}
