//! Requests that are not decided yet.

use std::error::Error;

use kubelet_attestation::names::NodeName;

use super::catalogue::reasons;
use crate::serving::ServingName;

reasons! {
    /// Why a request stays pending.
    Deferral {
        /// The inventory has no machine under the provider ID or the bootstrap token. A machine may
        /// ask before its infrastructure has reported it.
        #[error("the inventory has no machine for this request")]
        MachineNotFound => "the machine is not known yet",
        /// The machine has no provider ID, node name or bootstrap data yet.
        #[error("machine {machine} is not ready to join")]
        MachineNotReady {
            /// The Machine's name.
            machine: String,
        } => "the machine is not ready to join yet",
        /// The machines of the cluster could not be looked up.
        #[error("the inventory is unavailable")]
        InventoryUnavailable {
            /// Why.
            #[source]
            source: Unavailable,
        } => "the machine could not be looked up",
        /// What appraises the evidence could not be reached.
        #[error("the verifier is unavailable")]
        VerifierUnavailable {
            /// Why.
            #[source]
            source: Unavailable,
        } => "the evidence could not be appraised",
        /// The records of node names could not be read or written.
        #[error("the ledger is unavailable")]
        LedgerUnavailable {
            /// Why.
            #[source]
            source: Unavailable,
        } => "the node name could not be claimed",
        /// The machine has a certificate already, for another key or name. It can enrol again when
        /// none is valid.
        #[error("the machine holds a certificate of node {node_name} that may still be valid")]
        IdentityLive {
            /// The node that the record is of.
            node_name: NodeName,
        } => "the machine holds a valid certificate already",
        /// A machine that is being deleted still has the name or address that a serving
        /// certificate is asked for.
        #[error("{name} is still that of machine {machine}, which is being deleted")]
        ServingNameNotFree {
            /// The name or address.
            name: ServingName,
            /// The other Machine's name.
            machine: String,
        } => "a name or address still belongs to a machine that is being deleted",
        /// The system gave no random bytes for a serial number.
        #[error("the system has no random bytes for a serial number")]
        NoEntropy => "the certificate could not be signed yet",
        /// The cluster's CA certificate has expired, or is not valid yet. Its replacement cures
        /// this.
        #[error("the CA certificate is not valid now")]
        CaNotValid => "the cluster's CA certificate is not valid now",
    }
}

/// An outage: something else than the request is at fault.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct Unavailable(Box<dyn Error + Send + Sync>);

impl Unavailable {
    /// An outage with this cause.
    pub fn new(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(cause.into())
    }
}
