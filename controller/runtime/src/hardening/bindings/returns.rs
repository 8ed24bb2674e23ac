//! A watch that detects when kubeadm's bindings are created again.

use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::FutureExt as _;
use futures::stream::StreamExt as _;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::Client;
use kube::api::Api;
use kube::runtime::watcher::{self, Event};
use node_attestation_core::rate_limit::Rate;
use node_attestation_core::scope::Enforcement;
use tokio::time::{Instant, sleep, sleep_until};

use super::{KUBEADM, PAGE_SIZE};
use crate::log_lines::ClusterLines;
use crate::metrics::WatchMetrics;
use crate::watch::{MetadataOf, WatchLog, in_smaller_pages, watch_config};

/// The rate of reports. kubeadm writes both bindings together. A hostile cluster can change them constantly, and each
/// report causes an inspection.
const REPORTS: Rate = Rate {
    burst: 2,
    every: Duration::from_mins(1),
};

/// The interval for checking whether attestation is enforced. These checks do not make calls.
const LOOK_AGAIN: Duration = Duration::from_secs(3);

/// Sets `returned` when a binding with the name of one of kubeadm's two bindings is found or changed while attestation
/// is enforced. Never returns.
///
/// A single watch covers all `ClusterRoleBindings`, because a field selector matches only one name, and each watch
/// makes a call every few minutes. A cluster has about 60 `ClusterRoleBindings`, and they rarely change.
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
            // Boxed, because a cluster is usually in only one of the two states of enforcement.
            () = follow(client.clone(), &returned, &lines).boxed() => {}
        }
    }
}

async fn follow(client: Client, returned: &AtomicBool, lines: &ClusterLines) {
    let api: Api<MetadataOf<ClusterRoleBinding>> = Api::all(client);
    let mut log = WatchLog::new("ClusterRoleBinding").within(lines.clone());
    let (relist, heard) = (Arc::default(), WatchMetrics::default());
    let events = in_smaller_pages(api, watch_config(), PAGE_SIZE, relist, heard);
    let (mut events, mut full_at) = (pin!(events), Instant::now());
    // Delays only the report, and not the watch, because a page from a hostile cluster remains in memory until each of
    // its objects is handled.
    let mut due = None;
    loop {
        tokio::select! {
            () = until(due) => {}
            event = events.next() => {
                let Some(event) = event else {
                    return;
                };
                log.observe(&event, || {});
                if due.is_some() || !is_of_kubeadm(&event) {
                    continue;
                }
            }
        }
        due = REPORTS.take(&mut full_at, Instant::now()).err();
        if due.is_none() {
            returned.store(true, Ordering::Relaxed);
        }
    }
}

/// Waits until this time, or forever if it is `None`.
async fn until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => pending().await,
    }
}

/// Whether the event is about a binding with the name of one of kubeadm's bindings.
fn is_of_kubeadm(event: &watcher::Result<Event<MetadataOf<ClusterRoleBinding>>>) -> bool {
    let Ok(Event::InitApply(binding) | Event::Apply(binding)) = event else {
        return false;
    };
    let name = binding.metadata.name.as_deref();
    KUBEADM.iter().any(|(own, ..)| name == Some(*own))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::stream;
    use http_body_util::{BodyExt as _, Full, StreamBody};
    use hyper::Response;
    use hyper::body::{Bytes, Frame};
    use serde_json::json;

    use super::*;
    use crate::client::ClusterAccess;

    /// The number of reports within 5 minutes, for a cluster whose watch receives this number of events about a
    /// binding with this name.
    async fn reports(name: &'static str, events: usize, is_enforced: bool) -> usize {
        let access = ClusterAccess::in_memory(move |request| {
            let query = request.uri().query().unwrap_or_default();
            let metadata = json!({"name": name, "resourceVersion": "2"});
            let event = json!({"type": "MODIFIED", "object": {"metadata": metadata}});
            let list = json!({"metadata": {"resourceVersion": "1"}, "items": []});
            let frame = |text: String| Ok::<_, Infallible>(Frame::data(Bytes::from(text)));
            let body = if query.contains("watch=") {
                let event = format!("{event}\n");
                let changes = stream::iter(0..events).then(move |_| {
                    let event = event.clone();
                    async move {
                        sleep(Duration::from_secs(1)).await;
                        frame(event)
                    }
                });
                StreamBody::new(changes.chain(stream::pending()).boxed()).boxed_unsync()
            } else {
                StreamBody::new(stream::iter([frame(list.to_string())])).boxed_unsync()
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
    async fn a_constantly_changing_binding_is_reported_once_a_minute() {
        let reports = reports(KUBEADM[0].0, 1000, true).await;

        assert!((5..=7).contains(&reports), "{reports}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_with_many_bindings_of_kubeadm_is_handled_at_once() {
        let is_watched: Arc<AtomicBool> = Arc::default();
        let watched = is_watched.clone();
        let access = ClusterAccess::in_memory(move |request| {
            let query = request.uri().query().unwrap_or_default();
            let is_watch = query.contains("watch=");
            watched.fetch_or(is_watch, Ordering::Relaxed);
            let binding = json!({"metadata": {"name": KUBEADM[0].0, "resourceVersion": "1"}});
            let list = json!({"metadata": {"resourceVersion": "1"}, "items": vec![binding; 100]});
            async move {
                if is_watch {
                    pending::<()>().await;
                }
                Response::new(Full::new(Bytes::from(list.to_string())))
            }
        });
        let enforcement = Enforcement::default();
        enforcement.set(true);
        let following = tokio::spawn(report_returns(
            access.client().clone(),
            enforcement,
            Arc::default(),
            ClusterLines::of_namespace(""),
        ));

        sleep(Duration::from_secs(1)).await;

        assert!(is_watched.load(Ordering::Relaxed));
        following.abort();
    }
}
