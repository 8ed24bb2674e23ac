//! The client of the certificates API.

use std::io;
use std::net::ToSocketAddrs as _;
use std::sync::Arc;
use std::time::Duration;

use kubelet_attestation::names::NodeName;
use reqwest::blocking::ClientBuilder;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{AUTHORIZATION, HOST, HeaderMap, HeaderValue};
use reqwest::{Method, Proxy, StatusCode, Url, redirect};
use serde_json::json;
use zeroize::Zeroizing;

use super::error::ApiError;
use super::kubeconfig::{ClusterEndpoint, Identity, Login, Refused, identity};
use super::proxy;
use super::tls;
use super::transport::{Answer, Lines, Question, Transport, failure};
use super::types::{CsrObject, NewCsr, WireCsr, WireList};
use super::watch::{Waited, Watch};
use crate::clock::Deadline;
use crate::settings::Environment;

/// Below the shortest deadline there is (5 s, while a credential is still valid), so that a name
/// with two addresses gets to its second one: each has its share.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);

const COLLECTION: [&str; 4] = [
    "apis",
    "certificates.k8s.io",
    "v1",
    "certificatesigningrequests",
];

/// Where kubelets renew the Leases of their nodes.
const NODE_LEASES: [&str; 6] = [
    "apis",
    "coordination.k8s.io",
    "v1",
    "namespaces",
    "kube-node-lease",
    "leases",
];

const USER_AGENT: &str = concat!("kubelet-authenticator/", env!("CARGO_PKG_VERSION"));

/// What became of a create.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "it is matched at once")]
pub enum Created {
    /// The object, as the API server stored it.
    Created(CsrObject),
    /// An object of that name is there already; whose it is, is for the caller to find out with
    /// [`ApiClient::get`].
    AlreadyExists,
}

/// One API server, talked to as one user.
///
/// # Guarantees
///
/// - Nothing takes longer than its deadline, whatever the server, the resolver or a proxy do.
/// - No answer of more than 1 MiB is read, and no redirect followed.
/// - Only certificates of the cluster's own CA are believed.
#[derive(Debug)]
pub struct ApiClient {
    transport: Transport,
    requests: Url,
    leases: Url,
}

impl ApiClient {
    /// Makes the client; nothing is sent yet.
    ///
    /// Where the endpoint names no proxy, the environment's `HTTPS_PROXY` and `NO_PROXY` hold, as
    /// in client-go.
    pub fn connect(
        endpoint: &ClusterEndpoint,
        login: &Login,
        environment: Environment<'_>,
    ) -> Result<Self, ApiError> {
        let server = endpoint.server();
        let unusable = |field, why| ApiError::Unusable {
            server: server.to_owned(),
            field,
            why,
        };
        let failed = |source| ApiError::Client {
            server: server.to_owned(),
            source,
        };
        let (identity, headers) = present(login).map_err(|(field, why)| unusable(field, why))?;
        let roots = tls::roots(endpoint.ca())
            .ok_or_else(|| unusable("certificate-authority-data", Refused::NotCertificates))?;
        let tls =
            tls::configure(roots, identity).map_err(|error| failed(io::Error::other(error)))?;
        let route =
            Route::to(endpoint, environment).map_err(|(field, why)| unusable(field, why))?;
        let base = route.base;
        let name = base.host_str().unwrap_or_default().to_owned();
        let client = route
            .builder
            .tls_backend_preconfigured(tls)
            .default_headers(headers)
            .user_agent(USER_AGENT)
            .https_only(true)
            .redirect(redirect::Policy::none())
            .referer(false)
            .connect_timeout(CONNECT_TIMEOUT)
            .build()
            .map_err(|error| failed(io::Error::other(error)))?;
        Ok(Self {
            transport: Transport::new(client, server.to_owned(), name),
            requests: beneath(base.clone(), COLLECTION),
            leases: beneath(base, NODE_LEASES),
        })
    }

    /// Creates a request.
    pub fn create(&self, csr: NewCsr<'_>, deadline: Deadline) -> Result<Created, ApiError> {
        let question = Question {
            method: Method::POST,
            url: self.requests.clone(),
            body: Some(csr.to_json().map_err(|source| self.not_an_object(source))?),
            what: "creating the request",
        };
        let answer = self.transport.exchange(&question, deadline)?;
        if answer.status.is_success() {
            return Ok(Created::Created(self.object(&answer.body)?));
        }
        if answer.status == StatusCode::CONFLICT && failure(&answer.body).reason == "AlreadyExists"
        {
            return Ok(Created::AlreadyExists);
        }
        Err(self.transport.refusal(&answer))
    }

    /// Reads a request; `None` if there is none of that name.
    pub fn get(&self, name: &str, deadline: Deadline) -> Result<Option<CsrObject>, ApiError> {
        let question = Question {
            method: Method::GET,
            url: beneath(self.requests.clone(), [name]),
            body: None,
            what: "reading the request",
        };
        let answer = self.transport.exchange(&question, deadline)?;
        if answer.status == StatusCode::OK {
            return self.object(&answer.body).map(Some);
        }
        if answer.status == StatusCode::NOT_FOUND && failure(&answer.body).reason == "NotFound" {
            return Ok(None);
        }
        Err(self.transport.refusal(&answer))
    }

    /// Has the API server judge the write that a kubelet makes every ten seconds, and changes
    /// nothing: the node's Lease is applied without a field, as a dry run, which authorization and
    /// admission see like any other.
    ///
    /// Applied, because a node may have no Lease yet, and of an object that is not there any other
    /// patch is answered 404 before admission.
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
        if answer.status.is_success() {
            return Ok(());
        }
        Err(self.transport.refusal(&answer))
    }

    /// Waits by watch until the request is decided, is gone, or the deadline has passed.
    ///
    /// A watch that ends, is cut or has fallen behind is taken up again. The error of the last
    /// attempt is returned only if the deadline passes without another watch being up.
    pub fn wait(&self, csr: &CsrObject, deadline: Deadline) -> Result<Waited, ApiError> {
        Watch::new(self, csr, deadline).run()
    }

    /// Opens a watch for changes of the request of this name after a version.
    pub(super) fn watch(
        &self,
        name: &str,
        after: &str,
        deadline: Deadline,
    ) -> Result<Result<Lines, Answer>, ApiError> {
        let mut url = self.named(name);
        url.query_pairs_mut()
            .append_pair("watch", "true")
            .append_pair("resourceVersion", after)
            .append_pair(
                "timeoutSeconds",
                &(deadline.remaining().as_secs() + 1).to_string(),
            );
        let question = Question {
            method: Method::GET,
            url,
            body: None,
            what: "watching the request",
        };
        self.transport.stream(&question, deadline)
    }

    /// Reads the request of this name, if there is one, with the version of the whole collection.
    pub(super) fn list(
        &self,
        name: &str,
        deadline: Deadline,
    ) -> Result<(Option<CsrObject>, String), ApiError> {
        let (method, url) = (Method::GET, self.named(name));
        let question = Question {
            method,
            url,
            body: None,
            what: "listing the request",
        };
        let answer = self.transport.exchange(&question, deadline)?;
        if answer.status != StatusCode::OK {
            return Err(self.transport.refusal(&answer));
        }
        let list: WireList =
            serde_json::from_slice(&answer.body).map_err(|source| self.not_an_object(source))?;
        let object = list
            .items
            .into_iter()
            .next()
            .map(|wire| self.understand(wire))
            .transpose()?;
        Ok((object, list.metadata.resource_version))
    }

    fn named(&self, name: &str) -> Url {
        let mut url = self.requests.clone();
        url.query_pairs_mut()
            .append_pair("fieldSelector", &format!("metadata.name={name}"));
        url
    }

    pub(super) fn refusal(&self, answer: &Answer) -> ApiError {
        self.transport.refusal(answer)
    }

    /// Understands an object.
    pub(super) fn object(&self, json: &[u8]) -> Result<CsrObject, ApiError> {
        let wire = serde_json::from_slice(json).map_err(|source| self.not_an_object(source))?;
        self.understand(wire)
    }

    fn understand(&self, wire: WireCsr) -> Result<CsrObject, ApiError> {
        CsrObject::try_from(wire).map_err(|source| ApiError::Malformed {
            server: self.transport.server().to_owned(),
            source,
        })
    }

    pub(super) fn not_an_object(&self, source: serde_json::Error) -> ApiError {
        ApiError::NotAnObject {
            server: self.transport.server().to_owned(),
            source,
        }
    }
}

/// A TLS identity or a header, and the field that is to blame if there is neither.
fn present(login: &Login) -> Result<(Option<Identity>, HeaderMap), (&'static str, Refused)> {
    let mut headers = HeaderMap::new();
    match login {
        Login::Token(token) => {
            let bearer = Zeroizing::new(format!("Bearer {}", token.expose()));
            let mut value =
                HeaderValue::from_str(&bearer).map_err(|_| ("token", Refused::NotAToken))?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
            Ok((None, headers))
        }
        Login::ClientCertificate { chain_pem, key_pem } => {
            Ok((Some(identity(chain_pem, key_pem)?), headers))
        }
    }
}

/// How to get to the server, and the URL to ask there.
struct Route {
    builder: ClientBuilder,
    base: Url,
}

impl Route {
    fn to(
        endpoint: &ClusterEndpoint,
        environment: Environment<'_>,
    ) -> Result<Self, (&'static str, Refused)> {
        let server = endpoint.url();
        let inherited = match endpoint.proxy() {
            Some(_) => None,
            None => proxy::from_environment(server, environment),
        };
        let builder = ClientBuilder::new();
        let proxy = endpoint.proxy().or(inherited.as_ref());
        match (proxy, endpoint.tls_server_name()) {
            (Some(_), Some(_)) => Err(("tls-server-name", Refused::ProxyWithServerName)),
            (Some(proxy), None) => {
                let proxy =
                    Proxy::all(proxy.expose()).map_err(|_| ("proxy-url", Refused::NotAUrl))?;
                Ok(Self {
                    builder: builder.proxy(proxy),
                    base: server.clone(),
                })
            }
            (None, None) => Ok(Self {
                builder: builder.no_proxy(),
                base: server.clone(),
            }),
            (None, Some(name)) => Self::under_another_name(builder.no_proxy(), server, name)
                .ok_or(("tls-server-name", Refused::NotAServerName)),
        }
    }

    /// TLS takes the name from the URL, so that has the certificate's; the resolver leads to the
    /// real host, whose name is in the `Host` header as ever.
    fn under_another_name(builder: ClientBuilder, server: &Url, name: &str) -> Option<Self> {
        let mut base = server.clone();
        base.set_host(Some(name)).ok()?;
        let host = server
            .host_str()?
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        let authority = HeaderValue::from_str(server.authority()).ok()?;
        let builder = builder
            .dns_resolver(Arc::new(Elsewhere { host }))
            .default_headers(HeaderMap::from_iter([(HOST, authority)]));
        Some(Self { builder, base })
    }
}

/// Leads to one host, whatever is asked for.
struct Elsewhere {
    host: String,
}

impl Resolve for Elsewhere {
    fn resolve(&self, _: Name) -> Resolving {
        let host = self.host.clone();
        // It blocks the client's own thread, which has nothing else to do, and for which nobody
        // waits beyond a deadline. Port 0 gives way to the URL's.
        Box::pin(async move {
            let addresses: Vec<_> = (host.as_str(), 0).to_socket_addrs()?.collect();
            let addresses: Addrs = Box::new(addresses.into_iter());
            Ok(addresses)
        })
    }
}

/// The URL with these segments after its path.
fn beneath<'a>(mut url: Url, segments: impl IntoIterator<Item = &'a str>) -> Url {
    // A URL on https always has a path.
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().extend(segments);
    }
    url
}

#[cfg(test)]
mod tests;
