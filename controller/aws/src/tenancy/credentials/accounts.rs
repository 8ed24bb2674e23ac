//! The account of each cluster: the first account, and the account that AWS last reported.

use std::collections::{BTreeMap, BTreeSet};

use kubelet_attestation::ensure;
use node_attestation_core::cluster_line;
use node_attestation_core::crd::conditions::{self, ConditionReport, ConditionStatus, reason};
use node_attestation_runtime::capi::ObjectKey;
use node_attestation_runtime::log_lines::ClusterLines;
use node_attestation_runtime::shared::{Lock, Shared, visited};
use tokio::sync::mpsc;

use crate::credentials::CredentialsKey;
use crate::tenancy::{AccountMismatch, ResolutionError};

/// The accounts of all clusters.
#[derive(Debug)]
pub(super) struct Accounts {
    state: Shared<State>,
    /// Sends the first account of each cluster, to be written to the API server.
    first: mpsc::UnboundedSender<(ObjectKey, String)>,
}

#[derive(Debug, Default)]
struct State {
    pins: BTreeMap<ObjectKey, Pin>,
    /// The account, the name and the namespace of each cluster whose account AWS reported.
    ///
    /// The account in an annotation does not count, because a tenant can write it.
    names: BTreeSet<(String, String, String)>,
}

/// The accounts of a cluster.
#[derive(Debug, Clone, Default)]
pub(super) struct Pin {
    /// The first account.
    pub(super) account: Option<String>,
    /// The key of the last credentials, and their account.
    pub(super) last: Option<(CredentialsKey, String)>,
    /// Whether the account was read from the `KubeletAuthentication`. If the account is missing there later, an
    /// administrator has removed it.
    is_written: bool,
}

impl Accounts {
    pub(super) fn new(first: mpsc::UnboundedSender<(ObjectKey, String)>) -> Self {
        Self {
            state: Shared::new(Lock::TenantAccounts, State::default()),
            first,
        }
    }

    /// The accounts of this cluster.
    pub(super) fn of_cluster(&self, cluster: &ObjectKey) -> Pin {
        let pin = self.state.read(|state| state.pins.get(cluster).cloned());
        pin.unwrap_or_default()
    }

    /// Updates the first account from the annotation on a `KubeletAuthentication`.
    pub(super) fn read_pin(&self, cluster: &ObjectKey, account: Option<&str>) {
        self.change(cluster, |pin| {
            if account.is_some() || pin.is_written {
                pin.account = account.map(ToOwned::to_owned);
                pin.is_written = account.is_some();
            }
        });
    }

    fn change<T>(&self, cluster: &ObjectKey, change: impl FnOnce(&mut Pin) -> T) -> T {
        self.state
            .write(|state| change(state.pins.entry(cluster.clone()).or_default()))
    }

    /// Checks that a cluster's account is its first account. Stores the first account if none is known.
    pub(super) fn check(&self, cluster: &ObjectKey, account: &str) -> Result<(), ResolutionError> {
        self.change(cluster, |pin| {
            if let Some(pinned) = &pin.account {
                return mismatch(pinned, account);
            }
            pin.account = Some(account.to_owned());
            // The receiver is closed only if the controller is stopping.
            drop(self.first.send((cluster.clone(), account.to_owned())));
            Ok(())
        })
    }

    /// Stores the account that AWS reported for a cluster's credentials. If another cluster has the same name and
    /// account, logs both.
    pub(super) fn report(&self, cluster: &ObjectKey, key: CredentialsKey, account: &str) {
        let other = self.state.write(|state| {
            let pin = state.pins.entry(cluster.clone()).or_default();
            let before = pin.last.replace((key, account.to_owned()));
            let before = before.map(|(_, account)| account);
            if before.as_deref() == Some(account) {
                return None;
            }
            if let Some(before) = before {
                state.names.remove(&entry(&before, cluster));
            }
            state.names.insert(entry(account, cluster));
            state.other(account, cluster)
        });
        if let Some(other) = other {
            cluster_line!(&ClusterLines::of(cluster), WARN, %other, account, "two Clusters with the same name use the \
                same AWS account");
        }
    }

    /// The condition about other Clusters with the same name and account.
    pub(super) fn name_report(&self, cluster: &ObjectKey) -> ConditionReport {
        let found = self.state.read(|state| {
            let (_, account) = state.pins.get(cluster)?.last.as_ref()?;
            let is_shared = state.other(account, cluster).is_some();
            Some(is_shared.then(|| account.clone()))
        });
        let (holds, reason, message) = match found {
            None => (
                ConditionStatus::Unknown,
                reason::PENDING,
                "AWS has not reported the account of the credentials yet".to_owned(),
            ),
            Some(None) => (ConditionStatus::True, reason::NAME_UNIQUE, String::new()),
            Some(Some(account)) => (
                ConditionStatus::False,
                reason::NAME_NOT_UNIQUE,
                format!(
                    "another Cluster with this name uses account {account}: instances of both Clusters have the same \
                     ownership tag"
                ),
            ),
        };
        ConditionReport {
            of: conditions::AWS_CLUSTER_NAME_UNIQUE,
            holds,
            reason,
            message,
        }
    }

    /// Drops the clusters for which `keeps` returns `false`.
    pub(super) fn retain(&self, keeps: impl Fn(&ObjectKey) -> bool) {
        let mut gone = Vec::new();
        self.state.retain(
            |state| &mut state.pins,
            |cluster, pin| {
                let is_kept = keeps(cluster);
                if !is_kept && let Some((_, account)) = pin.last.take() {
                    gone.push((account, cluster.clone()));
                }
                is_kept
            },
        );
        for (account, cluster) in gone {
            self.state.write(|state| {
                // The cluster might have been created again since then.
                let last = state.pins.get(&cluster).and_then(|pin| pin.last.as_ref());
                if last.is_none_or(|(_, now)| *now != account) {
                    state.names.remove(&entry(&account, &cluster));
                }
            });
        }
    }
}

impl State {
    /// A different cluster with the same name in this account.
    fn other(&self, account: &str, cluster: &ObjectKey) -> Option<ObjectKey> {
        let first = (account.to_owned(), cluster.name.clone(), String::new());
        let same = self.names.range(first..);
        let same = same.take_while(|(of, name, _)| of == account && *name == cluster.name);
        let mut same = visited(same.take(2));
        let other = same.find(|(_, _, namespace)| *namespace != cluster.namespace)?;
        Some(ObjectKey::new(other.2.as_str(), cluster.name.as_str()))
    }
}

fn entry(account: &str, cluster: &ObjectKey) -> (String, String, String) {
    let ObjectKey { namespace, name } = cluster;
    (account.to_owned(), name.clone(), namespace.clone())
}

/// Checks that the account of an identity is the first account.
pub(super) fn mismatch(pinned: &str, resolved: &str) -> Result<(), ResolutionError> {
    let mismatch = || AccountMismatch::OfCluster {
        pinned: pinned.to_owned(),
        resolved: resolved.to_owned(),
    };
    ensure!(
        pinned == resolved,
        ResolutionError::AccountMismatch(mismatch())
    );
    Ok(())
}
