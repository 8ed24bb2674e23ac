//! A watch that finds kubeadm's bindings when they return.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::stream::StreamExt as _;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::Client;
use kube::api::Api;
use kube::runtime::watcher::Event;
use node_attestation_core::rate_limit::Rate;
use node_attestation_core::scope::Enforcement;
use tokio::time::{Instant, sleep, sleep_until};

use super::{KUBEADM, PAGE_SIZE};
use crate::log_lines::ClusterLines;
use crate::watch::{MetadataOf, WatchLog, in_smaller_pages, watch_config};

/// The rate of reports. kubeadm writes both bindings together. A hostile cluster can change them constantly, and each
/// report causes an inspection.
const REPORTS: Rate = Rate {
    burst: 2,
    every: Duration::from_mins(1),
};

/// The interval between checks whether attestation is enforced. These checks make no calls.
const LOOK_AGAIN: Duration = Duration::from_secs(3);

/// Sets `returned` when a binding with the name of one of kubeadm's two bindings is found or changed, while attestation
/// is enforced. Never returns.
///
/// This is one watch of all `ClusterRoleBindings`, because a field selector matches only one name, and each watch costs
/// a call every few minutes. A cluster has about 60 of them, and they rarely change.
pub(crate) async fn report_returns(
    client: Client,
    enforcement: Enforcement,
    returned: Arc<AtomicBool>,
    lines: ClusterLines,
) {
    loop {
        while !enforcement.is_on() {
            sleep(LOOK_AGAIN).await;
        }
        let enforced = async {
            while enforcement.is_on() {
                sleep(LOOK_AGAIN).await;
            }
        };
        tokio::select! {
            () = enforced => {}
            () = follow(client.clone(), &returned, &lines) => {}
        }
    }
}

async fn follow(client: Client, returned: &AtomicBool, lines: &ClusterLines) {
    let api: Api<MetadataOf<ClusterRoleBinding>> = Api::all(client);
    let mut log = WatchLog::new("ClusterRoleBinding").within(lines.clone());
    let events = in_smaller_pages(api, watch_config(), PAGE_SIZE, Arc::default());
    let (mut events, mut full_at) = (pin!(events), Instant::now());
    while let Some(event) = events.next().await {
        log.observe(&event, || {});
        let Ok(Event::InitApply(binding) | Event::Apply(binding)) = event else {
            continue;
        };
        let name = binding.metadata.name.as_deref();
        if !KUBEADM.iter().any(|(own, ..)| name == Some(*own)) {
            continue;
        }
        while let Err(at) = REPORTS.take(&mut full_at, Instant::now()) {
            sleep_until(at).await;
        }
        returned.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::stream;
    use http_body_util::{BodyExt as _, StreamBody};
    use hyper::Response;
    use hyper::body::{Bytes, Frame};
    use serde_json::json;

    use super::*;
    use crate::client::ClusterAccess;

    /// Follows a cluster whose watch has this number of events about a binding with this name. Returns the number of
    /// reports in five minutes.
    async fn reports(name: &'static str, events: usize, is_enforced: bool) -> usize {
        let access = ClusterAccess::in_memory(move |request| {
            let query = request.uri().query().unwrap_or_default();
            let lines = if query.contains("watch=") {
                let metadata = json!({"name": name, "resourceVersion": "2"});
                let event = json!({"type": "MODIFIED", "object": {"metadata": metadata}});
                format!("{event}\n").repeat(events)
            } else {
                json!({"metadata": {"resourceVersion": "1"}, "items": []}).to_string()
            };
            let is_list = !query.contains("watch=");
            let first = stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from(lines)))]);
            let body = if is_list {
                StreamBody::new(first).boxed_unsync()
            } else {
                StreamBody::new(first.chain(stream::pending())).boxed_unsync()
            };
            async move { Response::new(body) }
        });
        let returned: Arc<AtomicBool> = Arc::default();
        let enforcement = Enforcement::default();
        enforcement.set(is_enforced);
        let following = tokio::spawn(report_returns(
            access.client().clone(),
            enforcement,
            returned.clone(),
            ClusterLines::of_namespace(""),
        ));
        let mut reports = 0;
        for _ in 0..300 {
            sleep(Duration::from_secs(1)).await;
            reports += usize::from(returned.swap(false, Ordering::Relaxed));
        }
        following.abort();
        reports
    }

    #[tokio::test(start_paused = true)]
    async fn a_returned_kubeadm_binding_is_reported_while_attestation_is_enforced() {
        for (name, _, _) in KUBEADM {
            assert_eq!(reports(name, 1, true).await, 1, "{name}");
        }
        assert_eq!(reports("kubeadm:kubelet-bootstrap", 1, true).await, 0);
        assert_eq!(reports(KUBEADM[0].0, 1, false).await, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_binding_that_changes_constantly_is_reported_once_a_minute() {
        let reports = reports(KUBEADM[0].0, 1000, true).await;

        assert!((5..=6).contains(&reports), "{reports}");
    }
}
