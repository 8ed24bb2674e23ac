//! The client of the API server.

use std::sync::Arc;
use std::time::Duration;

use kubelet_attestation::ensure;
use kubelet_attestation::errors::error_chain;
use kubelet_attestation::names::NodeName;
use reqwest::blocking::ClientBuilder;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{AUTHORIZATION, HOST, HeaderMap, HeaderValue};
use reqwest::{Method, Proxy, StatusCode, Url};
use serde_json::json;
use zeroize::Zeroizing;

use super::error::ApiError;
use super::kubeconfig::{ClusterEndpoint, Identity, Login, Refused, identity};
use super::proxy::{self, Environment};
use super::tls;
use super::transport::{Question, Stream, Transport, failure};
use super::types::{CsrObject, NewCsr, WireList};
use super::watch::Watch;
use crate::clock::Deadline;
use crate::failure::Code;
use crate::http;

/// Less than the shortest deadline (5 s, while a credential is valid). So a name with two addresses
/// reaches the second: each address gets a share of the time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);

/// The path of the requests.
const REQUESTS: &str = "apis/certificates.k8s.io/v1/certificatesigningrequests";

/// The path of the Leases that kubelets renew.
const NODE_LEASES: &str = "apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

/// The path of the server's version, which needs no login as a rule.
const VERSION: &str = "version";

const USER_AGENT: &str = concat!("kubelet-authenticator/", env!("CARGO_PKG_VERSION"));

/// A client for one API server and one login.
///
/// # Guarantees
///
/// - Nothing takes longer than its deadline, whatever the server, the resolver or a proxy does.
/// - No answer, and no line of a watch, of more than 1 MiB is accepted. No redirect is followed.
/// - Only certificates of the cluster's own CA are trusted.
#[derive(Debug)]
pub struct ApiClient {
    pub(super) transport: Transport,
    requests: Url,
    leases: Url,
    version: Url,
}

impl ApiClient {
    /// Builds the client. Sends nothing yet.
    ///
    /// If the endpoint names no proxy, the environment's `HTTPS_PROXY` and `NO_PROXY` apply, as in
    /// client-go.
    pub fn connect(
        endpoint: &ClusterEndpoint,
        login: &Login,
        environment: Environment<'_>,
    ) -> Result<Self, ApiError> {
        Self::build(endpoint, Some(login), environment)
    }

    /// Like [`connect`](Self::connect), without a login.
    pub(crate) fn anonymous(
        endpoint: &ClusterEndpoint,
        environment: Environment<'_>,
    ) -> Result<Self, ApiError> {
        Self::build(endpoint, None, environment)
    }

    fn build(
        endpoint: &ClusterEndpoint,
        login: Option<&Login>,
        environment: Environment<'_>,
    ) -> Result<Self, ApiError> {
        let server = endpoint.server();
        let unusable = |(field, why): (&str, Refused)| {
            let what = format!("cannot talk to {server}: {field}: {why}");
            ApiError::other(Code::Configuration, what, "correct the kubeconfig")
        };
        let (identity, headers) = present(login).map_err(unusable)?;
        let roots = tls::roots(endpoint.ca())
            .ok_or_else(|| unusable(("certificate-authority-data", Refused::NotCertificates)))?;
        let (builder, base) = route(endpoint, environment).map_err(unusable)?;
        let name = base.host_str().unwrap_or_default().to_owned();
        let builder = builder
            .default_headers(headers)
            .user_agent(USER_AGENT)
            .https_only(true);
        let client = http::client(builder, roots, identity, CONNECT_TIMEOUT).map_err(|error| {
            let why = error_chain(&*error);
            let what = format!("cannot start the client for {server}: {why}");
            ApiError::other(Code::Internal, what, "report this as a bug")
        })?;
        Ok(Self {
            transport: Transport::new(client, server.to_owned(), name),
            requests: beneath(base.clone(), REQUESTS.split('/')),
            leases: beneath(base.clone(), NODE_LEASES.split('/')),
            version: beneath(base, [VERSION]),
        })
    }

    /// Creates a request, and returns it as the API server stored it. `None` if an object of this
    /// name exists. The caller has to compare that, with [`ApiClient::get`].
    pub fn create(
        &self,
        csr: NewCsr<'_>,
        deadline: Deadline,
    ) -> Result<Option<CsrObject>, ApiError> {
        let question = Question {
            method: Method::POST,
            url: self.requests.clone(),
            body: Some(csr.to_object().to_string().into_bytes()),
            what: "creating the request",
        };
        self.object_unless(&question, (StatusCode::CONFLICT, "AlreadyExists"), deadline)
    }

    /// Reads a request. `None` if it does not exist.
    pub fn get(&self, name: &str, deadline: Deadline) -> Result<Option<CsrObject>, ApiError> {
        let url = beneath(self.requests.clone(), [name]);
        let question = Question::read(url, "reading the request");
        self.object_unless(&question, (StatusCode::NOT_FOUND, "NotFound"), deadline)
    }

    /// The object in the answer. `None` for an error with this status and reason.
    fn object_unless(
        &self,
        question: &Question,
        (status, reason): (StatusCode, &str),
        deadline: Deadline,
    ) -> Result<Option<CsrObject>, ApiError> {
        let answer = self.transport.exchange(question, deadline)?;
        if answer.status.is_success() {
            self.object(&answer.body).map(Some)
        } else if answer.status == status && failure(&answer.body).reason == reason {
            Ok(None)
        } else {
            Err(self.transport.refusal(&answer))
        }
    }

    /// Tests the write that a kubelet makes every ten seconds. Applies the node's Lease without any
    /// field, as a dry run: authorization and admission treat it like any write, and nothing
    /// changes.
    ///
    /// Server-side apply, because the node may have no Lease yet: other patches of a missing object
    /// get a 404 before admission.
    pub fn try_lease(&self, node_name: &NodeName, deadline: Deadline) -> Result<(), ApiError> {
        let mut url = beneath(self.leases.clone(), [node_name.as_str()]);
        url.query_pairs_mut()
            .append_pair("dryRun", "All")
            .append_pair("fieldManager", "kubelet-authenticator");
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": node_name.as_str()},
        });
        let question = Question {
            method: Method::PATCH,
            url,
            body: Some(lease.to_string().into_bytes()),
            what: "trying the certificate",
        };
        let answer = self.transport.exchange(&question, deadline)?;
        ensure!(answer.status.is_success(), self.transport.refusal(&answer));
        Ok(())
    }

    /// Reaches the API server: it proves its identity, and the clocks agree. It may refuse to answer
    /// without a login.
    pub(crate) fn reach(&self, deadline: Deadline) -> Result<(), ApiError> {
        let question = Question::read(self.version.clone(), "asking for the version");
        let answer = self.transport.exchange(&question, deadline)?;
        ensure!(
            !answer.status.is_server_error(),
            self.transport.refusal(&answer)
        );
        Ok(())
    }

    /// Watches the request until it is decided or deleted, or the deadline passes. Returns it as
    /// last seen: still pending if the deadline passed, and `None` if it was deleted or another
    /// one has its name.
    ///
    /// A watch that ends, breaks or falls behind is started again. If the deadline passes before
    /// another watch is up, this returns the error of the last attempt.
    pub fn wait(&self, csr: &CsrObject, deadline: Deadline) -> Result<Option<CsrObject>, ApiError> {
        Watch::new(self, csr, deadline).run()
    }

    /// Opens a watch of the request with this name, from this resource version on.
    pub(super) fn watch(
        &self,
        name: &str,
        after: &str,
        deadline: Deadline,
    ) -> Result<Stream<'_>, ApiError> {
        let mut url = self.named(name);
        url.query_pairs_mut()
            .append_pair("watch", "true")
            .append_pair("resourceVersion", after)
            .append_pair(
                "timeoutSeconds",
                &(deadline.remaining().as_secs() + 1).to_string(),
            );
        let question = Question::read(url, "watching the request");
        self.transport.send(&question, deadline)
    }

    /// Reads the request of this name, if it exists, and the resource version of the list.
    pub(super) fn list(
        &self,
        name: &str,
        deadline: Deadline,
    ) -> Result<(Option<CsrObject>, String), ApiError> {
        let question = Question::read(self.named(name), "listing the request");
        let answer = self.transport.exchange(&question, deadline)?;
        if answer.status != StatusCode::OK {
            return Err(self.transport.refusal(&answer));
        }
        let list: WireList =
            serde_json::from_slice(&answer.body).map_err(|why| self.not_an_object(&why))?;
        let object = list.items.into_iter().next();
        Ok((object, list.metadata.resource_version))
    }

    fn named(&self, name: &str) -> Url {
        let mut url = self.requests.clone();
        url.query_pairs_mut()
            .append_pair("fieldSelector", &format!("metadata.name={name}"));
        url
    }

    /// Parses an object.
    pub(super) fn object(&self, json: &[u8]) -> Result<CsrObject, ApiError> {
        serde_json::from_slice(json).map_err(|why| self.not_an_object(&why))
    }

    pub(super) fn not_an_object(&self, why: &serde_json::Error) -> ApiError {
        let server = &self.transport.server;
        let what = format!("the answer of {server} is not the object that was asked for: {why}");
        ApiError::not_an_api_server(what)
    }
}

/// The TLS identity or the header of a login. An error names the invalid field.
fn present(
    login: Option<&Login>,
) -> Result<(Option<Identity>, HeaderMap), (&'static str, Refused)> {
    let mut headers = HeaderMap::new();
    match login {
        None => Ok((None, headers)),
        Some(Login::Token(token)) => {
            let bearer = Zeroizing::new(format!("Bearer {}", token.expose()));
            let mut value =
                HeaderValue::from_str(&bearer).map_err(|_| ("token", Refused::NotAToken))?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
            Ok((None, headers))
        }
        Some(Login::ClientCertificate { chain_pem, key_pem }) => {
            Ok((Some(identity(chain_pem, key_pem)?), headers))
        }
    }
}

/// The way to the server, and the base URL of requests. An error names the invalid field.
fn route(
    endpoint: &ClusterEndpoint,
    environment: Environment<'_>,
) -> Result<(ClientBuilder, Url), (&'static str, Refused)> {
    let server = endpoint.url();
    let inherited = match endpoint.proxy() {
        Some(_) => None,
        None => proxy::from_environment(server, environment),
    };
    let builder = ClientBuilder::new();
    let proxy = endpoint.proxy().or(inherited.as_ref());
    match (proxy, endpoint.tls_server_name()) {
        // A proxy resolves the URL's host itself, so the URL cannot have the certificate's name.
        (Some(_), Some(_)) => Err(("tls-server-name", Refused::ProxyWithServerName)),
        (Some(proxy), None) => {
            let proxy = Proxy::all(proxy.expose()).map_err(|_| ("proxy-url", Refused::NotAUrl))?;
            let builder = builder.dns_resolver(Arc::new(Resolver::default()));
            Ok((builder.proxy(proxy), server.clone()))
        }
        (None, None) => {
            let builder = builder.dns_resolver(Arc::new(Resolver::default()));
            Ok((builder.no_proxy(), server.clone()))
        }
        (None, Some(name)) => under_another_name(builder.no_proxy(), server, name)
            .ok_or(("tls-server-name", Refused::NotAServerName)),
    }
}

/// TLS verifies the host of the URL, so the URL gets the name in the certificate. The resolver leads
/// to the real host, and the `Host` header has its name.
fn under_another_name(
    builder: ClientBuilder,
    server: &Url,
    name: &str,
) -> Option<(ClientBuilder, Url)> {
    let mut base = server.clone();
    base.set_host(Some(name)).ok()?;
    let host = server.host_str()?.trim_start_matches('[');
    let host = host.trim_end_matches(']').to_owned();
    let authority = HeaderValue::from_str(server.authority()).ok()?;
    let builder = builder
        .dns_resolver(Arc::new(Resolver { host: Some(host) }))
        .default_headers(HeaderMap::from_iter([(HOST, authority)]));
    Some((builder, base))
}

/// A resolver that returns the addresses of one host, whatever the name, if it has one.
#[derive(Default)]
struct Resolver {
    host: Option<String>,
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let host = self.host.clone();
        let host = host.unwrap_or_else(|| name.as_str().to_owned());
        // This blocks only the client's own thread, which has nothing else to do. No caller waits
        // for it beyond a deadline. The URL's port replaces port 0.
        Box::pin(async move {
            let addresses: Addrs =
                Box::new(kubelet_attestation_resolver::addresses(&host)?.into_iter());
            Ok(addresses)
        })
    }
}

/// The URL with these segments appended to its path.
fn beneath<'a>(mut url: Url, segments: impl IntoIterator<Item = &'a str>) -> Url {
    // An https URL always has a path.
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().extend(segments);
    }
    url
}

#[cfg(test)]
mod tests;
