//! The client of the API server.

use std::sync::Arc;
use std::time::Duration;

use kubelet_attestation::ensure;
use kubelet_attestation::errors::error_chain;
use kubelet_attestation::kubeconfig::Policy;
use kubelet_attestation::names::NodeName;
use reqwest::blocking::ClientBuilder;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{AUTHORIZATION, HOST, HeaderMap, HeaderValue};
use reqwest::{Method, Proxy, StatusCode, Url};
use rustls_pki_types::ServerName;
use serde_json::json;
use zeroize::Zeroizing;

use super::error::ApiError;
use super::kubeconfig::{ClusterEndpoint, Identity, Login, Refused, identity};
use super::proxy::{Environment, ProxyServer};
use super::tls::{self, InsteadOf, Verifier};
use super::transport::{Question, Stream, Transport, failure};
use super::types::{CsrObject, NewCsr, WireList};
use crate::clock::Deadline;
use crate::failure::Code;
use crate::http;

/// The time limit of a connection. The time is shorter than the shortest deadline, which is 5 seconds while a
/// credential is valid. Each address of a name gets a share of the time, so the client can also try the second address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);

/// The path of certificate signing requests.
const REQUESTS: &str = "apis/certificates.k8s.io/v1/certificatesigningrequests";

/// The path of the Leases that kubelets renew.
const NODE_LEASES: &str = "apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

/// The path of the server's version, which usually does not require a login.
const VERSION: &str = "version";

/// A client for one API server and one login.
///
/// # Guarantees
///
/// - Each operation ends at its deadline, even if the server, the resolver or a proxy hangs.
/// - [`create`](Self::create), [`get`](Self::get) and [`wait`](Self::wait) retry until the deadline after temporary
///   errors: no connection, 429, 500, 502, 503 and 504. The pauses grow, and are never shorter than `Retry-After`. All
///   other errors are final.
/// - The client rejects responses and watch lines of more than 1 MiB. Redirects are not followed.
/// - The client trusts only server certificates that the cluster's CA signed, or that the list of CA certificates
///   contains.
#[derive(Debug)]
pub struct ApiClient {
    pub(super) transport: Transport,
    requests: Url,
    leases: Url,
    version: Url,
}

impl ApiClient {
    /// Builds the client. It does not send anything yet.
    ///
    /// If the endpoint does not specify a proxy, the environment's `HTTPS_PROXY` and `NO_PROXY` apply, as in client-go.
    pub fn connect(
        endpoint: &ClusterEndpoint,
        login: &Login,
        environment: Environment<'_>,
    ) -> Result<Self, ApiError> {
        Self::build(endpoint, Some(login), environment)
    }

    /// Builds a client as [`connect`](Self::connect) does, but without a login.
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
            let what = format!("cannot connect to {server}: {field}: {why}");
            let remedy = if field.ends_with("_PROXY") || field.ends_with("_proxy") {
                "correct the variable where it is set for the kubelet, such as in a drop-in of kubelet.service"
            } else {
                "correct the kubeconfig"
            };
            ApiError::other(Code::Configuration, what, remedy)
        };
        let (identity, headers) = present(login).map_err(unusable)?;
        let proxy = ProxyServer::of(endpoint, environment).map_err(unusable)?;
        let route = Route::to(endpoint, proxy.as_ref()).map_err(unusable)?;
        let verifier = Verifier::new(endpoint.ca(), route.instead)
            .ok_or_else(|| unusable(("certificate-authority-data", Refused::NotCertificates)))?;
        let has_identity = identity.is_some();
        let tls = tls::config(verifier, identity, route.is_named).map_err(|error| {
            if has_identity {
                let why = tls::of_identity(&error);
                let what = format!("cannot connect to {server}: {why}");
                let remedy = "correct the client certificate and its key in the kubeconfig";
                ApiError::other(Code::Configuration, what, remedy)
            } else {
                let what = format!("cannot start TLS for {server}: {error}");
                ApiError::other(Code::Internal, what, "report this as a bug")
            }
        })?;
        let builder = route
            .builder
            .default_headers(headers)
            .user_agent(http::USER_AGENT)
            .https_only(true);
        let client = http::client(builder, tls.clone(), CONNECT_TIMEOUT).map_err(|error| {
            let why = error_chain(&error);
            let what = format!("cannot start the client for {server}: {why}");
            ApiError::other(Code::Internal, what, "report this as a bug")
        })?;
        let base = route.base;
        let proxy = proxy.map(|proxy| (proxy, Arc::new(tls)));
        Ok(Self {
            transport: Transport::new(client, endpoint.url(), route.name, proxy),
            requests: beneath(base.clone(), REQUESTS.split('/')),
            leases: beneath(base.clone(), NODE_LEASES.split('/')),
            version: beneath(base, [VERSION]),
        })
    }

    /// Creates a request, and returns it as the API server stored it; `None` if an object with this name exists. The
    /// caller must then read that object with [`ApiClient::get`], and compare it.
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

    /// Reads a request; `None` if it does not exist.
    pub fn get(&self, name: &str, deadline: Deadline) -> Result<Option<CsrObject>, ApiError> {
        let url = beneath(self.requests.clone(), [name]);
        let question = Question::read(url, "reading the request");
        self.object_unless(&question, (StatusCode::NOT_FOUND, "NotFound"), deadline)
    }

    /// Returns the object in the answer; `None` for an error with this status and reason.
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

    /// Tests the write that a kubelet makes every ten seconds: applies the node's Lease without any field, as a dry
    /// run. The API server authorizes and admits the dry run as any other write, but does not store it.
    ///
    /// The write uses server-side apply, because the node might not have a Lease yet. Other patches of a missing object
    /// fail with 404 before admission.
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
            what: "checking the certificate",
        };
        let answer = self.transport.exchange_once(&question, deadline)?;
        ensure!(answer.status.is_success(), self.transport.refusal(&answer));
        Ok(())
    }

    /// Checks that the API server proves its identity, and that the clocks agree. The check also passes if the API
    /// server refuses requests without a login.
    pub(crate) fn reach(&self, deadline: Deadline) -> Result<(), ApiError> {
        let question = Question::read(self.version.clone(), "reading the version");
        let answer = self.transport.exchange_once(&question, deadline)?;
        ensure!(
            !answer.status.is_server_error(),
            self.transport.refusal(&answer)
        );
        Ok(())
    }

    /// Opens a watch for the request with this name, starting at this resource version.
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

    /// Reads the request with this name, if it exists, and the resource version of the list.
    pub(super) fn list(
        &self,
        name: &str,
        deadline: Deadline,
    ) -> Result<(Option<CsrObject>, String), ApiError> {
        let question = Question::read(self.named(name), "listing the request");
        let answer = self.transport.exchange_once(&question, deadline)?;
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
        let what = format!("the response from {server} is not the requested object: {why}");
        ApiError::not_an_api_server(what)
    }
}

/// Returns the TLS identity or the header of a login. An error contains the invalid field.
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
        Some(Login::ClientCertificate { chain_pem, key_pem }) => Ok((
            Some(identity(chain_pem, key_pem, Policy::Machine)?),
            headers,
        )),
    }
}

/// The connection parameters for a server.
struct Route {
    builder: ClientBuilder,
    /// The base URL of requests.
    base: Url,
    /// The expected name in the server's certificate.
    name: String,
    instead: Option<InsteadOf>,
    /// Whether the TLS handshake sends the URL's host to the server (SNI).
    is_named: bool,
}

impl Route {
    /// Returns the connection parameters for this endpoint. An error contains the invalid field.
    fn to(
        endpoint: &ClusterEndpoint,
        proxy: Option<&ProxyServer>,
    ) -> Result<Self, (&'static str, Refused)> {
        let server = endpoint.url();
        let host = server.host_str().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let direct = Self {
            builder: ClientBuilder::new(),
            base: server.clone(),
            name: host.to_owned(),
            instead: None,
            is_named: true,
        };
        let refused = ("tls-server-name", Refused::NotAServerName);
        let (route, alias) = match endpoint.tls_server_name() {
            None => (direct, None),
            Some(name) => {
                let as_name = |text: &str| ServerName::try_from(text.to_owned()).ok();
                let (host_name, wanted) = as_name(host).zip(as_name(name)).ok_or(refused)?;
                let is_address = matches!(wanted, ServerName::IpAddress(_));
                if is_address || proxy.is_some_and(|proxy| !proxy.is_socks) {
                    // An http proxy connects to the URL's host, so the URL keeps the host.
                    let route = Self {
                        name: name.to_owned(),
                        instead: Some(InsteadOf {
                            host: host_name,
                            name: wanted,
                        }),
                        is_named: false,
                        ..direct
                    };
                    (route, None)
                } else {
                    let alias = Some((name.to_lowercase(), host.to_owned()));
                    (direct.under(name).ok_or(refused)?, alias)
                }
            }
        };
        let builder = match proxy {
            None => route.builder.no_proxy(),
            Some(proxy) => {
                let url = proxy.for_client(alias.is_none());
                let proxy = Proxy::all(url.expose().as_str());
                route
                    .builder
                    .proxy(proxy.map_err(|_| ("proxy-url", Refused::NotAProxy))?)
            }
        };
        Ok(Self {
            builder: builder.dns_resolver(Arc::new(Resolver { alias })),
            ..route
        })
    }

    /// Replaces the URL's host with the name in the certificate, because TLS verifies the URL's host. The resolver maps
    /// the name to the real host, and the `Host` header contains the real host.
    fn under(self, name: &str) -> Option<Self> {
        let authority = HeaderValue::from_str(self.base.authority()).ok()?;
        let mut base = self.base;
        base.set_host(Some(name)).ok()?;
        Some(Self {
            builder: self
                .builder
                .default_headers(HeaderMap::from_iter([(HOST, authority)])),
            base,
            name: name.to_owned(),
            ..self
        })
    }
}

/// A resolver that resolves the alias to the addresses of the host, and every other name normally.
struct Resolver {
    /// The alias, and the host.
    alias: Option<(String, String)>,
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let alias = self.alias.as_ref();
        let host = alias.filter(|(alias, _)| alias.eq_ignore_ascii_case(name.as_str()));
        let host = host.map_or_else(|| name.as_str().to_owned(), |(_, host)| host.clone());
        // The lookup blocks only the client's own thread, which has no other tasks. Callers wait for this thread only
        // until their deadline. The client replaces port 0 with the port in the URL.
        Box::pin(async move {
            let addresses: Addrs =
                Box::new(kubelet_attestation_resolver::addresses_as_in_go(&host)?.into_iter());
            Ok(addresses)
        })
    }
}

/// The URL with these segments appended to its path.
fn beneath<'a>(mut url: Url, segments: impl IntoIterator<Item = &'a str>) -> Url {
    // The path always exists for an https URL.
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().extend(segments);
    }
    url
}

#[cfg(test)]
mod tests;
