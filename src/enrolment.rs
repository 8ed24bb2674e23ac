//! One request on the API server: create it once, find it again, wait for the decision.

use crate::clock::Deadline;
use crate::kube::{ApiClient, ApiError, CsrState, NewCsr};

/// Creates `csr`, unless an earlier run did and it was `acknowledged`, and waits for the decision.
/// The result is `Pending` if there was none before the deadline, and `None` if the request was
/// deleted.
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
) -> Result<Option<CsrState>, ApiError> {
    let mut found = None;
    if acknowledged {
        found = client.get(csr.name, deadline)?;
    }
    if found.is_none() {
        found = client.create(csr, deadline)?;
    }
    if found.is_none() {
        found = client.get(csr.name, deadline)?;
    }
    let Some(object) = found else {
        return Ok(None);
    };
    if !csr.is_what_was_stored(&object) {
        return Err(ApiError::name_conflict(csr.name));
    }
    on_acknowledged();
    if object.state != CsrState::Pending {
        return Ok(Some(object.state));
    }
    Ok(client.wait(&object, deadline)?.map(|object| object.state))
}
