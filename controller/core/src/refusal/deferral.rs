//! Requests that stay pending.

use std::error::Error;
use std::fmt::{self, Display, Formatter};
use std::time::SystemTime;

use kubelet_attestation::names::{NodeName, Provider, ProviderId};

use crate::identifiers::ServingName;
use crate::time::text;

crate::reasons! {
    /// The reasons why a request remains pending.
    pub Deferral {
        /// No machine has this provider ID or bootstrap token. A machine can send its request before its infrastructure
        /// reports it.
        #[error("no machine matches the request")]
        #[cure("Wait for the infrastructure. After 20 minutes, the request fails.")]
        MachineNotFound => "no machine matches the request yet",
        /// The machine has no provider ID, node name or bootstrap data yet.
        #[error("machine {0} is not ready to join")]
        #[cure("Wait for the infrastructure. To see the state, run `kubectl describe machine NAME`.")]
        MachineNotReady(String) => "the machine is not ready to join yet",
        /// The infrastructure does not report a requested name or address, and the machine is not provisioned yet.
        /// Addresses are reported at the end of provisioning.
        #[error("machine {0} is not provisioned yet, so its names and addresses are not known")]
        #[cure("Wait for the infrastructure. To see the state, run `kubectl get machines`.")]
        MachineNotProvisioned(String) => "the machine's names and addresses are not known yet",
        /// The request is for a serving certificate with an address, but the Service addresses of the cluster are
        /// unknown. The infrastructure provider can relay addresses from inside the machine, such as a Service address.
        #[error("the Service addresses of the cluster are unknown, so an address of the machine could be one of them")]
        #[cure("See the condition `ServiceRangesKnown` of the KubeletAuthentication.")]
        ServiceRangesUnknown => "the Service addresses of the cluster are not known yet",
        /// The request is for a built-in signer, but the controller does not know yet whether the cluster enforces
        /// attestation.
        #[error("the admission policy, which shows whether attestation is enforced, has not been read yet")]
        #[cure("Make the API server of the workload cluster available again. If a permission is missing, the condition \
                 `Ready` names it.")]
        EnforcementUnknown => "the controller cannot determine yet whether it is responsible for the request",
        /// Another machine has an equal or stronger claim to the node name: through its objects, its Node, or the
        /// addresses that its infrastructure reports. The request waits until one machine is renamed or deleted.
        #[error("machines {machine} and {other} have the same node name {node_name}")]
        #[cure("Rename one of the two machines. The log names them.")]
        NodeNameShared {
            /// The name.
            node_name: NodeName,
            /// The Machine's name.
            machine: String,
            /// The other machine's.
            other: String,
        } => "another machine has the same node name",
        /// The controller cannot read the machines of the cluster.
        #[error("cannot read the machines of the cluster")]
        #[cure("Make the API server of the management cluster available again, or unpause the Cluster. If a permission \
                 is missing, the condition `Ready` names it.")]
        InventoryUnavailable(#[source] Unavailable) => "the machine could not be looked up",
        /// The verifier, or a service that it needs, does not respond.
        #[error("the verifier is unavailable")]
        #[cure("See the conditions `AWSCredentialsReady` and `AttestorsAvailable`. The log names the service that does \
                not respond.")]
        VerifierUnavailable(#[source] Unavailable) => "the evidence could not be verified",
        /// EC2 does not report the instance, its state `running`, its root volume or its first network interface yet.
        /// This is normal for a new instance.
        #[error("EC2 does not report instance {0} yet")]
        #[cure("Wait. If the request stays pending, check the instance and the account of the controller's \
                 credentials.")]
        InstanceNotVisible(String) => "EC2 does not report the instance yet",
        /// The controller cannot read or write the node identities, has received no update for one minute, or found an
        /// invalid node identity.
        #[error("cannot read or write the node identities")]
        #[cure("Make the API server of the management cluster available again, or unpause the Cluster. If a permission \
                 is missing, the condition `Ready` names it.")]
        LedgerUnavailable(#[source] Unavailable) => "the node name could not be claimed",
        /// The machine already has a certificate for another key or name. The machine can enroll again after its Node
        /// is down, after all certificates have expired, or after an operator resets the node identity. The Event and
        /// the log show the time.
        #[error("the machine has a certificate for node {0} that might still be valid; the request waits {1}")]
        #[cure("Stop the kubelet that uses the other key, or run `identities reset`.")]
        IdentityLive(NodeName, WaitEnd) => "the machine already has a valid certificate",
        /// The node joined with evidence, but this request has none: the authorized provider was changed to a weaker
        /// one. The request waits until an operator resets the node identity.
        #[error(
            "node {0} joined with {1} evidence, but this request has no evidence; if the machine is the same, run: \
             node-attestation-controller identities reset --yes <cluster> {0}"
        )]
        #[cure("If it is the same machine, run `identities reset`.")]
        EvidenceExpected(NodeName, Provider) => "the node joined with evidence; an operator must reset its node identity",
        /// The node name has no node identity, but a Node with this name is running. The Node can be older than this
        /// controller. If adoption is allowed, the node must send the request with its own certificate.
        #[error("Node {0} is running and has no NodeIdentity")]
        #[cure("If the Node is this machine, set `adoption: Allow`. Otherwise, delete the Node.")]
        NodeAlive(NodeName) => "a running Node already uses this name; if adoption is enabled, the Node must renew \
                                with its own certificate",
        /// The Node with this name has the provider ID of another machine in the cluster, and is not deleted.
        #[error("Node {0} belongs to another machine, {1}")]
        #[cure("Rename one machine. If the other machine now has a different name, delete the Node.")]
        NodeOfAnotherMachine(NodeName, String) => "the Node with this name belongs to another machine",
        /// The machine that holds the node name is being deleted.
        #[error("{1} holds node name {0} and is being deleted")]
        #[cure("Wait until the other machine is deleted.")]
        HolderLeaving(NodeName, ProviderId) => "the node name is not free yet",
        /// The controller cannot read the Nodes of the cluster.
        #[error("cannot read the Nodes of the cluster")]
        #[cure("Make the API server of the workload cluster available again. The log shows the cause.")]
        NodesUnavailable(#[source] Unavailable) => "the node could not be looked up",
        /// The node identity changed during every attempt to claim the name.
        #[error("the node identity of node {0} keeps changing; the controller retries")]
        #[cure("No action is needed: the controller retries.")]
        RecordContended(NodeName) => "the node name could not be claimed yet",
        /// A machine that is being deleted still has a name or address that the serving certificate request contains.
        #[error("{0} still belongs to machine {1}, which is being deleted")]
        #[cure("Wait until the other machine is deleted.")]
        ServingNameNotFree(ServingName, String) => "a name or address still belongs to a machine that is being deleted",
        /// The system did not provide random bytes for a serial number.
        #[error("the system did not provide random bytes for a serial number")]
        #[cure("No action is needed: the controller retries. If the request stays pending, check the controller's host.")]
        NoEntropy => "the certificate could not be signed yet",
        /// The cluster's CA certificate has expired, or is not valid yet.
        #[error("the CA certificate has expired or is not valid yet")]
        #[cure("Replace the CA certificate, or correct the controller's clock.")]
        CaNotValid => "the cluster's CA certificate has expired or is not valid yet",
        /// The external signer, which holds the CA key, is unreachable, slow or busy.
        #[error("the external signer is unavailable")]
        #[cure("Check the external signer: its process, its socket and its log.")]
        SignerUnavailable(#[source] Unavailable) => "the certificate could not be signed yet",
        /// The external signer refused to sign. It does not have this CA key for this cluster, or its policy forbids
        /// the certificate.
        #[error("the external signer refuses to sign")]
        #[cure("Correct the external signer's options. The signer's log shows the cause.")]
        SignerRefused(#[source] Unavailable) => "the certificate could not be signed yet",
        /// The external signer's response is not a signature with the CA key. The controller issued no certificate.
        #[error("the external signer's response is not a signature with the CA key")]
        #[cure("Configure the external signer with the key that matches the CA certificate.")]
        SignatureInvalid => "the certificate could not be signed yet",
    }
}

/// The event that ends the wait for a machine's previous certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitEnd {
    /// The expiry of the certificate, because the claimant has no evidence that it is the same machine.
    Expiry(SystemTime),
    /// The machine is the same, and waits until its Node is down, or until its certificate has expired. `None` if the
    /// known certificate has expired, but the kubelet has renewed its Lease since then, and must therefore have a later
    /// certificate.
    NodeDown(Option<SystemTime>),
}

impl Display for WaitEnd {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expiry(end) => write!(formatter, "until {}", text(*end)),
            Self::NodeDown(None) => formatter.write_str("until the Node is down"),
            Self::NodeDown(Some(end)) => {
                let end = text(*end);
                write!(
                    formatter,
                    "until the Node is down, or until {end} if the node does not renew its certificate"
                )
            }
        }
    }
}

/// An outage, which the request did not cause.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct Unavailable(Box<dyn Error + Send + Sync>);

impl Unavailable {
    /// Creates an outage with this cause.
    pub fn new(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(cause.into())
    }

    /// The cause, if it has this type.
    pub fn cause<E: Error + 'static>(&self) -> Option<&E> {
        self.0.downcast_ref()
    }
}

/// A call that an [explanation](crate::decide::explain) omits. The value is the name of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not called: {0}")]
pub struct NotCalled(pub &'static str);
