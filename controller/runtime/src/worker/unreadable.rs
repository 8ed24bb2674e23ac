//! The requests of a workload cluster that cannot be read.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kubelet_attestation::errors::shortened;
use node_attestation_core::unshared::Unshared;

/// The maximum number of requests whose names are kept. The log contains the names of further requests.
const MAX_NAMES: usize = 16;

/// The maximum length of a name (RFC 1123), which a tenant's API server determines.
const MAX_NAME_LEN: usize = 253;

/// The requests that cannot be read. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct UnreadableRequests {
    /// Only the tasks of one cluster use this lock.
    state: Arc<Unshared<State>>,
}

#[derive(Debug, Default)]
struct State {
    known: Requests,
    /// The requests in the current list.
    listing: Option<Requests>,
    hashes: RandomState,
}

#[derive(Debug, Default)]
struct Requests {
    /// The names, by the digests of the UIDs.
    names: BTreeMap<u64, String>,
    /// Whether there were further requests.
    are_cut: bool,
}

impl UnreadableRequests {
    /// Records that a list begins.
    pub(super) fn listing(&self) {
        self.state.lock().listing = Some(Requests::default());
    }

    /// Records that a list is complete. Only the listed requests exist.
    pub(super) fn listed(&self) {
        let mut state = self.state.lock();
        if let Some(listed) = state.listing.take() {
            state.known = listed;
        }
    }

    /// Records a request, which is readable or deleted if `is_readable` is set.
    pub(super) fn seen(&self, metadata: &ObjectMeta, is_readable: bool) {
        let mut state = self.state.lock();
        let State {
            known,
            listing,
            hashes,
        } = &mut *state;
        let Requests { names, are_cut } = listing.as_mut().unwrap_or(known);
        if is_readable && names.is_empty() {
            return;
        }
        let digest = hashes.hash_one(&metadata.uid);
        if is_readable {
            names.remove(&digest);
            // Nothing else shows that the further requests exist.
            *are_cut &= !names.is_empty();
        } else if names.len() < MAX_NAMES || names.contains_key(&digest) {
            let name = metadata.name.as_deref().unwrap_or_default();
            names.insert(digest, shortened(name, MAX_NAME_LEN).to_owned());
        } else {
            *are_cut = true;
        }
    }

    /// The message about these requests. `None` if there are none.
    pub(crate) fn message(&self) -> Option<String> {
        let state = self.state.lock();
        let Requests { names, are_cut } = &state.known;
        let name = names.values().min()?;
        let count = names.len();
        Some(match count.saturating_sub(1) {
            _ if *are_cut => format!(
                "cannot read at least {count} CertificateSigningRequests, such as {name} (the log contains the causes)"
            ),
            0 => {
                format!("cannot read CertificateSigningRequest {name} (the log contains the cause)")
            }
            others => format!(
                "cannot read CertificateSigningRequest {name} and {others} more (the log contains the causes)"
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};

    use super::*;
    use crate::turns::{FairTurns, TurnLimits};
    use crate::worker::ReadRequest;
    use crate::worker::tests::worker;

    fn request(name: &str, signer: &Value) -> ReadRequest {
        let request = json!({
            "metadata": {"name": name, "uid": name, "resourceVersion": "1"},
            "spec": {"request": "", "signerName": signer},
        });
        serde_json::from_value(request).unwrap()
    }

    #[tokio::test]
    async fn an_unreadable_request_is_named_until_it_is_readable_or_deleted() {
        let turns = FairTurns::new(TurnLimits {
            all: 1,
            of_cluster: 1,
        });
        let mut worker = worker(&turns, "tenant-a", "prod-1", 0);
        let requests = worker.unreadable.clone();
        let (readable, hostile) = (json!("s"), json!(["s"]));
        for (event, expected) in [
            (Event::Init, None),
            (Event::InitApply(request("a", &hostile)), None),
            (Event::InitApply(request("b", &readable)), None),
            (Event::InitDone, Some("a (the log contains the cause)")),
            (
                Event::Apply(request("c", &hostile)),
                Some("a and 1 more (the log contains the causes)"),
            ),
            (
                Event::Apply(request("a", &readable)),
                Some("c (the log contains the cause)"),
            ),
            (Event::Delete(request("c", &hostile)), None),
            (
                Event::Apply(request("d", &hostile)),
                Some("d (the log contains the cause)"),
            ),
            (Event::Init, Some("d (the log contains the cause)")),
            (Event::InitDone, None),
        ] {
            worker.watched(event);

            let expected =
                expected.map(|text| format!("cannot read CertificateSigningRequest {text}"));
            assert_eq!(requests.message(), expected);
        }
    }

    #[test]
    fn the_names_of_unreadable_requests_use_limited_memory() {
        let requests = UnreadableRequests::default();
        let metadata = |number: usize| ObjectMeta {
            name: Some(format!("{number:03}{}", "x".repeat(1000))),
            uid: Some(number.to_string()),
            ..ObjectMeta::default()
        };
        for number in 0..100 {
            requests.seen(&metadata(number), false);
        }

        let message = requests.message().unwrap();
        assert!(message.starts_with("cannot read at least 16 "), "{message}");
        let names = &requests.state.lock().known.names;
        let len: usize = names.values().map(String::len).sum();
        assert!(len <= MAX_NAMES * MAX_NAME_LEN, "{len} bytes");
    }
}
