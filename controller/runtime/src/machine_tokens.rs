//! The command `tokens recreate`: recreates the bootstrap tokens of Machines whose nodes need them to rejoin.
//!
//! A node has only the token from its Machine's `KubeadmConfig`. Kubernetes deletes an expired token, and no component
//! creates it again. Therefore a node whose certificate has expired, or whose record was reset, might not be able to
//! rejoin.

use std::collections::BTreeSet;
use std::error::Error;
use std::time::{Duration, SystemTime};

use k8s_openapi::jiff::Timestamp;
use kubelet_attestation::errors::error_chain;
use serde::Serialize;

use crate::capi::{ObjectKey, TokenOfMachine, own_tokens};
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

/// A Machine with its token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct MachineToken {
    /// The Machine.
    pub machine: String,
    /// The ID of the Machine's own token. `None` if its `KubeadmConfig` does not contain a token.
    pub token_id: Option<String>,
    /// The expiry time of the token, as RFC 3339. `None` also if the token does not expire.
    pub expires: Option<String>,
    /// The reason why the token was not recreated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The command failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MachineTokensError {
    /// Attestation is not enforced, so the holder of a token can join as any node.
    #[error(
        "attestation is not enforced in Cluster {0}: any machine with a bootstrap token can join there as any node; to \
         recreate tokens nevertheless, set --without-enforcement"
    )]
    NotEnforced(ObjectKey),
    /// The Cluster has no Machine with this name, or the Machine is being deleted.
    #[error("Cluster {cluster} has no Machine {machine}")]
    NoMachine {
        /// The Cluster.
        cluster: ObjectKey,
        /// The specified name.
        machine: String,
    },
    /// The management cluster could not be read.
    #[error("cannot read the Machines of Cluster {cluster}")]
    Management {
        /// The Cluster.
        cluster: ObjectKey,
        /// The reason.
        source: CallError,
    },
    /// The Cluster's API server returned an error or did not respond.
    #[error("in the workload cluster of Cluster {cluster}")]
    Workload {
        /// The Cluster.
        cluster: ObjectKey,
        /// The reason.
        source: HardeningError,
    },
    /// The kubeconfig of the Cluster cannot be used.
    #[error("cannot call the API server of Cluster {cluster}")]
    Kubeconfig {
        /// The Cluster.
        cluster: ObjectKey,
        /// The reason.
        source: Box<dyn Error + Send + Sync>,
    },
}

impl MachineTokens {
    /// Creates access to the tokens of this Cluster's Machines.
    ///
    /// Without `workload`, Cluster API's kubeconfig determines the API server, if the policy `egress` allows the
    /// server's address.
    ///
    /// # Errors
    ///
    /// Returns an error if the kubeconfig cannot be used.
    pub async fn of_cluster(
        management: &ClusterAccess,
        cluster: &ObjectKey,
        workload: Option<ClusterAccess>,
        egress: EgressPolicy,
    ) -> Result<Self, MachineTokensError> {
        let workload = match workload {
            Some(workload) => Ok(workload),
            None => by_secret(management, cluster, egress).await,
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

    /// Recreates these Machines' own tokens, or the tokens of all Machines. Extends the expiry times of existing
    /// tokens.
    ///
    /// Each token expires `life` after the time on the workload cluster's API server, unless its expiry time is already
    /// later. This API server determines whether a token has expired, so a wrong clock neither shortens nor extends the
    /// lifetime. If its time is unknown, as for a tenant's API server and before its first response, the time on the
    /// management cluster's API server counts. `now`, the time on this machine, counts only if both times are unknown.
    ///
    /// The command can be repeated. If a Machine's token cannot be read or written, its result has an
    /// [error](MachineToken::error), and other Machines are not affected.
    ///
    /// # Errors
    ///
    /// Returns an error if attestation is not enforced and `permitted` is not set, if a Machine does not exist, if a
    /// cluster does not respond, or if a permission for all Machines or all tokens is missing. The tokens that were
    /// processed before the failure are recreated.
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
        // With a slow clock, the tokens would already have expired. With a fast clock, they would be valid for longer
        // than the limit.
        let now = self.management.server_time().now_or(now);
        let now = self.workload.server_time().now_or(now);
        // The Secret stores whole seconds.
        let end = Timestamp::try_from(now + life).map_or(Timestamp::MAX, |end| {
            Timestamp::from_second(end.as_second()).unwrap_or(end)
        });
        let mut all = Vec::new();
        for found in found {
            all.push(Box::pin(self.recreate_one(found, end)).await?);
        }
        Ok(all)
    }

    async fn recreate_one(
        &self,
        (machine, token): TokenOfMachine,
        end: Timestamp,
    ) -> Result<MachineToken, MachineTokensError> {
        let mut one = MachineToken {
            machine,
            token_id: None,
            expires: None,
            error: None,
        };
        match token {
            Ok(None) => {}
            Err(error) => one.error = Some(error_chain(&error)),
            Ok(Some(token)) => {
                one.token_id = Some(token.id.to_string());
                match recreated(self.workload.client(), &token, end).await {
                    Ok(expires) => one.expires = expires.map(|end| end.to_string()),
                    Err(error @ HardeningError::Refused { .. }) => {
                        one.error = Some(error_chain(&error));
                    }
                    Err(source) => {
                        return Err(MachineTokensError::Workload {
                            cluster: self.cluster.clone(),
                            source,
                        });
                    }
                }
            }
        }
        Ok(one)
    }
}

#[cfg(test)]
mod tests;
