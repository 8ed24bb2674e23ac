//! Requests that are not decided yet.

use std::error::Error;

use kubelet_attestation::names::{NodeName, Provider, ProviderId};

use crate::identifiers::ServingName;

crate::reasons! {
    /// Why a request stays pending.
    pub Deferral {
        /// The inventory has no machine under the provider ID or the bootstrap token. A machine may
        /// ask before its infrastructure has reported it.
        #[error("the inventory has no machine for this request")]
        MachineNotFound => "the machine is not known yet",
        /// The machine has no provider ID, node name or bootstrap data yet.
        #[error("machine {0} is not ready to join")]
        MachineNotReady(String) => "the machine is not ready to join yet",
        /// A serving certificate is asked for a name or address that the machine's infrastructure does not
        /// report, and the machine is not provisioned yet: addresses are reported at the end of that.
        #[error("machine {0} is not provisioned yet, so its names and addresses are not known")]
        MachineNotProvisioned(String) => "the machine's names and addresses are not known yet",
        /// A serving certificate is asked for an address, and the addresses of the cluster's Services are not known.
        /// The infrastructure provider may relay addresses from inside the machine, such as one of a Service.
        #[error("the addresses of the cluster's Services are not known, so the machine's addresses cannot be told from them")]
        ServiceRangesUnknown => "the addresses of the cluster's services are not known yet",
        /// Another machine has the node name too, on a ground that is as strong or stronger: by its
        /// objects, its Node, or the addresses that its infrastructure reports. The request waits until
        /// one of the two has another name or is gone.
        #[error("machine {machine} has node name {node_name}, and so has machine {other}")]
        NodeNameShared {
            /// The name.
            node_name: NodeName,
            /// The Machine's name.
            machine: String,
            /// The other machine's.
            other: String,
        } => "another machine has the node name too",
        /// The machines of the cluster could not be looked up.
        #[error("the inventory is unavailable")]
        InventoryUnavailable(#[source] Unavailable) => "the machine could not be looked up",
        /// The verifier or a service that it needs could not be reached.
        #[error("the verifier is unavailable")]
        VerifierUnavailable(#[source] Unavailable) => "the evidence could not be appraised",
        /// EC2 does not know the instance yet, not as a running one, or not its root volume or first
        /// interface. It may be that young.
        #[error("EC2 does not know instance {0} yet")]
        InstanceNotVisible(String) => "the instance is not known to its cloud yet",
        /// The records of node names could not be read or written, were not heard of for a minute,
        /// or the name's record is broken.
        #[error("the ledger is unavailable")]
        LedgerUnavailable(#[source] Unavailable) => "the node name could not be claimed",
        /// The machine has a certificate already, for another key or name. It can enrol again when
        /// its Node is down, or no certificate is valid, or a person resets the record.
        #[error("the machine holds a certificate of node {0} that may still be valid")]
        IdentityLive(NodeName) => "the machine holds a valid certificate already",
        /// The node joined with evidence, and the machine has none now: the attestor was changed to a weaker one. It
        /// waits until a person resets the record.
        #[error(
            "node {0} joined with evidence of {1}, and this request has none; if it is the same machine, reset the record: \
             node-attestation-controller identities reset <cluster> {0}"
        )]
        EvidenceExpected(NodeName, Provider) => "the node joined with evidence; an operator must reset its record",
        /// The node name has no record, and a Node of that name is up. It may have joined before this
        /// controller: where adoption is allowed, it asks with its own certificate.
        #[error("node {0} is up, and whose it is is not recorded")]
        NodeAlive(NodeName) => "a node of that name is up; where adoption is allowed, it asks with its own certificate",
        /// The Node of that name is of another machine of the cluster, by its provider ID, and is not deleted. If that
        /// machine has another name now, delete the Node.
        #[error("the Node {0} is of another machine, {1}")]
        NodeOfAnotherMachine(NodeName, String) => "the node of that name is of another machine",
        /// The machine that holds the node name is being deleted.
        #[error("node {0} is held by {1}, which is being deleted")]
        HolderLeaving(NodeName, ProviderId) => "the node name is not free yet",
        /// The Nodes of the cluster could not be looked up.
        #[error("the nodes are unavailable")]
        NodesUnavailable(#[source] Unavailable) => "the node could not be looked up",
        /// The record of the node name changed as often as it was decided about.
        #[error("the record of node {0} does not stand still")]
        RecordContended(NodeName) => "the node name could not be claimed yet",
        /// A machine that is being deleted still has the name or address that a serving
        /// certificate is asked for.
        #[error("{0} is still that of machine {1}, which is being deleted")]
        ServingNameNotFree(ServingName, String) => "a name or address still belongs to a machine that is being deleted",
        /// The system gave no random bytes for a serial number.
        #[error("the system has no random bytes for a serial number")]
        NoEntropy => "the certificate could not be signed yet",
        /// The cluster's CA certificate has expired, or is not valid yet. Its replacement cures
        /// this.
        #[error("the CA certificate is not valid now")]
        CaNotValid => "the cluster's CA certificate is not valid now",
        /// The external signer, which holds the CA's key, is away, slow or busy.
        #[error("the external signer is unavailable")]
        SignerUnavailable(#[source] Unavailable) => "the certificate could not be signed yet",
        /// The external signer refuses: it does not have this CA's key for this cluster, or its own policy is against
        /// the certificate. An operator cures it at the signer.
        #[error("the external signer refuses")]
        SignerRefused(#[source] Unavailable) => "the certificate could not be signed yet",
        /// The external signer's answer is not a signature by the CA's key. Nothing was issued.
        #[error("the external signer's answer is not a signature by the CA's key")]
        SignatureInvalid => "the certificate could not be signed yet",
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

    /// The cause, where it is of this type.
    pub fn cause<E: Error + 'static>(&self) -> Option<&E> {
        self.0.downcast_ref()
    }
}

/// A question that an [explanation](crate::decide::explain) does not ask: who would answer it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not asked: {0}")]
pub struct NotAsked(pub &'static str);
