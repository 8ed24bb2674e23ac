//! One request, from the API server's point of view: created once, found again, waited for.

use kubelet_attestation::version::EvidenceVersion;

use crate::clock::Deadline;
use crate::kube::{ApiClient, ApiError, Created, CsrState, NewCsr, Waited};

/// What became of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// A certificate was issued; nobody has looked at it yet.
    Issued(String),
    /// Somebody lies or is misconfigured.
    Denied {
        /// In one word.
        reason: String,
        /// In a sentence.
        message: String,
    },
    /// This request can never be issued; another may.
    Failed {
        /// In one word.
        reason: String,
        /// In a sentence.
        message: String,
        /// The versions of evidence that the controller accepts, if it says so.
        supported: Vec<EvidenceVersion>,
        /// What a TPM is asked to open, as it came, if anything.
        challenge: Option<String>,
    },
    /// Nothing, until the deadline.
    Undecided,
    /// The request is gone.
    Gone,
}

/// A request did not reach a decision for a reason of its own.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnrolmentError {
    /// The API server did not do as asked.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// An object of this name is there, and it asks for something else.
    #[error("the request {name} exists and is not ours")]
    NameConflict {
        /// Its name.
        name: String,
    },
}

/// Creates `csr`, unless that was `acknowledged` by an earlier run, and waits until it is decided.
///
/// `on_acknowledged` is called once the API server has the request, before the wait. It costs one
/// create and one watch; a run that takes up an acknowledged request costs one read, and one watch
/// if the request still waits.
pub fn submit_and_wait(
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
