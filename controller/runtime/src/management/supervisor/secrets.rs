//! The watches for a cluster's Secrets.

use std::future::{pending, ready};
use std::sync::Arc;

use futures::stream::StreamExt as _;
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::Supervisor;
use crate::capi::{CA_KEYS, KUBECONFIG_KEY, ObjectKey, SecretValues};
use crate::management::desired_state::Outdated;
use crate::management::resume_panic;
use crate::management::single_object::{Change, Observed, follow};
use crate::watch::{Lenient, Unreadable};

type SecretReceiver = watch::Receiver<Followed>;

/// The last readable version of a Secret, and the reason why a later version could not be read.
#[derive(Clone, Default)]
struct Followed {
    secret: Observed<Arc<Secret>>,
    outdated: Option<Unreadable>,
}

/// The watches for a Cluster's Secrets. They run only while the Cluster exists, so that a `KubeletAuthentication`
/// without a Cluster uses no watch.
pub(super) struct SecretWatches {
    kubeconfigs: SecretReceiver,
    cas: SecretReceiver,
    /// The tasks that run the watches. They end only with a panic. Without these tasks, changes to a Secret would have
    /// no effect.
    following: JoinSet<()>,
}

/// A version of each Secret.
#[derive(Default)]
pub(super) struct Secrets {
    kubeconfig: Followed,
    ca: Followed,
}

impl Followed {
    fn change(&mut self, change: Change<Secret>) {
        match change {
            Change::State(secret) => {
                *self = Self {
                    secret: secret.map(Arc::new),
                    outdated: None,
                };
            }
            Change::Outdated(why) => self.outdated = Some(why),
        }
    }
}

impl Supervisor {
    /// Starts the watches if the Cluster exists and has a place. Otherwise, stops them.
    pub(super) fn follow_secrets(&mut self, watches: &mut Option<SecretWatches>) {
        let is_wanted = match &self.sources.cluster {
            Observed::Present(_) => self.place.is_placed(),
            Observed::Absent => false,
            // If watches are running, the Cluster existed before.
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
            self.secrets_changed(Secrets::default());
        }
    }

    pub(super) fn secrets_changed(&mut self, secrets: Secrets) {
        let Secrets { kubeconfig, ca } = secrets;
        self.sources.outdated = Outdated {
            kubeconfig: kubeconfig.outdated,
            ca: ca.outdated,
        };
        self.sources.kubeconfig = kubeconfig.secret;
        self.sources.ca = ca.secret;
    }

    /// Watches these values of a cluster's Secret, in a task in this set.
    ///
    /// The stream needs a separate task, because it keeps its turn among the calls to the API server even while it is
    /// not polled, and the supervisor waits for a turn when it writes.
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
        let (sender, receiver) = watch::channel(Followed::default());
        tasks.spawn(versions.for_each(move |change| {
            sender.send_modify(|followed| followed.change(change));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_version_of_a_secret_is_named_until_it_is_replaced() {
        let present = || Change::State(Observed::Present(Secret::default()));
        let invalid = || Change::Outdated(Unreadable::because("tls.crt is not base64"));
        let (mut kubeconfig, mut ca) = (Followed::default(), Followed::default());
        let of = |kubeconfig: &Followed, ca: &Followed| {
            let [kubeconfig, ca] = [kubeconfig, ca].map(|followed| followed.outdated.clone());
            Outdated { kubeconfig, ca }.messages("prod-1")
        };
        kubeconfig.change(present());
        ca.change(present());
        assert_eq!(of(&kubeconfig, &ca), [""; 0]);

        ca.change(invalid());
        assert_eq!(
            of(&kubeconfig, &ca),
            ["cannot read the last version of Secret prod-1-ca: tls.crt is not base64"]
        );
        assert!(ca.secret.present().is_some(), "the previous version stays");
        kubeconfig.change(invalid());
        assert_eq!(of(&kubeconfig, &ca).len(), 2);

        ca.change(present());
        kubeconfig.change(Change::State(Observed::Absent));
        assert_eq!(of(&kubeconfig, &ca), [""; 0]);
    }
}
