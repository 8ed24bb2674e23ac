//! A simple test client for the server.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kubelet_authenticator_test_support::api_server::{ApiServer, TOKEN};
use kubelet_authenticator_test_support::pki::{KeyAndCertificate, Subject, certificate_request};
use reqwest::blocking::{Client, ClientBuilder, RequestBuilder, Response};
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};

/// A deadline that is longer than any wait in a test.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// The path of certificate requests.
pub const CSRS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

/// The name of a signer of this project.
pub const SIGNER: &str = "cluster.x-k8s.io/kube-apiserver-client-kubelet-null";

/// A client that uses one authentication method.
pub struct Caller {
    client: Client,
    url: String,
    token: Option<String>,
}

impl Caller {
    /// A client that uses the bootstrap token.
    pub fn bootstrap(server: &ApiServer) -> Self {
        Self::with_token(server, TOKEN)
    }

    /// A client that uses a token.
    pub fn with_token(server: &ApiServer, token: &str) -> Self {
        Self {
            client: build(server, None),
            url: server.url(),
            token: Some(token.into()),
        }
    }

    /// A client that uses a client certificate.
    pub fn with_certificate(server: &ApiServer, pair: &KeyAndCertificate) -> Self {
        Self {
            client: build(server, Some(pair)),
            url: server.url(),
            token: None,
        }
    }

    /// A client with an administrator's certificate.
    pub fn admin(server: &ApiServer) -> Self {
        Self::with_certificate(server, &server.admin_certificate())
    }

    /// A client with a node's certificate.
    pub fn node(server: &ApiServer, name: &str) -> Self {
        Self::with_certificate(server, &server.client_certificate(Subject::node(name)))
    }

    /// A client without credentials.
    pub fn anonymous(server: &ApiServer) -> Self {
        Self {
            client: build(server, None),
            url: server.url(),
            token: None,
        }
    }

    pub fn get(&self, path: &str) -> Response {
        self.send(self.client.get(format!("{}{path}", self.url)))
    }

    pub fn post(&self, path: &str, body: &Value) -> Response {
        self.send(self.client.post(format!("{}{path}", self.url)).json(body))
    }

    pub fn put(&self, path: &str, body: &Value) -> Response {
        self.send(self.client.put(format!("{}{path}", self.url)).json(body))
    }

    pub fn patch(&self, path: &str, kind: &str, body: &Value) -> Response {
        let request = self.client.patch(format!("{}{path}", self.url));
        let request = request.header("content-type", format!("application/{kind}-patch+json"));
        self.send(request.body(body.to_string()))
    }

    pub fn delete(&self, path: &str, body: &Value) -> Response {
        self.send(self.client.delete(format!("{}{path}", self.url)).json(body))
    }

    fn send(&self, request: RequestBuilder) -> Response {
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
        .send()
        .unwrap()
    }
}

fn build(server: &ApiServer, identity: Option<&KeyAndCertificate>) -> Client {
    let mut roots = RootCertStore::empty();
    roots.add(server.authority().certificate_der()).unwrap();
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let config = ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match identity {
        Some(pair) => {
            // Unlike the resolver in the usual API, this resolver also presents certificates that rustls cannot parse.
            let key = any_supported_type(&pair.key_der()).unwrap();
            let shown = CertifiedKey::new(vec![pair.certificate_der()], key);
            config.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(shown)))
        }
        None => config.with_no_client_auth(),
    };
    ClientBuilder::new()
        .tls_backend_preconfigured(config)
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .timeout(DEADLINE)
        .build()
        .unwrap()
}

/// The body of a valid request.
pub fn csr(name: &str, node: &str) -> Value {
    let (pem, _) = certificate_request(&Subject::node(node), Some("test:///machine-1"));
    csr_of(name, pem.as_bytes())
}

/// The body of a request that contains these bytes.
pub fn csr_of(name: &str, request: &[u8]) -> Value {
    json!({
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name},
        "spec": {
            "request": STANDARD.encode(request),
            "signerName": SIGNER,
            "usages": ["digital signature", "client auth"],
            "expirationSeconds": 3600,
        },
    })
}

/// The status code and the JSON body.
pub fn read(response: Response) -> (u16, Value) {
    (response.status().as_u16(), response.json().unwrap())
}

pub fn message(response: Response) -> String {
    read(response).1["message"].as_str().unwrap().to_owned()
}
