//! The watches for a cluster's Secrets.

use std::future::{pending, ready};
use std::sync::Arc;

use futures::stream::StreamExt as _;
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::Supervisor;
use crate::capi::{
    CA_KEYS, KUBECONFIG_KEY, ObjectKey, SecretValues, access_secret_name, ca_secret_name,
    kubeconfig_secret_name,
};
use crate::management::desired_state::Outdated;
use crate::management::single_object::{Change, Observed, follow};
use crate::management::{Controller, WorkloadAccess, own_secrets, resume_panic};
use crate::watch::{Lenient, Unreadable};

/// The last readable version of a Secret, and the reason why a later version could not be read.
#[derive(Clone, Default)]
struct Followed {
    secret: Observed<Arc<Secret>>,
    outdated: Option<Unreadable>,
}

/// The watches for a Cluster's Secrets. They run only while the Cluster exists, so that a `KubeletAuthentication`
/// without a Cluster uses no watch.
pub(super) struct SecretWatches {
    access: WorkloadAccess,
    /// The watch for the controller's own kubeconfig, if the controller uses such kubeconfigs.
    own: Option<Watched>,
    /// The watch for Cluster API's kubeconfig, which contains an administrator's credential. It runs only while this
    /// kubeconfig is used.
    kubeconfig: Option<Watched>,
    ca: Watched,
}

/// The watch for a Secret.
struct Watched {
    versions: watch::Receiver<Followed>,
    /// The task that runs the watch. It ends only if it panics. Without this task, the controller would not detect
    /// changes to the Secret.
    following: JoinSet<()>,
}

/// A version of each Secret.
#[derive(Default)]
pub(super) struct Secrets {
    is_own: bool,
    kubeconfig: Followed,
    ca: Followed,
}

impl Watched {
    /// Returns after the Secret changes. Dropping the future has no effect.
    async fn changed(&mut self) {
        tokio::select! {
            Ok(()) = self.versions.changed() => {}
            Some(ended) = self.following.join_next() => resume_panic(ended),
            else => pending().await,
        }
    }

    fn version(&mut self) -> Followed {
        self.versions.borrow_and_update().clone()
    }
}

impl SecretWatches {
    /// Whether the controller uses its own kubeconfig, and not Cluster API's.
    fn is_own(&self) -> bool {
        let own = self.own.as_ref().map(|own| own.versions.borrow());
        let own = own.as_deref().map(|followed| &followed.secret);
        self.access.is_own(own.unwrap_or(&Observed::Unknown))
    }

    fn versions(&mut self) -> Secrets {
        let own = self.own.as_mut().map(Watched::version);
        let of_own = own.as_ref().map(|followed| &followed.secret);
        let is_own = self.access.is_own(of_own.unwrap_or(&Observed::Unknown));
        let kubeconfig = if is_own {
            own
        } else {
            self.kubeconfig.as_mut().map(Watched::version)
        };
        Secrets {
            is_own,
            kubeconfig: kubeconfig.unwrap_or_default(),
            ca: self.ca.version(),
        }
    }
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
        if !is_wanted {
            if watches.take().is_some() {
                self.secrets_changed(Secrets::default());
            }
            return;
        }
        let ObjectKey { namespace, name } = &self.key;
        let Controller {
            settings,
            management,
            ..
        } = &self.shared.controller;
        let access = settings.workload_access;
        let of_cluster = || Api::namespaced(management.clone(), namespace);
        let watches = watches.get_or_insert_with(|| SecretWatches {
            access,
            own: access.has_own().then(|| {
                let own = access_secret_name(&self.key);
                self.follow_secret(own_secrets(management, namespace), &own, &[KUBECONFIG_KEY])
            }),
            kubeconfig: None,
            ca: self.follow_secret(of_cluster(), &ca_secret_name(name), &CA_KEYS),
        });
        if watches.is_own() {
            watches.kubeconfig = None;
        } else if watches.kubeconfig.is_none() {
            let name = kubeconfig_secret_name(name);
            watches.kubeconfig = Some(self.follow_secret(of_cluster(), &name, &[KUBECONFIG_KEY]));
        }
    }

    pub(super) fn secrets_changed(&mut self, secrets: Secrets) {
        let Secrets {
            is_own,
            kubeconfig,
            ca,
        } = secrets;
        self.sources.outdated = Outdated {
            kubeconfig: kubeconfig.outdated,
            ca: ca.outdated,
        };
        self.sources.kubeconfig = kubeconfig.secret;
        self.sources.own_kubeconfig = is_own.then(|| access_secret_name(&self.key));
        self.sources.ca = ca.secret;
    }

    /// Watches these values of a Secret, in a task.
    ///
    /// The stream needs a separate task. It keeps its turn among the calls to the API server even while it is not
    /// polled, and the supervisor waits for a turn when it writes.
    fn follow_secret(
        &self,
        api: Api<Lenient<SecretValues, Secret>>,
        name: &str,
        keys: &'static [&'static str],
    ) -> Watched {
        let changes = follow(api, name, keys, self.lines.clone());
        let (sender, versions) = watch::channel(Followed::default());
        let mut following = JoinSet::new();
        following.spawn(changes.for_each(move |change| {
            if let Some(change) = change {
                sender.send_modify(|followed| followed.change(change));
            }
            ready(())
        }));
        Watched {
            versions,
            following,
        }
    }
}

/// Waits until a Secret changes.
pub(super) async fn changed(watches: &mut Option<SecretWatches>) -> Secrets {
    let Some(watches) = watches else {
        return pending().await;
    };
    let SecretWatches {
        own,
        kubeconfig,
        ca,
        ..
    } = watches;
    tokio::select! {
        () = if_any(own.as_mut()) => {}
        () = if_any(kubeconfig.as_mut()) => {}
        () = ca.changed() => {}
    }
    watches.versions()
}

/// Waits until the Secret of this watch changes. If there is no watch, never returns.
async fn if_any(watched: Option<&mut Watched>) {
    match watched {
        Some(watched) => watched.changed().await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::management::desired_state::Sources;

    #[test]
    fn the_kubeconfig_of_the_cluster_is_used_only_without_an_own_one() {
        use WorkloadAccess::{ClusterApi, Own, PreferOwn};
        let why = Unreadable::because("value is not base64");
        let states = [
            Observed::Unknown,
            Observed::Absent,
            Observed::Present(()),
            Observed::Unreadable(why),
        ];
        let used = |access: WorkloadAccess| states.each_ref().map(|own| access.is_own(own));

        assert_eq!(used(ClusterApi), [false; 4]);
        // If the controller's own kubeconfig is unknown or cannot be read, the controller must not use an
        // administrator's credential.
        assert_eq!(used(PreferOwn), [true, false, true, true]);
        assert_eq!(used(Own), [true; 4]);
    }

    #[test]
    fn an_unreadable_version_of_a_secret_is_named_until_it_is_replaced() {
        let present = || Change::State(Observed::Present(Secret::default()));
        let invalid = || Change::Outdated(Unreadable::because("tls.crt is not base64"));
        let (mut kubeconfig, mut ca) = (Followed::default(), Followed::default());
        let of = |kubeconfig: &Followed, ca: &Followed| {
            let [kubeconfig, ca] = [kubeconfig, ca].map(|followed| followed.outdated.clone());
            let sources = Sources {
                outdated: Outdated { kubeconfig, ca },
                ..Sources::default()
            };
            sources.outdated_messages("prod-1")
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
