//! One request on the API server: create it once, find it again, wait for the decision.

use kubelet_attestation::version::EvidenceVersion;

use crate::clock::Deadline;
use crate::kube::{ApiClient, ApiError, Created, CsrState, NewCsr, Waited};

/// The result of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    /// A certificate was issued. It is not checked yet.
    Issued(String),
    /// The request was denied: a claim in it is false, or something is misconfigured.
    Denied {
        /// The reason of the condition.
        reason: String,
        /// The message of the condition.
        message: String,
    },
    /// This request can never be issued. Another may be.
    Failed {
        /// The reason of the condition.
        reason: String,
        /// The message of the condition.
        message: String,
        /// The evidence versions that the controller accepts, if it names them.
        supported: Vec<EvidenceVersion>,
        /// The challenge for the machine's TPM, unparsed, if any.
        challenge: Option<String>,
    },
    /// There was no decision before the deadline.
    Undecided,
    /// The request was deleted.
    Gone,
}

/// A request could not be sent or followed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EnrolmentError {
    /// The API server could not be reached, or returned an error.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// An object with this name exists, and it asks for something else.
    #[error("the request {name} exists and is not ours")]
    NameConflict {
        /// Its name.
        name: String,
    },
}

/// Creates `csr`, unless an earlier run did and it was `acknowledged`, and waits for the decision.
///
/// Calls `on_acknowledged` once the API server has the request, before the wait. A new request
/// costs one create and one watch. An acknowledged request costs one read, and one watch if it is
/// still pending.
pub(crate) fn submit_and_wait(
    client: &ApiClient,
    csr: NewCsr<'_>,
    acknowledged: bool,
    on_acknowledged: impl FnOnce(),
    deadline: Deadline,
) -> Result<Decision, EnrolmentError> {
    let found = if acknowledged {
        client.get(csr.name, deadline)?
    } else {
        None
    };
    let object = match found {
        Some(object) => object,
        None => match client.create(csr, deadline)? {
            Created::Created(object) => object,
            Created::AlreadyExists => match client.get(csr.name, deadline)? {
                Some(object) => object,
                None => return Ok(Decision::Gone),
            },
        },
    };
    if !csr.is_what_was_stored(&object) {
        return Err(EnrolmentError::NameConflict {
            name: csr.name.to_owned(),
        });
    }
    on_acknowledged();
    if object.state != CsrState::Pending {
        return Ok(decision(object.state));
    }
    Ok(match client.wait(&object, deadline)? {
        Waited::Decided(object) => decision(object.state),
        Waited::Undecided(_) => Decision::Undecided,
        Waited::Gone => Decision::Gone,
    })
}

fn decision(state: CsrState) -> Decision {
    match state {
        CsrState::Pending => Decision::Undecided,
        CsrState::Issued { chain_pem } => Decision::Issued(chain_pem),
        CsrState::Denied { reason, message } => Decision::Denied { reason, message },
        CsrState::Failed {
            reason,
            message,
            supported_versions,
            challenge,
        } => Decision::Failed {
            reason,
            message,
            supported: supported_versions,
            challenge,
        },
    }
}
