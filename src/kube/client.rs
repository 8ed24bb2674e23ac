//! The client of the certificates API.

use super::error::ApiError;
use super::kubeconfig::{ClusterEndpoint, Login};
use super::types::{CsrObject, NewCsr};
use super::watch::Waited;
use crate::clock::Deadline;
use crate::settings::Environment;

/// What became of a create.
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, reason = "a create has these two good ends")]
pub enum Created {
    /// The object, as the API server stored it.
    Created(CsrObject),
    /// An object of that name is there already; whose it is, is for the caller to find out with [`ApiClient::get`].
    AlreadyExists,
}

/// A connection to one API server as one user.
#[derive(Debug)]
pub struct ApiClient;

impl ApiClient {
    /// Makes the client; nothing is sent yet.
    pub fn connect(
        endpoint: &ClusterEndpoint,
        login: &Login,
        environment: Environment<'_>,
    ) -> Result<Self, ApiError> {
        todo!("{endpoint:?} {login:?} {:?}", environment(""))
    }

    /// Creates a request.
    pub fn create(&self, csr: NewCsr<'_>, deadline: Deadline) -> Result<Created, ApiError> {
        todo!("{csr:?} {deadline:?}")
    }

    /// Reads a request; `None` if there is none of that name.
    pub fn get(&self, name: &str, deadline: Deadline) -> Result<Option<CsrObject>, ApiError> {
        todo!("{name:?} {deadline:?}")
    }

    /// Waits by watch until the request is decided, is gone, or the deadline has passed.
    pub fn wait(&self, csr: &CsrObject, deadline: Deadline) -> Result<Waited, ApiError> {
        todo!("{csr:?} {deadline:?}")
    }
}
