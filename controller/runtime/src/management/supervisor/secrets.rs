//! The watches of a cluster's Secrets.

use std::future::{pending, ready};
use std::sync::Arc;

use futures::stream::StreamExt as _;
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::Supervisor;
use crate::capi::{CA_KEYS, KUBECONFIG_KEY, ObjectKey, SecretValues};
use crate::management::resume_panic;
use crate::management::single_object::{Observed, follow};
use crate::watch::Lenient;

type SecretReceiver = watch::Receiver<Observed<Arc<Secret>>>;

/// The watches of a Cluster's Secrets. They run only while the Cluster exists, so a `KubeletAuthentication` without a
/// Cluster uses no watch.
pub(super) struct SecretWatches {
    kubeconfigs: SecretReceiver,
    cas: SecretReceiver,
    /// The tasks of the watches, which end only with a panic. Without these tasks, changes of a Secret would have no
    /// effect.
    following: JoinSet<()>,
}

/// A version of each Secret.
pub(super) struct Secrets {
    kubeconfig: Observed<Arc<Secret>>,
    ca: Observed<Arc<Secret>>,
}

impl Supervisor {
    /// Starts the watches if the Cluster exists and has a place. Otherwise, stops them.
    pub(super) fn follow_secrets(&mut self, watches: &mut Option<SecretWatches>) {
        let is_wanted = match &self.sources.cluster {
            Observed::Present(_) => self.place.is_placed(),
            Observed::Absent => false,
            // Running watches mean that the Cluster existed.
            Observed::Unknown | Observed::Unreadable(_) => watches.is_some(),
        };
        if is_wanted && watches.is_none() {
            let mut following = JoinSet::new();
            *watches = Some(SecretWatches {
                kubeconfigs: self.follow_secret("kubeconfig", &[KUBECONFIG_KEY], &mut following),
                cas: self.follow_secret("ca", &CA_KEYS, &mut following),
                following,
            });
        } else if !is_wanted && watches.take().is_some() {
            self.secrets_changed(Secrets {
                kubeconfig: Observed::Unknown,
                ca: Observed::Unknown,
            });
        }
    }

    pub(super) fn secrets_changed(&mut self, secrets: Secrets) {
        self.sources.kubeconfig = secrets.kubeconfig;
        self.sources.ca = secrets.ca;
    }

    /// Follows these values of a Secret of the cluster in a task of this set.
    ///
    /// The stream needs a separate task, because it keeps its turn among the calls to the API server even while it is
    /// not polled. The supervisor waits for a turn when it writes.
    fn follow_secret(
        &self,
        suffix: &str,
        keys: &'static [&'static str],
        tasks: &mut JoinSet<()>,
    ) -> SecretReceiver {
        let ObjectKey { namespace, name } = &self.key;
        let management = self.shared.controller.management.clone();
        let api = Api::<Lenient<SecretValues, Secret>>::namespaced(management, namespace);
        let name = format!("{name}-{suffix}");
        let versions = follow(api, &name, keys, self.lines.clone());
        let (sender, receiver) = watch::channel(Observed::Unknown);
        tasks.spawn(versions.for_each(move |secret| {
            sender.send_replace(secret.map(Arc::new));
            ready(())
        }));
        receiver
    }
}

/// Waits until a Secret changes.
pub(super) async fn changed(watches: &mut Option<SecretWatches>) -> Secrets {
    let Some(watches) = watches else {
        return pending().await;
    };
    tokio::select! {
        Ok(()) = watches.kubeconfigs.changed() => {}
        Ok(()) = watches.cas.changed() => {}
        Some(ended) = watches.following.join_next() => resume_panic(ended),
        else => pending().await,
    }
    Secrets {
        kubeconfig: watches.kubeconfigs.borrow_and_update().clone(),
        ca: watches.cas.borrow_and_update().clone(),
    }
}
