//! The command `tokens recreate`: the bootstrap tokens of Machines whose nodes need them to come back.
//!
//! A node has the token of its Machine's `KubeadmConfig`, and no other. Kubernetes deletes a token at its end, and
//! nothing creates it again. So a node whose certificate has ended, or whose record was reset, can be locked out.

use std::collections::BTreeSet;
use std::error::Error;
use std::time::{Duration, SystemTime};

use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use crate::capi::{ObjectKey, own_tokens};
use crate::client::{CallError, ClusterAccess, EgressPolicy};
use crate::explain::by_secret;
use crate::hardening::tokens::recreate as recreated;
use crate::hardening::{HardeningError, admission};

/// The tokens of a Cluster's Machines.
#[derive(Debug, Clone)]
pub struct MachineTokens {
    management: ClusterAccess,
    workload: ClusterAccess,
    cluster: ObjectKey,
}

/// A Machine, and its token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct MachineToken {
    /// The Machine.
    pub machine: String,
    /// The ID of its own token; `None` if its `KubeadmConfig` has none.
    pub token_id: Option<String>,
    /// The end of the token, as RFC 3339 has it; `None` for a token without an end, too.
    pub expires: Option<String>,
}

/// The command failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MachineTokensError {
    /// Before enforcement, a token lets its holder join as any node.
    #[error(
        "attestation is not enforced in Cluster {0}: any machine with a bootstrap token can join there as any node; to \
         recreate tokens nevertheless, set --without-enforcement"
    )]
    NotEnforced(ObjectKey),
    /// The Cluster has no such Machine, or it is being deleted.
    #[error("Cluster {cluster} has no Machine {machine}")]
    NoMachine {
        /// The Cluster.
        cluster: ObjectKey,
        /// The name that was given.
        machine: String,
    },
    /// The management cluster could not be read.
    #[error("the Machines of Cluster {cluster} cannot be read")]
    Management {
        /// The Cluster.
        cluster: ObjectKey,
        /// The reason.
        source: CallError,
    },
    /// The API server of the Cluster failed.
    #[error("in the workload cluster of Cluster {cluster}")]
    Workload {
        /// The Cluster.
        cluster: ObjectKey,
        /// The reason.
        source: HardeningError,
    },
    /// The kubeconfig of the Cluster cannot be used.
    #[error("Cluster {cluster} cannot be called")]
    Kubeconfig {
        /// The Cluster.
        cluster: ObjectKey,
        /// The reason.
        source: Box<dyn Error + Send + Sync>,
    },
}

impl MachineTokens {
    /// The tokens of the Machines of this Cluster. Without `workload`, its API server is the one of Cluster API's
    /// kubeconfig, if it is in `reach`.
    ///
    /// # Errors
    ///
    /// The kubeconfig cannot be used.
    pub async fn of_cluster(
        management: &ClusterAccess,
        cluster: &ObjectKey,
        workload: Option<ClusterAccess>,
        reach: EgressPolicy,
    ) -> Result<Self, MachineTokensError> {
        let workload = match workload {
            Some(workload) => Ok(workload),
            None => by_secret(management, cluster, reach).await,
        };
        Ok(Self {
            management: management.clone(),
            workload: workload.map_err(|source| MachineTokensError::Kubeconfig {
                cluster: cluster.clone(),
                source,
            })?,
            cluster: cluster.clone(),
        })
    }

    /// Creates the own tokens of these Machines again, or of all, or postpones their ends: each lives for `life` from
    /// `now`, at least. It can be repeated.
    ///
    /// # Errors
    ///
    /// Attestation is not enforced, unless that is `permitted`; a Machine does not exist; or a cluster cannot be
    /// called. The tokens before that are created.
    pub async fn recreate(
        &self,
        machines: &BTreeSet<String>,
        life: Duration,
        permitted: bool,
        now: SystemTime,
    ) -> Result<Vec<MachineToken>, MachineTokensError> {
        let cluster = || self.cluster.clone();
        let of_workload = |source| MachineTokensError::Workload {
            cluster: cluster(),
            source,
        };
        let client = self.workload.client();
        if !permitted && !admission::is_enforced(client).await.map_err(of_workload)? {
            return Err(MachineTokensError::NotEnforced(cluster()));
        }
        let only = (!machines.is_empty()).then_some(machines);
        let found = own_tokens(self.management.client(), &self.cluster, only).await;
        let found = found.map_err(|source| MachineTokensError::Management {
            cluster: cluster(),
            source,
        })?;
        let known: BTreeSet<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
        if let Some(missing) = machines.iter().find(|name| !known.contains(name.as_str())) {
            return Err(MachineTokensError::NoMachine {
                cluster: cluster(),
                machine: missing.clone(),
            });
        }
        // Seconds are what the Secret has.
        let end = Timestamp::try_from(now + life).map_or(Timestamp::MAX, |end| {
            Timestamp::from_second(end.as_second()).unwrap_or(end)
        });
        let mut all = Vec::new();
        for (machine, token) in found {
            let expires = match &token {
                Some(token) => recreated(client, token, end).await.map_err(of_workload)?,
                None => None,
            };
            all.push(MachineToken {
                machine,
                token_id: token.map(|token| token.id.to_string()),
                expires: expires.map(|end| end.to_string()),
            });
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests;
