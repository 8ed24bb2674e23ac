//! An in-memory store of requests that follows the API server's rules, and injects faults.

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::core::Status;
use node_attestation_core::unshared::Unshared;
use parking_lot::MutexGuard;

use super::{APPROVED, DENIED, RequestStore, has_condition};
use crate::client::{CALL_DEADLINE, CallError};

/// The UID of the request.
pub(crate) const UID: &str = "0a";

/// A store with one request.
#[derive(Debug)]
pub(crate) struct MemoryStore {
    state: Unshared<State>,
}

#[derive(Debug)]
struct State {
    request: Option<CertificateSigningRequest>,
    version: u64,
    writes: usize,
    fault: Option<(usize, Fault)>,
}

/// A fault that is injected into a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The write does not reach the server.
    Lost,
    /// The server completes the write, and the response is lost.
    AnswerLost,
    /// Another client denies the request just before the write.
    DeniedBefore,
    /// Another client annotates the request before this and every later write.
    AnnotatedBefore,
    /// Another client deletes the request just before the write.
    DeletedBefore,
    /// The server responds with this code, and does not write.
    Refused(u16),
    /// The server responds with 422 to this and every later write.
    NeverValid,
    /// The server completes the write, and the writer stops.
    Death,
}

impl MemoryStore {
    pub(crate) fn new(mut request: CertificateSigningRequest) -> Self {
        request.metadata.uid = Some(UID.to_owned());
        request.metadata.resource_version = Some("1".to_owned());
        let state = State {
            request: Some(request),
            version: 1,
            writes: 0,
            fault: None,
        };
        Self {
            state: Unshared::new(state),
        }
    }

    /// Injects a fault into the write with this index. The first index is 0.
    pub(crate) fn with_fault(self, write: usize, fault: Fault) -> Self {
        self.lock().fault = Some((write, fault));
        self
    }

    pub(crate) fn request(&self) -> CertificateSigningRequest {
        self.lock().request.clone().unwrap()
    }

    /// The number of attempted writes.
    pub(crate) fn writes(&self) -> usize {
        self.lock().writes
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn put(
        &self,
        request: &CertificateSigningRequest,
    ) -> Result<CertificateSigningRequest, CallError> {
        let mut state = self.lock();
        let fault = state.fault_of_this_write();
        match fault {
            Some(Fault::Lost) => return Err(CallError::Deadline(CALL_DEADLINE)),
            Some(Fault::Refused(code)) => return Err(refused(code)),
            Some(Fault::NeverValid) => return Err(refused(422)),
            Some(Fault::DeniedBefore) => {
                let mut other = state.request.clone().unwrap();
                super::add_condition(&mut other, DENIED, "ByHand", "");
                state.put(other);
            }
            Some(Fault::AnnotatedBefore) => {
                let mut other = state.request.clone().unwrap();
                let value = state.writes.to_string();
                let annotations = other.metadata.annotations.get_or_insert_default();
                annotations.insert("a.b/c".to_owned(), value);
                state.put(other);
            }
            Some(Fault::DeletedBefore) => state.request = None,
            Some(Fault::AnswerLost | Fault::Death) | None => {}
        }
        let stored = state.request.as_ref().ok_or_else(|| refused(404))?;
        if stored.metadata.resource_version != request.metadata.resource_version {
            return Err(refused(409));
        }
        let kinds = [APPROVED, DENIED];
        assert!(
            !kinds.iter().all(|kind| has_condition(request, kind)),
            "the API server rejects a request that is approved and denied"
        );
        let updated = state.put(request.clone());
        match fault {
            Some(Fault::AnswerLost) => Err(CallError::Deadline(CALL_DEADLINE)),
            Some(Fault::Death) => panic!("dead"),
            Some(
                Fault::Lost
                | Fault::Refused(_)
                | Fault::NeverValid
                | Fault::DeniedBefore
                | Fault::AnnotatedBefore
                | Fault::DeletedBefore,
            )
            | None => Ok(updated),
        }
    }
}

fn refused(code: u16) -> CallError {
    CallError::Refused(Status::failure("no", "Invalid").with_code(code).boxed())
}

impl State {
    fn fault_of_this_write(&mut self) -> Option<Fault> {
        let this = self.writes;
        self.writes += 1;
        self.fault
            .filter(|(write, fault)| {
                let lasts = matches!(fault, Fault::AnnotatedBefore | Fault::NeverValid);
                this == *write || (this > *write && lasts)
            })
            .map(|(_, fault)| fault)
    }

    fn put(&mut self, mut request: CertificateSigningRequest) -> CertificateSigningRequest {
        self.version += 1;
        request.metadata.resource_version = Some(self.version.to_string());
        self.request = Some(request.clone());
        request
    }
}

#[async_trait::async_trait]
impl RequestStore for MemoryStore {
    async fn get(&self, _name: &str) -> Result<Option<CertificateSigningRequest>, CallError> {
        Ok(self.lock().request.clone())
    }

    async fn update(
        &self,
        _subresource: &'static str,
        request: &CertificateSigningRequest,
    ) -> Result<CertificateSigningRequest, CallError> {
        self.put(request)
    }
}
