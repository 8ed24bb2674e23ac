//! Reads the Service addresses of the cluster.

use std::time::Duration;

use kube::Client;
use kubelet_attestation::errors::error_chain;
use node_attestation_core::serving::ServiceRanges;
use tokio::time::sleep;

use super::EXAMINE_RETRY;
use crate::hardening::{HardeningError, service_ranges};

/// The interval between two reads of the Service addresses. An administrator can add a range to a running cluster.
const READ_AGAIN: Duration = Duration::from_mins(30);

/// Reads the Service addresses repeatedly, in addition to the addresses in the inventory. Never returns.
pub(super) async fn read_repeatedly(client: &Client, services: &ServiceRanges) {
    let mut is_logged = false;
    loop {
        let pause = match service_ranges::read(client).await {
            Ok(read) => {
                services.add(read.ranges, read.are_all);
                is_logged = false;
                READ_AGAIN
            }
            Err(error) => {
                let is_outage = matches!(error, HardeningError::Unavailable { .. });
                let error = error_chain(&error);
                if is_outage || is_logged {
                    tracing::debug!(
                        error,
                        "cannot read the addresses of Services yet; the controller retries"
                    );
                } else {
                    tracing::warn!(
                        error,
                        "cannot read the addresses of Services; only the addresses in serviceRanges are refused"
                    );
                }
                is_logged |= !is_outage;
                if is_outage { EXAMINE_RETRY } else { READ_AGAIN }
            }
        };
        sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http_body_util::Full;
    use hyper::body::Bytes;
    use hyper::{Request, Response};
    use kube::client::Body;
    use serde_json::json;

    use super::*;
    use crate::client::ClusterAccess;

    /// Reads the Service addresses of an API server. If `refused` is set, the server rejects the first list of ranges.
    /// Otherwise, that list is empty. Later lists contain one range. Returns whether all ranges are known before and
    /// after the second read.
    async fn known_ranges(refused: bool) -> [bool; 2] {
        let lists = Arc::new(AtomicUsize::new(0));
        let access = ClusterAccess::in_memory(move |request: Request<Body>| {
            let is_list = request.uri().path().ends_with("/servicecidrs");
            let is_first = is_list && lists.fetch_add(1, Ordering::Relaxed) == 0;
            let (status, answer) = if is_first && refused {
                let status =
                    json!({"kind": "Status", "metadata": {}, "code": 403, "reason": "Forbidden"});
                (403, status)
            } else if is_first {
                (200, json!({"metadata": {}, "items": []}))
            } else if is_list {
                let range =
                    json!({"metadata": {"name": "more"}, "spec": {"cidrs": ["10.96.0.0/16"]}});
                (200, json!({"metadata": {}, "items": [range]}))
            } else {
                let spec = json!({"clusterIPs": ["10.96.0.1"]});
                (
                    200,
                    json!({"metadata": {"name": "kubernetes"}, "spec": spec}),
                )
            };
            async move {
                let body = Full::new(Bytes::from(answer.to_string()));
                Response::builder().status(status).body(body).unwrap()
            }
        });
        let services = ServiceRanges::default();
        let (client, read) = (access.client().clone(), services.clone());
        let reading = tokio::spawn(async move { read_repeatedly(&client, &read).await });
        sleep(READ_AGAIN / 2).await;
        let before = services.are_known();
        sleep(READ_AGAIN).await;
        reading.abort();
        [before, services.are_known()]
    }

    #[tokio::test(start_paused = true)]
    async fn service_ranges_that_are_added_later_become_known() {
        for refused in [false, true] {
            assert_eq!(known_ranges(refused).await, [false, true], "{refused}");
        }
    }
}
